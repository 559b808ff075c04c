"""The choices of scope NODE and of Partition in the log."""

import itertools
from collections import Counter
from pathlib import Path

import pytest
from tests.fakes.cluster import make_node
from tests.fakes.declog import rows
from tests.fakes.engine import CLUSTER, ask_place, logged, running_engine
from tests.fakes.explored import p_value

from placewise_core.domain.commands import PartitionCommand, PlaceCommand, Scope
from placewise_core.domain.decision import Reason
from placewise_core.domain.divisible import DivisibleTask
from placewise_core.domain.job import Job, JobId, Subtask
from placewise_log.record import DecisionRecord, decode_entry, encode
from placewise_service.declog.export import export
from placewise_service.declog.tables import row_of
from placewise_service.engine import Engine


async def row(engine: Engine) -> dict[str, object]:
    """Columns of the only decision in the log."""
    assert await logged(engine)
    ((_, data),) = await engine._parts.store.read_decisions(CLUSTER, "0", 10)
    entry = decode_entry(data)
    assert isinstance(entry, DecisionRecord)
    return row_of(CLUSTER, "1-0", encode(entry))[2]


def pipeline(name: str, *on_gpu: bool) -> Job:
    return Job(JobId(name), subtasks=tuple(Subtask(f"s{i}", kind="k", has_gpu_version=g) for i, g in enumerate(on_gpu)))


def question(*jobs: Job, **changes: object) -> PlaceCommand:
    return PlaceCommand(CLUSTER, jobs, scope=Scope.NODE, node_id="n0", **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("observe_share", [0.0, 1.0])
async def test_a_node_decision_is_logged_with_its_units(observe_share: float) -> None:
    async with running_engine(nodes=1, gpus=1, observe_share=observe_share) as engine:
        answer = await ask_place(engine, question(pipeline("p", True, False), caller="host"))
        columns = await row(engine)
        cores = int(engine._parts.views.find(CLUSTER).view.nodes.records[0].capacity.cpu_cores)  # type: ignore[union-attr]
    given = answer.decisions[0].assignments
    assert (columns["scope"], columns["node_id"], columns["caller"]) == ("NODE", "n0", "host")
    assert columns["unit_takers"] == [f"p/{task.subtask}" for task in given]
    assert columns["units"] == [f"n0/{task.cpu_unit}" for task in given]
    every = [*(f"n0/cpu{i}" for i in range(cores)), "n0/gpu0"]
    assert columns["units_open"] == (every if observe_share else None)
    assert (columns["job_propensities"], columns["job_own_propensities"]) == ([1.0], [1.0])


async def test_a_node_decision_says_for_each_job_whether_a_fallback_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """iawp-paper without the net that predicts metrics, then the rules that need none."""
    async with running_engine(nodes=1, gpus=1) as engine:
        paper = engine._parts.registry.policies_of(CLUSTER).subtasks["iawp-paper"]
        monkeypatch.setattr(paper, "lack", "NO_METRICS")
        for policy in ("iawp-paper", "random"):
            await ask_place(engine, question(pipeline("p", True, False), pipeline("q", True), policy=policy))
        assert await logged(engine)
        await export(engine._parts.store, tmp_path)
    lacking, able = rows(tmp_path, "decisions")
    assert (lacking["is_fallback"], lacking["job_fallback_reasons"]) == (True, ["NO_METRICS"] * 2)
    assert (able["is_fallback"], able["job_fallback_reasons"]) == (False, ["", ""])
    for decided in (lacking, able):
        joined = [row for row in rows(tmp_path, "joined") if row["decision_id"] == decided["id"]]
        assert [row["is_fallback"] for row in joined] == [decided["is_fallback"]] * 5  # two jobs, three subtasks


async def test_units_drawn_at_random_state_their_probability() -> None:
    """Two subtasks of p on 2 cores and 1 GPU, the second without a GPU version, then one of q."""
    jobs, draws = (pipeline("p", True, False), pipeline("q", True)), 600
    stated: dict[tuple[str, ...], float] = {}
    counted: Counter[tuple[str, ...]] = Counter()
    async with running_engine(nodes=0) as engine:
        await engine.report_nodes(CLUSTER, [make_node("n0", gpus=1, cpu_cores=2.0)], full=True)
        for seed in range(draws):
            answer = await ask_place(engine, question(*jobs, policy="random", seed=seed))
            units = tuple(task.cpu_unit for decided in answer.decisions for task in decided.assignments)
            counted[units] += 1
            stated[units] = answer.meta.propensity
            assert answer.meta.propensity == pytest.approx(
                answer.decisions[0].propensity * answer.decisions[1].propensity
            )
    expected = by_hand()
    assert stated == pytest.approx(expected, abs=1e-9)
    assert sum(expected.values()) == pytest.approx(1.0, abs=1e-9)
    assert p_value([counted[u] for u in expected], [draws * p for p in expected.values()]) > 1e-4


def by_hand() -> dict[tuple[str, ...], float]:
    """Each subtask in turn draws among the idle units that can run it."""
    found: Counter[tuple[str, ...]] = Counter()
    for drawn in itertools.product(("cpu0", "cpu1", "gpu0"), ("cpu0", "cpu1"), ("cpu0", "cpu1", "gpu0")):
        idle, probability = ["cpu0", "cpu1", "gpu0"], 1.0
        for i, unit in enumerate(drawn):
            able = [u for u in idle if i != 1 or u != "gpu0"]
            probability *= (unit in able) / max(1, len(able))
            idle = [u for u in idle if u != unit]
        found[drawn] += probability
    return {units: p for units, p in found.items() if p}


async def test_a_split_is_logged_with_its_shares_and_the_units_it_left() -> None:
    async with running_engine(nodes=3, gpus=2) as engine:
        decision = await engine.partition(PartitionCommand(CLUSTER, DivisibleTask("t", 1.0), caller="host"))
        columns = await row(engine)
    shares = decision.plan.shares
    spare = [other for other in decision.plan.excluded if other.reason is Reason.SHARE_BELOW_THRESHOLD]
    assert shares
    assert spare
    assert columns["unit_takers"] == ["t"] * len(shares)
    assert columns["units"] == [f"{share.node}/{share.unit}" for share in shares]
    assert columns["unit_scales"] == [share.scale for share in shares]
    assert columns["units_open"] == [f"{unit.node}/{unit.unit}" for unit in (*shares, *spare)]
    assert (columns["caller"], columns["scope"], columns["epoch"] is None) == ("host", None, False)
