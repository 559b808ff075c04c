"""LDWP's DQN on line: learning from looks at a cluster, the bundles that it publishes, and its command."""

import hashlib
import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import typer
from tests.fakes.bundles import copy_bundle

from placewise.v1 import bundle_pb2, cluster_pb2, job_pb2
from placewise_client.errors import StateUnavailableError
from placewise_core.inputs.ldwp_paper import columns, order_of, state_of
from placewise_models.bundle import MANIFEST, load
from placewise_models.signing import generate, read_public
from placewise_training.ldwp.agent import TYPES, PaperDqn, clone
from placewise_training.ldwp.online.command import Learner, _alone, learn_online
from placewise_training.ldwp.online.following import Following, running_of, view_of
from placewise_training.ldwp.online.publishing import Publisher
from placewise_training.ldwp.printed.train import CHECKPOINT, empty_net, load_net, save_net
from placewise_training.train_cli import by_method

NODES = ("n0", "n1", "n2")
BASE = "2026.11"


def node(name: str, cpu_util: float | None = None) -> cluster_pb2.Node:
    telemetry = None if cpu_util is None else cluster_pb2.Telemetry(cpu_util=cpu_util)
    return cluster_pb2.Node(id=name, capacity=job_pb2.Resources(cpu_cores=8, memory_gib=48), telemetry=telemetry)


def pipeline(name: str, on: str, start_s: int, model: str = TYPES[0], size: float = 3000.0) -> cluster_pb2.RunningJob:
    held = cluster_pb2.Assignment(task="worker-0", node=on, demand=job_pb2.Resources(cpu_cores=2))
    job = cluster_pb2.RunningJob(job_id=name, model=model, subtask_size=size, assignments=[held])
    job.start_time.FromSeconds(start_s)
    return job


def seen(*jobs: cluster_pb2.RunningJob, nodes: Sequence[str] = NODES) -> cluster_pb2.Cluster:
    return cluster_pb2.Cluster(cluster="lab", nodes=[node(name) for name in nodes], jobs=jobs)


@dataclass
class Watched(PaperDqn):
    """Keeps its experiences and learns nothing."""

    reported: list[tuple[str, list[float], float]] = field(default_factory=list)

    def arrive(self, net, state, throughput):  # type: ignore[no-untyped-def]
        self.reported.append(("arrive", state.tolist(), throughput))

    def take(self, state, action, throughput):  # type: ignore[no-untyped-def]
        self.reported.append((NODES[action], state.tolist(), throughput))


def test_each_pipeline_is_an_action_in_the_state_that_it_found() -> None:
    agent = Watched(net=empty_net(NODES))
    following = Following(agent)
    following.look(seen(pipeline("old", "n2", 1)), 100.0)
    assert agent.reported == [], "the states of the first ones are unknown"
    following.look(seen(pipeline("old", "n2", 1), pipeline("b", "n1", 12), pipeline("a", "n0", 11)), 101.0)
    assert [what for what, _, _ in agent.reported] == ["arrive", "n0", "arrive", "n1"], "in their order"
    names = columns(TYPES, NODES)
    first, second = (dict(zip(names, agent.reported[i][1], strict=True)) for i in (0, 2))
    assert (first["a_n2"], first["a_n0"], second["a_n0"]) == (1.0, 0.0, 1.0)
    assert first["s_n0_cpu_util"] == 0.0, "it does not see itself"
    assert second["s_n0_cpu_util"] == pytest.approx(2 / 8)
    assert following.decisions == 2
    following.look(seen(pipeline("old", "n2", 1), pipeline("b", "n1", 12), pipeline("a", "n0", 11)), 102.0)
    assert following.decisions == 2


def test_the_state_is_the_one_that_is_served() -> None:
    """The same function of a view with the same nodes and jobs, telemetry included."""
    message = cluster_pb2.Cluster(nodes=[node("n0", 0.7), node("n1"), node("n2", 0.1)], jobs=[pipeline("a", "n1", 5)])
    view = view_of(message.nodes, message.jobs)
    new = running_of(pipeline("b", "n0", 6)).job
    state = dict(zip(columns(TYPES, NODES), state_of(new, view, TYPES, order_of(view, NODES)), strict=True))
    assert (state["s_n0_cpu_util"], state["s_n1_cpu_util"]) == (pytest.approx(0.7), pytest.approx(0.25))
    assert (state[f"tid_{TYPES[0]}"], state["tsize"]) == (1.0, pytest.approx(0.5))


def test_the_reward_is_the_change_of_pipelines_ended_per_minute() -> None:
    agent = Watched(net=empty_net(NODES))
    following = Following(agent)
    following.look(seen(pipeline("a", "n0", 1), pipeline("b", "n0", 2)), 0.0)
    following.look(seen(pipeline("c", "n1", 3)), 10.0)
    assert agent.reported[-1][2] == pytest.approx(2.0), "two in the last minute"
    following.look(seen(pipeline("c", "n1", 3), pipeline("d", "n1", 4)), 71.0)
    assert agent.reported[-1][2] == 0.0


def test_other_jobs_and_unknown_types_are_no_tasks_of_it() -> None:
    following = Following(Watched(net=empty_net(NODES)))
    following.look(seen(), 0.0)
    following.look(seen(pipeline("x", "n0", 1, model="other"), pipeline("y", "n0", 1, size=0.0)), 1.0)
    following.look(seen(pipeline("z", "gone", 1)), 2.0)
    assert following.decisions == 0


def test_it_learns_and_follows_nodes_that_come_and_go() -> None:
    torch.manual_seed(1)
    agent = PaperDqn(net=empty_net(NODES))
    before = clone(agent.net)  # type: ignore[arg-type]
    following = Following(agent)
    jobs: list[cluster_pb2.RunningJob] = []
    for i in range(40):
        following.look(seen(*jobs), float(i))
        jobs = [*jobs[-5:], pipeline(f"p{i}", NODES[i % 3], i + 1)]
    assert agent.net is not None
    assert not torch.equal(agent.net.hidden.weight, before.hidden.weight)
    learnt = clone(agent.net)
    following.look(seen(nodes=(*NODES, "n3")), 50.0)
    assert agent.net.nodes == (*NODES, "n3")
    torch.testing.assert_close(agent.net.hidden.weight, learnt.hidden.weight)
    torch.testing.assert_close(agent.net.last.weight[:3], learnt.last.weight)
    following.look(seen(nodes=()), 51.0)
    assert agent.net.nodes == (*NODES, "n3"), "a service without nodes has just started"
    following.look(seen(nodes=("n0", "n3")), 52.0)
    assert set(agent.net.nodes) == {"n0", "n3"}


class Service:
    """The calls of a client that a learner makes."""

    def __init__(self, cluster: cluster_pb2.Cluster) -> None:
        self.cluster, self.active, self.refuses = cluster, BASE, False
        self.activated: list[str] = []

    def get_cluster(self, request: cluster_pb2.GetClusterRequest) -> cluster_pb2.Cluster:
        return self.cluster if request.full else cluster_pb2.Cluster(cluster=self.cluster.cluster)

    def list_bundles(self, request: bundle_pb2.ListBundlesRequest) -> bundle_pb2.ListBundlesResponse:
        state = bundle_pb2.Bundle.State.ACTIVE
        return bundle_pb2.ListBundlesResponse(bundles=[bundle_pb2.Bundle(name=self.active, state=state)])

    def activate_bundle(self, request: bundle_pb2.ActivateBundleRequest, timeout_s: float) -> None:
        if self.refuses:
            raise StateUnavailableError("no")
        self.active = request.name
        self.activated.append(request.name)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    torch.manual_seed(2)
    (tmp_path / "bundles").mkdir()
    copy_bundle(tmp_path / "bundles" / BASE)
    (tmp_path / "run").mkdir()
    save_net(empty_net(NODES), tmp_path / "run" / CHECKPOINT)
    return tmp_path


def learner(run: Path, service: Service, every_s: float, keep: int = 3, key: Path | None = None) -> Learner:
    agent = PaperDqn(net=load_net(run / "run" / CHECKPOINT))
    publisher = Publisher(service, run / "bundles", run / "run", keep, key)  # type: ignore[arg-type]
    stop = threading.Event()
    return Learner(Following(agent), publisher, service, "lab", 0, 0.01, every_s, stop, lambda text: None)  # type: ignore[arg-type]


def runs(made: Learner, more: int) -> None:
    """A look and so many more, without pauses between them."""
    count = iter(range(more))

    def pause(_: float) -> bool:
        if next(count, None) is None:
            made.stop.set()
        return made.stop.is_set()

    made.stop.wait = pause  # type: ignore[method-assign, assignment]
    made.run()


def test_a_bundle_is_the_active_one_with_the_net_in_place_of_its_own(run: Path) -> None:
    service = Service(seen())
    runs(learner(run, service, every_s=0.0), 1)
    assert service.activated == [f"{BASE}-dqn-000001"]
    made, base = load(run / "bundles" / service.active), load(run / "bundles" / BASE)
    assert made.ldwp_paper is not None
    assert tuple(made.ldwp_paper.nodes) == NODES
    same = [file for file in base.manifest.files if made.manifest.files[file] == base.manifest.files[file]]
    assert same == list(base.manifest.files)
    assert made.manifest.data_sha256["ldwp_paper/command"].startswith("placewise")
    assert made.manifest.feature_schema == base.manifest.feature_schema


def test_bundles_are_never_altered_and_only_the_newest_are_kept(run: Path) -> None:
    service = Service(seen())
    made = learner(run, service, every_s=0.0)
    digests: dict[str, str] = {}
    for i in range(5):
        service.cluster = seen(*(pipeline(f"p{j}", "n0", j + 1) for j in range(i)))
        made.following.look(service.cluster, float(i))
        made._publish()
        digests[service.active] = hashlib.sha256((run / "bundles" / service.active / MANIFEST).read_bytes()).hexdigest()
        for name, digest in digests.items():
            if (run / "bundles" / name).exists():
                content = (run / "bundles" / name / MANIFEST).read_bytes()
                assert hashlib.sha256(content).hexdigest() == digest
    kept = sorted(path.name for path in (run / "bundles").iterdir() if path.is_dir())
    assert kept == [BASE, *(f"{BASE}-dqn-{i:06d}" for i in (3, 4, 5))]


def test_at_most_one_bundle_in_so_many_minutes_also_after_a_restart(run: Path) -> None:
    service = Service(seen())
    runs(learner(run, service, every_s=600.0), 3)
    assert len(service.activated) == 1
    service.cluster = seen(nodes=(*NODES, "n3"))
    runs(learner(run, service, every_s=600.0), 3)
    assert len(service.activated) == 1, "the bundle before is a second old"
    runs(learner(run, service, every_s=0.0), 1)
    assert len(load(run / "bundles" / service.active).ldwp_paper.nodes) == 4  # type: ignore[union-attr]


def test_the_minutes_count_from_the_end_of_a_publication(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that took long must not bring the next one nearer."""
    made = learner(run, Service(seen()), every_s=10.0)
    clock, began = [1000.0], []

    def takes_half_a_minute(_: Learner) -> None:
        began.append(clock[0])
        clock[0] += 30.0

    def waits_a_second(_: float) -> bool:
        clock[0] += 1.0
        if len(began) == 4:
            made.stop.set()
        return made.stop.is_set()

    monkeypatch.setattr("placewise_training.ldwp.online.command.time", SimpleNamespace(time=lambda: clock[0]))
    monkeypatch.setattr(Learner, "_publish", takes_half_a_minute)
    monkeypatch.setattr(Learner, "_is_new", lambda _: True)
    made.stop.wait = waits_a_second  # type: ignore[method-assign, assignment]
    made.run()
    assert [after - before for before, after in itertools.pairwise(began)] == [40.0] * 3


def test_nothing_new_is_no_new_bundle_and_a_refusal_is_tried_again(run: Path) -> None:
    service = Service(seen())
    service.refuses = True
    made = learner(run, service, every_s=0.0)
    runs(made, 2)
    assert service.activated == []
    service.refuses = False
    made.stop.clear()
    runs(made, 4)
    assert len(service.activated) == 1


def test_a_bundle_may_be_signed(run: Path) -> None:
    generate(run / "k.key", run / "k.pub")
    service = Service(seen())
    runs(learner(run, service, every_s=0.0, key=run / "k.key"), 1)
    assert load(run / "bundles" / service.active, [read_public(run / "k.pub")]).signed_by


def test_a_learner_goes_on_with_its_own_net(run: Path) -> None:
    service = Service(seen(nodes=("n0", "n1")))
    runs(learner(run, service, every_s=600.0), 1)
    assert load_net(run / "run" / CHECKPOINT).nodes == ("n0", "n1")


def test_one_learner_at_a_time_and_a_net_to_begin_with(tmp_path: Path) -> None:
    with (
        _alone(tmp_path / ".lock"),
        pytest.raises(typer.BadParameter, match="another learner"),
        _alone(tmp_path / ".lock"),
    ):
        pass
    options = SimpleNamespace(out=tmp_path / "none", start=None, bundles=tmp_path)
    with pytest.raises(typer.BadParameter, match="give --start, the folder"):
        learn_online("127.0.0.1:1", options.bundles, "lab", start=None, out=options.out)
    with pytest.raises(typer.BadParameter, match="no folder"):
        learn_online("127.0.0.1:1", tmp_path / "gone", "lab", start=tmp_path)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("policy --method actor-critic --nodes 6", "harmony-paper --nodes 6"),
        ("policy --nodes 6 --method=actor-critic", "harmony-paper --nodes 6"),
        ("policy --method imitate", "policy --method imitate"),
        ("policy", "policy"),
        ("ldwp --method dqn --start run", "ldwp-paper --start run"),
        ("ldwp --method dqn --online --target h:1", "ldwp-online --target h:1"),
        ("ldwp --online --method dqn --target h:1", "ldwp-online --target h:1"),
        ("ldwp --method actor-critic", "ldwp --method actor-critic"),
        ("reward --method dqn", "reward --method dqn"),
    ],
)
def test_papers_methods_have_trainers_of_their_own(given: str, found: str) -> None:
    assert by_method(given.split()) == found.split()
