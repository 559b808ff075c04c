"""Figures of `placewise bundle compare`: from pairs with known answers, and from the log of an engine with a shadow."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.fakes.cluster import make_job
from tests.fakes.engine import CLUSTER, ask_place, logged, place, running_engine

from placewise_core.basics.clock import ManualClock
from placewise_core.domain.commands import JobEvent, JobEventKind
from placewise_core.policies.studies.shadow import Compared, Forecasts
from placewise_log.store import LogError
from placewise_service.cli import invoke
from placewise_service.declog.export import export
from placewise_service.declog.shadows.comparison import Blocks, compare
from placewise_service.declog.shadows.pairs import Pair, Side, pairs
from placewise_service.engine import Engine

A, B = Side("old", "consolidate", False, 1.0), Side("new", "harmony", False, 3.0)


def pair(i: int, **changes: Any) -> Pair:
    forecasts = Forecasts(2.0, 3.0, 1.0, 1.5)
    compared = Compared(f"j{i}", False, ("n0", "n0"), ("n0", "n1"), "", replace(forecasts, shadow_per_s=1.0), forecasts)
    of_job = {name: changes.pop(name) for name in tuple(changes) if name in Compared.__dataclass_fields__}
    whole = Pair(f"d{i}", 60.0 * i, 2, True, A, B, replace(compared, **of_job), None)
    return replace(whole, **changes)


def test_agreement_differences_and_forecasts() -> None:
    same = {
        "is_same": True,
        "shadow_nodes": ("n0", "n0"),
        "by_active": Forecasts(2.0, 2.0),
        "by_shadow": Forecasts(4.0, 4.0),
    }
    found = compare(
        [
            *(pair(i) for i in range(6)),
            *(pair(i, **same) for i in range(6, 9)),
            pair(9, shadow_nodes=(), by_active=None, by_shadow=None),
            pair(10, explorer="random"),
            pair(11, is_same=True, answer_nodes=(), shadow_nodes=(), tasks=20, by_active=None, by_shadow=None),
        ]
    )
    assert "one step on the incumbent's states" in found["note"]
    assert (found["jobs"], found["explored"]) == (12, 1)
    assert found["agreement"]["value"] == pytest.approx(4 / 11)
    assert found["agreement"]["low"] < 4 / 11 < found["agreement"]["high"]
    assert [(row["tasks"], row["jobs"]) for row in found["agreement_by_tasks"]] == [("2 to 4", 10), ("over 16", 1)]
    assert {row["what"]: row["jobs"] for row in found["differences"]} == {
        "B on more nodes": 6,
        "only A places the job": 1,
    }
    assert {row["what"]: row["jobs"] for row in found["preferences"]} == {
        "each reward model prefers its own side": 6,
        "not scored by both reward models": 1,
    }
    of_a, of_b = found["forecasts"]["a"], found["forecasts"]["b"]
    assert of_a["where_they_differ"]["gain_of_b"]["value"] == pytest.approx(-0.5)
    assert of_b["where_they_differ"]["gain_of_b"]["value"] == pytest.approx(0.5)
    assert of_a["all"]["gain_of_b"]["value"] == pytest.approx(-6.0 / 18.0)
    assert (of_a["where_they_differ"]["prefers_b"]["value"], of_b["where_they_differ"]["prefers_b"]["value"]) == (0, 1)
    assert (found["latency_ms"]["a"]["p50"], found["latency_ms"]["b"]["p50"]) == (1.0, 3.0)


def test_what_was_realised_judges_both_reward_models() -> None:
    forecasts = {"by_active": Forecasts(2.0, 2.0, 1.0, 1.0), "by_shadow": Forecasts(2.0, 2.0, 0.25, 0.25)}
    agreed = [pair(i, is_same=True, realised_per_s=0.5, **forecasts) for i in range(8)]
    others = [pair(8, realised_per_s=1.0), pair(9, realised_per_s=0.5, has_length=False), pair(10)]
    found = compare([*agreed, *others])["realised"]
    agree, differ = found["where_they_agree"], found["where_they_differ"]
    assert (agree["jobs"], differ["jobs"]) == (8, 1)
    assert agree["run_time_s"]["value"] == 2.0
    assert agree["by_a"]["mean_log_ratio"]["value"] == pytest.approx(math.log(2.0))
    assert agree["by_b"]["mean_log_ratio"]["value"] == pytest.approx(-math.log(2.0))
    assert agree["by_b"]["mean_abs_log_ratio"]["value"] == pytest.approx(math.log(2.0))


def test_preferences_of_the_reward_models() -> None:
    def by(a: float, b: float) -> Forecasts:
        return Forecasts(a, b)

    cases = {
        "both reward models prefer A": (by(2, 1), by(2, 1)),
        "both reward models prefer B": (by(1, 2), by(1, 2)),
        "each reward model prefers the other side": (by(1, 2), by(2, 1)),
        "a reward model prefers neither": (by(1, 1), by(2, 1)),
        "not scored by both reward models": (by(1, 2), None),
    }
    for what, (of_a, of_b) in cases.items():
        found = compare([pair(0, by_active=of_a, by_shadow=of_b)])
        assert [row["what"] for row in found["preferences"]] == [what]


def test_how_placements_differ() -> None:
    cases = {
        "B on fewer nodes": {"answer_nodes": ("a", "b"), "shadow_nodes": ("a", "a")},
        "as many nodes, but others": {"answer_nodes": ("a", "b"), "shadow_nodes": ("a", "c")},
        "only B places the job": {"answer_nodes": (), "shadow_nodes": ("a", "c")},
        "a fallback decided in A": {"answer": replace(A, is_fallback=True)},
        "a fallback decided in B": {"shadow": replace(B, is_fallback=True)},
    }
    for what, changes in cases.items():
        assert [row["what"] for row in compare([pair(0, **changes)])["differences"]] == [what]


def test_intervals_are_those_of_blocks_and_not_of_jobs() -> None:
    """A hundred copies of each job in its block of time say no more than one of each."""
    values = [float(i % 3 == 0) for i in range(12)]
    one = Blocks([3600.0 * i for i in range(12)], 3600.0).mean(values, range(12))
    times = [3600.0 * i + second for i in range(12) for second in range(100)]
    many = Blocks(times, 3600.0).mean([value for value in values for _ in range(100)], range(1200))
    assert many == pytest.approx(one)
    assert one["high"] - one["low"] > 0.2  # type: ignore[operator]


def test_few_blocks_have_no_interval() -> None:
    blocks = Blocks([0.0, 1.0, 2.0, 3.0], 1.0)
    assert blocks.mean([1.0, 0.0, 1.0, 0.0], range(4)) == {"value": 0.5, "low": None, "high": None}


async def shadowed_log(directory: Path) -> None:
    """Ten jobs by consolidate with load-balance in the shadow; the odd ones end as planned, after 100 s."""
    clock = ManualClock(1_800_000_000.0)
    async with running_engine(nodes=4, gpus=8, clock=clock) as engine:
        await engine.bundles.set_shadow("", policy="load-balance")
        for i in range(10):
            engine._shadowed._rests_until_s = 0.0
            job = make_job(f"j{i}", workers=1 + i % 2, single_gpu_s=200.0)
            await ask_place(engine, place(job, policy="consolidate", seed=i))
            await logged(engine)
            if i % 2:
                await ran(engine, clock, f"j{i}")
            clock.advance(600.0)
        assert await logged(engine)
        await export(engine._parts.store, directory, dangling_after_s=1e9)


async def ran(engine: Engine, clock: ManualClock, name: str) -> None:
    for kind in (JobEventKind.STARTED, JobEventKind.FINISHED):
        await engine.report_job_events(CLUSTER, [JobEvent(name, kind, event_time_s=clock.now_s())])
        clock.advance(100.0)


async def test_pairs_from_an_exported_log(tmp_path: Path) -> None:
    await shadowed_log(tmp_path)
    found = pairs(tmp_path)
    assert [each.compared.job_id for each in found] == [f"j{i}" for i in range(10)]
    assert {each.answer.policy for each in found} == {"consolidate"}
    assert {each.shadow.policy for each in found} == {"load-balance"}
    assert [each.tasks for each in found] == [1, 2] * 5
    assert [each.realised_per_s for each in found] == [None, pytest.approx(0.01)] * 5
    assert pairs(tmp_path, ["other"]) == []


async def test_the_command_prints_a_table_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await shadowed_log(tmp_path)
    words = ["bundle", "compare", "consolidate", "load-balance", "--log", str(tmp_path)]
    assert invoke([*words, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (figures["a"], figures["b"], figures["jobs"]) == ("consolidate", "load-balance", 10)
    assert 0 <= figures["agreement"]["value"] < 1
    assert figures["realised"]["where_they_agree"]["jobs"] + figures["realised"]["where_they_differ"]["jobs"] == 5
    assert figures["forecasts"]["a"]["all"]["jobs"] == 10
    assert invoke(words) == 0
    text = capsys.readouterr().out
    for words_of in (
        "one step on the incumbent's states",
        "same placement",
        "B on more nodes",
        "by both reward models",
    ):
        assert words_of in text
    assert invoke(["bundle", "compare", "harmony", "load-balance", "--log", str(tmp_path)]) == 5
    assert "consolidate and" in capsys.readouterr().err


@pytest.mark.parametrize("table", ["decisions", "joined"])
@pytest.mark.parametrize("damage", ["torn", "foreign"])
async def test_a_damaged_log_is_refused_by_the_name_of_the_file(
    table: str, damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await shadowed_log(tmp_path)
    path = next((tmp_path / table).glob("date=*/*.parquet"))
    if damage == "torn":
        path.write_bytes(path.read_bytes()[:-20])
    else:
        pq.write_table(pa.table({"x": [1]}), path)
    with pytest.raises(LogError, match=path.name):
        pairs(tmp_path)
    assert invoke(["bundle", "compare", "a", "b", "--log", str(tmp_path)]) == 6
    printed = capsys.readouterr().err.replace("\n", "")
    assert str(path) in printed
    assert "Traceback" not in printed


def test_a_folder_that_is_no_log_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["bundle", "compare", "a", "b", "--log", str(tmp_path)]) == 6
    assert "placewise log export" in capsys.readouterr().err
