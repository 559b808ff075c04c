"""The observation of a choice in the log: the arrays that the net read, or an encoding of the view."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.fakes.cluster import make_job, make_node
from tests.fakes.engine import CLUSTER, answer_is_on_its_way, ask_place, logged, place, running_engine
from tests.fakes.explored import PrintedHarmony, PrintedLdwp
from tests.fakes.net_policies import Spreads

from placewise_core.basics.arrays import BoolArray, Float32
from placewise_core.domain.cluster import ClusterSettings, ExplorerSettings
from placewise_core.domain.decision import PlaceDecision
from placewise_core.domain.job import Architecture, Job, Resources, Role, Subtask, TaskGroup
from placewise_core.gang.actions import decode_action
from placewise_core.inputs.cluster import Encoder, Observation
from placewise_core.inputs.reward import PartTokens
from placewise_core.inputs.tables import JOB_COLUMNS
from placewise_core.policies import harmony
from placewise_core.policies.harmony import ClusterState, PolicyState, node_odds
from placewise_core.policies.plan import Plan
from placewise_core.policies.search import SpeedScorer
from placewise_log.record import Choice, DecisionRecord, decode_entry
from placewise_service.engine import Engine

IS_CURRENT = [column.name for column in JOB_COLUMNS].index("is_current")


class SpiedNet(Spreads):
    """Notes copies of the arrays that it reads, and the masks under which its answers are read, by the token of the
    new job."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, tuple[object, Observation]] = {}
        self.tokens: dict[int, tuple[object, bytes]] = {}
        self.read_beside: dict[bytes, Observation] = {}
        self.steps: dict[bytes, list[bytes]] = {}
        self.masks: dict[bytes, list[BoolArray]] = {}
        self._last = b""

    def look(self, seen: Observation) -> ClusterState:
        state = super().look(seen)
        kept = Observation(seen.nodes.copy(), seen.jobs.copy(), seen.placement.copy(), seen.current)
        self.seen[id(state)] = state, kept
        return state

    def read(self, cluster: ClusterState, jobs: Float32) -> PolicyState:
        state = super().read(cluster, jobs)
        self.tokens[id(state)] = state, jobs.tobytes()
        self.read_beside[jobs.tobytes()] = self.seen[id(cluster)][1]
        return state

    def decode(self, state: PolicyState, job: int, step: Float32) -> Float32:
        self._last = self.tokens[id(state)][1]
        self.steps.setdefault(self._last, []).append(step.tobytes())
        return super().decode(state, job, step)

    def most_likely(self, logits: Float32, mask: BoolArray, task: int) -> tuple[int, float]:
        self._note(mask)
        return int(np.where(mask, logits, -np.inf).argmax()), 1.0

    def node_odds(self, logits: Float32, mask: BoolArray) -> Any:
        self._note(mask)
        return node_odds(logits, mask)

    def _note(self, mask: BoolArray) -> None:
        self.masks.setdefault(self._last, []).append(mask.copy())


class SecondIsBest(SpeedScorer):
    """A reward model that takes the search's second proposal: that of Harmony's net."""

    def speeds(self, tokens: PartTokens) -> Float32:
        ranks = np.where(np.arange(len(tokens.job)) == 1, 2.0, 1.0)[:, None]
        return np.broadcast_to(ranks, tokens.job.shape).astype(np.float32)


@pytest.fixture
def net(monkeypatch: pytest.MonkeyPatch) -> SpiedNet:
    found = SpiedNet()
    monkeypatch.setattr(harmony, "most_likely", found.most_likely)
    monkeypatch.setattr(harmony, "node_odds", found.node_odds)
    return found


def give(net: SpiedNet, engine: Engine) -> None:
    policies: Any = engine._placing.placer.policies
    policies["harmony"]._net, policies["search"]._scorer = net, SecondIsBest()


async def records_of(engine: Engine) -> list[DecisionRecord]:
    assert await logged(engine)
    found = [decode_entry(data) for _, data in await engine._parts.store.read_decisions(CLUSTER, "0", 1000)]
    return [entry for entry in found if isinstance(entry, DecisionRecord)]


def gang(name: str, workers: int, servers: int = 0, single_gpu_s: float = 100.0) -> Job:
    """Servers first in the request: the net places workers first."""
    job = make_job(name, workers=workers, single_gpu_s=single_gpu_s)
    group = TaskGroup(Role.PARAMETER_SERVER, servers, Resources(cpu_cores=1.0))
    return dataclasses.replace(job, groups=(group, *job.groups)) if servers else job


def unpacked(choice: Choice) -> dict[str, Any]:
    assert choice.mask is not None
    return {"mask": choice.mask.unpack(), **{name: tensor.unpack() for name, tensor in choice.observation.items()}}


def check_is_as_read(choice: Choice, net: SpiedNet, answer: PlaceDecision, names: Sequence[str]) -> None:
    found = unpacked(choice)
    token = found["jobs"][:1].tobytes()
    seen = net.read_beside[token]
    for logged_array, read in (
        (found["nodes"], seen.nodes),
        (found["jobs"][1:], seen.jobs),
        (found["placement"][1:], seen.placement),
    ):
        assert (logged_array.dtype, logged_array.shape) == (read.dtype, read.shape)
        assert logged_array.tobytes() == read.tobytes()
    assert [step.tobytes() for step in found["steps"]] == net.steps[token][: len(found["steps"])]
    assert not found["placement"][0].any()
    assert not found["jobs"][:, IS_CURRENT].any()
    (decided,) = [each for each in answer.decisions if each.job_id == choice.job_id]
    tasks = len(decided.assignments)
    assert found["mask"].tobytes() == np.array(net.masks[token][:tasks]).tobytes()
    assert choice.nodes == tuple(names[m] for m in found["rows"].tolist())
    assert all(found["mask"][step, action] for step, action in enumerate(choice.actions))
    taken = [decode_action(action, len(choice.nodes)) for action in choice.actions]
    placed = sorted((role.value, choice.nodes[c]) for role, c in taken)
    assert placed == sorted((task.role.value, task.node) for task in decided.assignments)


@pytest.mark.parametrize("nodes", [4, 100])
@pytest.mark.parametrize("policy", ["harmony", "search", "harmony-sample"])
async def test_the_observation_is_what_harmonys_net_read(policy: str, nodes: int, net: SpiedNet) -> None:
    """Whoever asked the net; on more nodes than it looks at, and for jobs of one request."""
    async with running_engine(nodes=nodes, gpus=8, observe_share=1.0) as engine:
        if policy == "harmony-sample":
            explorers = (ExplorerSettings("harmony-sample"),)
            await engine.update_settings(CLUSTER, ClusterSettings(exploration_rate=1.0, explorers=explorers))
        give(net, engine)
        await ask_place(engine, place(gang("before", 3), policy="load-balance", seed=1))
        await answer_is_on_its_way()
        jobs = (gang("a", 2, single_gpu_s=100.0), gang("b", 3, servers=2), gang("c", 4, single_gpu_s=900.0))
        in_force = "load-balance" if policy == "harmony-sample" else policy
        answer = await ask_place(engine, place(*jobs, policy=in_force, seed=1))
        names = [record.id for record in (await engine.get_cluster(CLUSTER)).view.nodes.records]
        record = (await records_of(engine))[-1]
    assert sorted(choice.job_id for choice in record.choices) == ["a", "b", "c"]
    for choice in record.choices:
        check_is_as_read(choice, net, answer, names)
        (job,) = [each for each in jobs if each.id == choice.job_id]
        assert len(choice.actions) == job.task_count
        assert choice.observation["nodes"].shape[0] == min(nodes, 32)
        assert len(choice.jobs) == len(choice.observation["jobs"].unpack())


@pytest.mark.parametrize("policy", ["load-balance", "harmony"])
async def test_the_observation_of_a_policy_that_read_no_tensors_is_an_encoding(
    policy: str, net: SpiedNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of one whose net failed, so that its heuristic answered."""
    job = gang("a", 2)
    async with running_engine(nodes=3, gpus=4, observe_share=1.0) as engine:
        give(net, engine)
        monkeypatch.setattr(net, "decode", None)
        view = (await engine.get_cluster(CLUSTER)).view
        expected = Encoder().encode(view, [job], 1_000_000.0)
        await ask_place(engine, place(job, policy=policy))
        (record,) = await records_of(engine)
    (choice,) = record.choices
    found = unpacked(choice)
    for name in ("nodes", "jobs", "placement"):
        assert found[name].tobytes() == getattr(expected, name).tobytes(), name
    assert found["rows"].tolist() == [0, 1, 2]
    assert found["mask"].shape == (2, 6)
    assert bool(record.draws[0].fallback_reason) == (policy == "harmony")


async def test_an_explorer_whose_plan_places_the_rest_has_the_steps_of_its_draws(
    net: SpiedNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No node that the net may draw leaves the second task a plan."""

    def closed(plan: Plan, group: TaskGroup) -> BoolArray:
        is_open = open_to(plan, group)
        return np.zeros_like(is_open) if plan._gang.placed else is_open

    open_to = Plan.open_to
    async with running_engine(nodes=4, gpus=8, observe_share=1.0) as engine:
        explorers = (ExplorerSettings("harmony-sample"),)
        await engine.update_settings(CLUSTER, ClusterSettings(exploration_rate=1.0, explorers=explorers))
        give(net, engine)
        monkeypatch.setattr(Plan, "open_to", closed)
        answer = await ask_place(engine, place(gang("a", 2), seed=1))
        names = [record.id for record in (await engine.get_cluster(CLUSTER)).view.nodes.records]
        (record,) = await records_of(engine)
    (choice,) = record.choices
    found = unpacked(choice)
    assert len(choice.actions) == len(found["mask"]) == len(found["steps"]) == 1 < len(answer.decisions[0].assignments)
    nodes = [task.node for task in answer.decisions[0].assignments]
    assert names[choice.actions[0]] in nodes
    assert found["nodes"].tobytes() == net.looked[-1].nodes.tobytes()


class SpiedNodes(PrintedHarmony, PrintedLdwp):
    """A net of any of the three policies that read no tokens; notes copies of what it reads."""

    def __init__(self, names: Sequence[str], nodes: object) -> None:
        super().__init__(names)
        self.given: list[Float32] = []
        self._nodes = nodes

    @property
    def nodes(self) -> Any:
        return self._nodes

    def logits(self, rows: Float32) -> Float32:
        self.given.append(rows.copy())
        return super().logits(rows)

    def values(self, state: Float32) -> Float32:
        self.given.append(state.copy())
        return super().values(state)[: len(state)] if state.ndim == 2 else super().values(state)


@pytest.mark.parametrize("policy", ["harmony-paper", "ldwp", "ldwp-paper"])
async def test_the_steps_of_nets_that_read_no_tokens_are_what_they_read(policy: str) -> None:
    """The last node takes one task, so that of LDWP's net the second one has a node less."""
    names = [f"n{i}" for i in range(4)]
    spied = SpiedNodes(names, len(names) if policy == "harmony-paper" else names)
    job = gang("a", 3) if policy == "harmony-paper" else pipeline("a", 3)
    async with running_engine(nodes=0, observe_share=1.0) as engine:
        nodes = [make_node(name, gpus=1 if name == "n3" else 4) for name in names]
        await engine.report_nodes(CLUSTER, nodes, full=True)
        engine._placing.placer.policies[policy]._net = spied  # type: ignore[attr-defined]
        view = (await engine.get_cluster(CLUSTER)).view
        expected = Encoder().encode(view, [job], 1_000_000.0)
        answer = await ask_place(engine, place(job, policy=policy))
        (record,) = await records_of(engine)
    assert not record.draws[0].fallback_reason
    (choice,) = record.choices
    found = unpacked(choice)
    assert found["nodes"].tobytes() == expected.nodes.tobytes()
    assert found["jobs"].tobytes() == expected.jobs.tobytes()
    steps = list(found["steps"])
    if policy == "ldwp":
        assert found["step_rows"].tolist() == [[0, 1, 2, 3], [0, 1, 2, -1], [0, 1, 2, -1]]
        steps = [step[rows >= 0] for step, rows in zip(steps, found["step_rows"], strict=True)]
    assert [step.tobytes() for step in steps] == [given.tobytes() for given in spied.given]
    assert [choice.nodes[action] for action in choice.actions] == [t.node for t in answer.decisions[0].assignments]
    assert all(found["mask"][step, action] for step, action in enumerate(choice.actions))


def pipeline(name: str, workers: int) -> Job:
    stages = (Subtask("s", "kind", size=100.0),)
    job = make_job(name, workers=workers, subtasks=stages, architecture=Architecture.PIPELINE)
    return dataclasses.replace(job, model="video")
