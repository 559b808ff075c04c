"""Pipelines: order of subtasks, units, sharing of GPUs, nodes that go and come, determinism."""

from dataclasses import replace

import pytest

from placewise_core.domain.events import ClusterRecords
from placewise_core.domain.job import Job, JobId, Subtask
from placewise_core.subtasks.graph import check_pipeline
from placewise_core.view.view import ClusterView
from placewise_training.ldwp.judge import SIZES
from placewise_training.sim.faults import Fault, FaultKind, added
from placewise_training.sim.hardware import ldwp_cluster
from placewise_training.sim.pipelines.applications import (
    APPLICATIONS,
    KINDS,
    PipelineTask,
    PipelineWorkload,
    SubtaskTruth,
    gpu_relative_speed,
    pipeline_job,
    subtask_truths,
)
from placewise_training.sim.pipelines.choosers import BacklogEct, NodeChooser, PolicyChooser, loaded_pats
from placewise_training.sim.pipelines.engine import PipelineResult, PipelineSimulation
from placewise_training.sim.pipelines.oracle import OracleUnits
from placewise_training.sim.pipelines.queues import NodeQueue, RunningSubtask
from placewise_training.sim.pipelines.units import EctUnits, IawpUnits, PatsUnits, RandomUnits, UnitPolicy
from placewise_training.sim.policies import placement_policy

UNITS = {"iawp": IawpUnits, "random": RandomUnits, "ect": EctUnits, "pats": PatsUnits}


def run(
    units: UnitPolicy | None = None,
    chooser: NodeChooser | None = None,
    seed: int = 0,
    nodes: int = 4,
    **options: object,
) -> tuple[PipelineResult, PipelineSimulation]:
    tasks = PipelineWorkload(tasks=60, per_minute=30).generate("judge", seed)
    chosen = chooser or BacklogEct("judge")
    simulation = PipelineSimulation(
        ldwp_cluster(nodes), tasks, "judge", chosen, units or IawpUnits(), seed=seed, **options
    )  # type: ignore[arg-type]
    return simulation.run(), simulation


@pytest.mark.parametrize("units", sorted(UNITS))
def test_every_unit_policy_finishes_every_task_in_order_on_allowed_units(
    units: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: dict[tuple[str, str], float] = {}
    ended: dict[tuple[str, str], float] = {}
    begin, end = PipelineSimulation._start, PipelineSimulation._finish_subtask

    def note_start(self: PipelineSimulation, queue, job_id: str, subtask_id: str, unit: str) -> None:  # type: ignore[no-untyped-def]
        task, _ = queue.tasks[job_id]
        subtask = next(s for s in task.job.subtasks if s.id == subtask_id)
        assert subtask.has_gpu_version or unit.startswith("cpu")
        assert unit.startswith("gpu") or not queue.on(unit), "a core runs one subtask"
        assert (job_id, subtask_id) not in started
        started[job_id, subtask_id] = self.now_s
        assert all(ended[job_id, before] <= self.now_s for before in subtask.after)
        begin(self, queue, job_id, subtask_id, unit)

    def note_end(self: PipelineSimulation, name: str, key: tuple[str, str]) -> None:
        ended[key] = self.now_s
        end(self, name, key)

    monkeypatch.setattr(PipelineSimulation, "_start", note_start)
    monkeypatch.setattr(PipelineSimulation, "_finish_subtask", note_end)
    result, simulation = run(UNITS[units]())
    assert (result.finished, result.unfinished) == (60, 0)
    assert started.keys() == ended.keys()
    assert sum(result.node_finished.values()) == sum(result.per_minute) == 60
    assert all(not queue.running and not queue.tasks for queue in simulation.nodes.values())
    assert 0 < result.gpu_util < 1
    assert 0 < result.load_balance <= 1


def test_equal_seeds_equal_hashes() -> None:
    assert run(seed=1)[0] == run(seed=1)[0]
    assert run(seed=1)[0].event_hash != run(seed=2)[0].event_hash


@pytest.mark.parametrize("policy", ["random", "ect", "load-balance"])
def test_the_services_policies_choose_nodes(policy: str) -> None:
    result, _ = run(chooser=PolicyChooser(placement_policy(policy)))
    assert result.finished == 60


def test_pats_with_loads_spreads() -> None:
    result, _ = run(chooser=loaded_pats(), units=PatsUnits())
    assert min(result.node_finished.values()) > 0


def test_pats_counts_the_gpus_and_cores_of_a_node() -> None:
    """Empty alike, of equal models: the node with more of them."""
    alike = sorted((s for s in ldwp_cluster(11) if s.gpu_model == "P4"), key=lambda s: len(s.node.gpus))
    task = PipelineTask(pipeline_job("face_recognition", 100.0, "t", "judge"), "face_recognition", 100.0, 0.0, 0)
    nodes = {spec.id: NodeQueue(spec) for spec in alike}
    assert nodes[alike[0].id].gpus < nodes[alike[-1].id].gpus
    view = ClusterView(ClusterRecords("c", 0, "e", tuple(spec.node for spec in alike)))
    chosen = loaded_pats().choose(task, view, nodes, 0.0)
    assert nodes[chosen].gpus == nodes[alike[-1].id].gpus


def test_pats_with_loads_is_the_services_where_gpus_are_alike() -> None:
    nodes = [spec for spec in ldwp_cluster(11) if spec.gpu_model == "K80"]
    tasks = PipelineWorkload(tasks=60, per_minute=60).generate("judge", 1)
    hashes = [
        PipelineSimulation(nodes, tasks, "judge", chooser, PatsUnits(), seed=1).run().event_hash
        for chooser in (loaded_pats(), PolicyChooser(placement_policy("pats")))
    ]
    assert hashes[0] == hashes[1]


def test_pats_of_the_simulator_takes_speedups_to_be_those_on_a_k80() -> None:
    """The hash of the chooser that the simulator had for itself until the service's took its place."""
    tasks = PipelineWorkload(tasks=300, per_minute=50.0, sizes=SIZES).generate("judge", 1)
    result = PipelineSimulation(ldwp_cluster(11), tasks, "judge", loaded_pats(), PatsUnits(), seed=1).run()
    assert result.event_hash == "246280056019bf1e388eec70983bc39d"


def test_tasks_of_a_lost_node_start_again_elsewhere_and_new_nodes_work() -> None:
    late = ldwp_cluster(5)[4]
    faults = (Fault(40.0, FaultKind.DOWN, "worker0"), added(60.0, late))
    result, _ = run(faults=faults)
    assert result.finished == 60
    assert result.node_finished[late.id] > 0


def test_one_subtask_alone_takes_size_times_core_seconds() -> None:
    kinds = subtask_truths("judge")
    job = pipeline_job("face_recognition", 100.0, "t", "judge")
    task = PipelineTask(job, "face_recognition", 100.0, 0.0, 0)

    class CoresOnly(RandomUnits):
        def choose(self, subtask, usable, free):  # type: ignore[no-untyped-def]
            return next(u for u in usable if not u.is_gpu and u.name in free)

    simulation = PipelineSimulation(ldwp_cluster(1), [task], "judge", BacklogEct("judge"), CoresOnly(), is_noisy=False)
    expected = 100.0 * sum(kinds[s.kind].core_s for s in job.subtasks)
    assert simulation.run().makespan_s == pytest.approx(expected)


@pytest.mark.parametrize("truth", ["train", "judge"])
def test_unlike_subtasks_share_a_gpu_better_than_like_ones(truth: str) -> None:
    kinds = subtask_truths(truth)
    memory, compute = kinds["gmm_background"], kinds["face_locations"]
    alike = gpu_relative_speed(compute, [compute], truth)
    unlike = gpu_relative_speed(compute, [memory], truth)
    assert 0 < alike < unlike <= 1
    assert gpu_relative_speed(compute, [], truth) == 1
    full = SubtaskTruth(1.0, 5.0, (1.0, 0, 0, 0, 0, 0, 0), 0.1)
    assert gpu_relative_speed(full, [full], truth) == pytest.approx(0.5, rel=0.05)


def oracle_beside(*running: str) -> list[tuple[str, str, str]]:
    """What the oracle starts of one frame differencing on a node of one core and one GPU, where these kinds run, half
    of each done: the first on the core, the others on the GPU."""
    [spec] = ldwp_cluster(1)
    node = replace(spec.node, capacity=replace(spec.node.capacity, cpu_cores=1.0), gpus=spec.node.gpus[:1])
    simulation = PipelineSimulation([replace(spec, node=node)], [], "judge", None, IawpUnits(), is_noisy=False)
    queue, truths = simulation.nodes[node.id], subtask_truths("judge")
    for i, name in enumerate(running):
        task = PipelineTask(Job(JobId(f"r{i}")), "made up", 100.0, 0.0, i)
        unit = "gpu0" if i else "cpu0"
        rate = simulation.base_rate(queue, task, truths[name], unit)
        queue.begin((task.job.id, name), RunningSubtask(task, name, truths[name], unit, rate, 50.0, 0.0, rate))
    asked = Job(JobId("asked"), subtasks=(Subtask("s", "frame_differencing", has_gpu_version=True),))
    queue.tasks[asked.id] = (PipelineTask(asked, "made up", 100.0, 0.0, 9), asked)
    oracle = OracleUnits()
    oracle.simulation = simulation
    return oracle.assign([asked], node.id, simulation.view, queue.units(0.0), 0.0)


def test_the_oracle_of_units_takes_the_unit_where_own_end_and_loss_of_others_are_least() -> None:
    assert oracle_beside() == [("asked", "s", "gpu0")]
    # The scarcest resource of the two is not over its limit: 3 % of each are lost, less than the wait.
    assert oracle_beside("stitching", "face_encodings") == [("asked", "s", "gpu0")]
    # Three that fill the memory already: it costs them more to share than it costs the fourth to wait.
    assert oracle_beside("stitching", *["gmm_background"] * 3) == []


def test_the_oracle_of_units_knows_nothing_without_a_simulation() -> None:
    with pytest.raises(RuntimeError, match="not attached"):
        OracleUnits().assign([], "n", run()[1].view, [], 0.0)


def test_the_truths_draw_different_kinds_within_the_same_ranges() -> None:
    train, judge = subtask_truths("train"), subtask_truths("judge")
    for name, spec in KINDS.items():
        assert train[name] != judge[name]
        for truth in (train[name], judge[name]):
            assert spec.core_s[0] <= truth.core_s <= spec.core_s[1]
            assert truth.has_gpu_version == (spec.speedup[1] > 0)


@pytest.mark.parametrize("application", sorted(APPLICATIONS))
def test_applications_are_dags(application: str) -> None:
    job = pipeline_job(application, 10.0, "t", "train")
    check_pipeline(job, "subtasks")
    assert len(job.subtasks) == {"video_synopsis": 5, "intrusion_detection": 6, "face_recognition": 6}[application]
