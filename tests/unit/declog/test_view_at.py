"""The view of a logged decision: rebuilt, or a reason why it cannot be."""

import dataclasses
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.fakes.cluster import make_job, make_node
from tests.fakes.declog import task_on
from tests.fakes.engine import (
    CLUSTER,
    ConflictOnce,
    answer_is_on_its_way,
    ask_admit,
    ask_place,
    logged,
    place,
    running_engine,
)

from placewise_core.basics.clock import ManualClock
from placewise_core.domain.cluster import ClusterSettings, ExplorerSettings, RunningJob, RunState
from placewise_core.domain.commands import AdmitCommand, JobEvent, JobEventKind
from placewise_core.domain.decision import Reason
from placewise_core.domain.job import CoRun, GpuSharing, JobId, Resources, Role, TaskGroup
from placewise_core.policies.explore import Stop
from placewise_log.coverage import Coverage
from placewise_log.reading import ExportedLog, view_at
from placewise_log.rebuilding import NotRebuiltError
from placewise_log.record import DecisionRecord, encode
from placewise_log.repeating import Policies, decide_again
from placewise_log.repeating_calls import admit_again
from placewise_service.declog.export import export
from placewise_service.declog.problems import Problems
from placewise_service.declog.tables import row_of
from placewise_service.declog.upkeep.stats import stats_of
from placewise_service.engine import Engine


async def exported(engine: Engine, directory: Path) -> ExportedLog:
    await logged(engine)
    await engine._view_log.write()
    await export(engine._parts.store, directory)
    return ExportedLog(directory)


def records(log: ExportedLog) -> list[DecisionRecord]:
    return list(log.records())


def policies_of(engine: Engine) -> dict[str, Policies]:
    placer = engine._placing.placer
    found = Policies(placer.policies, placer.explorers, placer.interference, placer.fallback)
    return {engine._parts.registry.active: found}


def rewritten(directory: Path, kind: str, **changes: object) -> ExportedLog:
    """The log without the views' rows of this kind, or with other values in them."""
    for path in directory.glob("views/date=*/*.parquet"):
        table = pq.read_table(path, partitioning=None)
        rows = [row if row["kind"] != kind else row | changes for row in table.to_pylist()]
        kept = [row for row in rows if row["kind"] != kind or changes]
        pq.write_table(pa.Table.from_pylist(kept, schema=table.schema), path)
    return ExportedLog(directory)


def rewrite_decisions(directory: Path, **changes: object) -> None:
    for path in directory.glob("decisions/date=*/*.parquet"):
        table = pq.read_table(path, partitioning=None)
        pq.write_table(pa.Table.from_pylist([row | changes for row in table.to_pylist()], schema=table.schema), path)


def replaced_stops(record: DecisionRecord, stops: dict[str, Stop]) -> DecisionRecord:
    (draw,) = record.draws
    return dataclasses.replace(record, draws=(dataclasses.replace(draw, stops=stops),))


async def test_a_job_of_a_request_sees_the_earlier_ones_on_its_view(tmp_path: Path) -> None:
    async with running_engine(nodes=2) as engine:
        await ask_place(engine, place(make_job("before", 2)))
        await ask_place(engine, place(make_job("a", 3), make_job("b", 3)))
        log = await exported(engine, tmp_path)
    _, asked = records(log)
    assert set(view_at(tmp_path, asked.decision_id).jobs) == {"before"}
    assert set(log.view_at(asked, "a").jobs) == {"before"}
    seen = log.view_at(asked, "b")
    assert set(seen.jobs) == {"before", "a"}
    assert int(seen.usage.free_gpus.sum()) == 8 - 2 - 3
    with pytest.raises(ValueError, match="placed no job 'c'"):
        log.view_at(asked, "c")
    with pytest.raises(KeyError):
        log.view_at("019aa3c5-5a00-7000-8000-000000000001")


async def test_another_policy_is_asked_what_it_would_have_placed(tmp_path: Path) -> None:
    async with running_engine(nodes=3) as engine:
        await ask_place(engine, place(make_job("a", 1), policy="consolidate"))
        await ask_place(engine, place(make_job("b", 1), policy="consolidate"))
        log = await exported(engine, tmp_path)
        _, asked = records(log)
        (same,) = decide_again(asked, log.views_of(asked), policies_of(engine))
        (other,) = decide_again(asked, log.views_of(asked), policies_of(engine), "load-balance")
    assert same.tasks == asked.place.decisions[0].assignments  # type: ignore[union-attr]
    assert other.tasks is not None
    assert other.tasks[0].node != same.tasks[0].node


@pytest.mark.parametrize(("reading_s", "is_late"), [(0.7e9, False), (1e12, True)])
@pytest.mark.parametrize("in_force", ["consolidate", "search"])
async def test_an_explorer_that_the_clock_stopped_is_stopped_again(
    reading_s: float, is_late: bool, in_force: str, tmp_path: Path
) -> None:
    """Half of the deadline of 1e9 s is the search's; the clock is read when it begins and before each further
    proposer."""
    async with running_engine(nodes=6, gpus=4) as engine:
        named = (ExplorerSettings("load-balance"), ExplorerSettings("search"))
        await engine.update_settings(CLUSTER, ClusterSettings(exploration_rate=0.5, explorers=named))
        for i in range(40):
            readings = iter([0.0] * (1 + i % 4))
            search = engine._placing.placer.policies["search"]
            search._monotonic_s = lambda at=readings: next(at, reading_s)  # type: ignore[attr-defined]
            job = make_job(f"j{i}", workers=1 + i % 3, cpu_cores=0.5, total_epochs=5.0)
            await ask_place(engine, place(job, policy=in_force), deadline_s=1e9)
            await answer_is_on_its_way()
            if i > 1:
                await engine.report_job_events(CLUSTER, [JobEvent(JobId(f"j{i - 2}"), JobEventKind.FINISHED)])
        search._monotonic_s = lambda: 0.0  # type: ignore[attr-defined]
        log = await exported(engine, tmp_path)
        differing = 0
        for asked in records(log):
            assert asked.place is not None
            seen = list(log.views_of(asked))
            (again,) = decide_again(asked, [view.fork() for view in seen], policies_of(engine))
            (given,) = asked.place.decisions
            assert (again.tasks, again.propensity) == (given.assignments or None, given.propensity)
            stop = asked.draws[0].stops["search"]
            assert stop.is_late is is_late
            shown = {"policy": "search", "asked": stop.asked, "is_late": is_late}
            assert row_of(CLUSTER, "1-0", encode(asked))[2]["job_stopped"] == [[shown]]
            unaware, older = (replaced_stops(asked, stops) for stops in ({"nobody": stop}, {}))
            (other,) = decide_again(unaware, [view.fork() for view in seen], policies_of(engine))
            (before,) = decide_again(older, seen, policies_of(engine))
            assert before.tasks == again.tasks
            differing += (other.tasks, other.propensity) != (again.tasks, again.propensity)
    assert differing > 3


async def test_a_dry_run_asks_as_though_its_job_held_nothing_and_leaves_the_order(tmp_path: Path) -> None:
    async with running_engine(nodes=1) as engine:
        for name in ("a", "b"):
            await ask_place(engine, place(make_job(name, 2)))
        await ask_place(engine, place(make_job("a", 2), is_dry_run=True))
        live = await engine._parts.views.get(CLUSTER)
        assert list(live.view.jobs) == ["a", "b"]
        log = await exported(engine, tmp_path)
        asked = records(log)[-1]
        assert set(log.view_at(asked).jobs) == {"b"}
        (again,) = decide_again(asked, log.views_of(asked), policies_of(engine))
    assert again.tasks == asked.place.decisions[0].assignments  # type: ignore[union-attr]


async def test_a_dry_run_knows_the_co_runs_that_its_running_job_brought(tmp_path: Path) -> None:
    """The service reads the co-runs of all running jobs, then takes the asked one off the view."""
    worse = GpuSharing(True, 3.0, (CoRun("other", 0.05, 0.05),))
    cpus = (TaskGroup(Role.WORKER, 1, Resources(cpu_cores=1.0)),)
    async with running_engine(nodes=0) as engine:
        await engine.report_nodes(CLUSTER, [make_node("n0", 1, max_jobs_per_gpu=2)], full=True)
        sharing = dataclasses.replace(make_job("x"), model="other", gpu_sharing=GpuSharing(True, 3.0))
        running = dataclasses.replace(make_job("a"), model="own", groups=cpus, gpu_sharing=worse)
        await ask_place(engine, place(sharing))
        await ask_place(engine, place(running))
        asked_job = dataclasses.replace(make_job("a"), model="own", gpu_sharing=GpuSharing(True, 3.0))
        answer = await ask_place(engine, place(asked_job, is_dry_run=True))
        log = await exported(engine, tmp_path)
        asked = records(log)[-1]
        (again,) = decide_again(asked, log.views_of(asked), policies_of(engine))
    assert [blocker.reason for blocker in answer.decisions[0].blockers][:1] == [Reason.SLOWDOWN_LIMIT]
    assert (again.outcome, again.blockers) == (answer.decisions[0].outcome, answer.decisions[0].blockers)


async def test_other_dry_runs_see_the_jobs_that_they_ask_about(tmp_path: Path) -> None:
    async with running_engine(nodes=2) as engine:
        await ask_place(engine, place(make_job("a", 2)))
        await ask_admit(engine, AdmitCommand(CLUSTER, "q", (make_job("a", 2), make_job("b")), is_dry_run=True))
        log = await exported(engine, tmp_path)
        asked = records(log)[-1]
        assert set(log.view_at(asked).jobs) == {"a"}
        again = admit_again(asked, log.view_at(asked), engine._parts.registry.shadows.active.admission)
    assert again == asked.admit.plan  # type: ignore[union-attr]


async def test_an_answer_after_a_conflict_is_decided_again_on_the_view_of_its_last_attempt(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    async with running_engine(nodes=1, gpus=2, store=ConflictOnce(clock), clock=clock) as engine:
        answer = await ask_place(engine, place(make_job("a")))
        log = await exported(engine, tmp_path)
        (asked,) = records(log)
        (again,) = decide_again(asked, log.views_of(asked), policies_of(engine))
    assert asked.asked is not None
    assert [node for node, _ in asked.asked.conflicts] == ["n0"]
    assert set(log.view_at(asked).jobs) == {"other"}
    assert again.tasks == answer.decisions[0].assignments


async def test_a_gang_assumed_twice_is_on_the_view_from_the_first_time(tmp_path: Path) -> None:
    async with running_engine(nodes=2) as engine:
        live = await engine._parts.views.get(CLUSTER)
        gang = RunningJob(make_job("a", 2), (task_on("n0", 0),), RunState.RESERVED, "r", decision_id="d")
        live.assume([gang])
        version = live.view.version
        await engine.report_nodes(CLUSTER, [make_node("n5")], full=False)
        live.assume([gang])
        (read,) = engine._parts.read(live, 0.0)
    assert (read.assumed, read.version) == ((("r", version),), version + 1)


async def test_admissions_have_their_view_too(tmp_path: Path) -> None:
    async with running_engine(nodes=2) as engine:
        await ask_place(engine, place(make_job("a", 2)))
        await ask_admit(engine, AdmitCommand(CLUSTER, "q", (make_job("b"),)))
        log = await exported(engine, tmp_path)
    asked = records(log)[-1]
    assert asked.admit is not None
    assert set(log.view_at(asked).jobs) == {"a"}


async def test_progress_and_ends_are_on_the_view(tmp_path: Path) -> None:
    async with running_engine(nodes=2) as engine:
        for name in ("a", "b"):
            await ask_place(engine, place(make_job(name)))
            await answer_is_on_its_way()
        events = [
            JobEvent(JobId("a"), JobEventKind.PROGRESS, speed=2.0, epochs_done=1.0),
            JobEvent(JobId("b"), JobEventKind.FINISHED),
        ]
        await engine.report_job_events(CLUSTER, events)
        await ask_place(engine, place(make_job("c")))
        log = await exported(engine, tmp_path)
    seen = log.view_at(records(log)[-1])
    assert {job.id: job.speed for job in seen.jobs.values()} == {"a": 2.0}


@pytest.mark.parametrize(
    ("kind", "why"),
    [("events", "the event of version [0-9]+ was dropped"), ("snapshot", "no snapshot of the view")],
)
async def test_a_part_that_was_dropped_is_named(kind: str, why: str, tmp_path: Path) -> None:
    async with running_engine(nodes=2) as engine:
        for name in ("a", "b"):
            await ask_place(engine, place(make_job(name)))
            await answer_is_on_its_way()
        await exported(engine, tmp_path)
    assert stats_of(tmp_path, Problems()).views == {"complete": 2}
    log = rewritten(tmp_path, kind)
    with pytest.raises(NotRebuiltError, match=f"cannot be rebuilt: {why}"):
        log.view_at(records(log)[-1])
    assert stats_of(tmp_path, Problems()).views["dropped"] >= 1


async def test_a_view_with_another_digest_is_refused(tmp_path: Path) -> None:
    async with running_engine(nodes=2) as engine:
        await ask_place(engine, place(make_job("a")))
        log = await exported(engine, tmp_path)
    (asked,) = records(log)
    (read,) = asked.reads
    assert log.view_at(asked).digest() == read.digest
    other = dataclasses.replace(asked, reads=(dataclasses.replace(read, digest=read.digest ^ 1),))
    with pytest.raises(NotRebuiltError, match="differs from the one that was read"):
        log.view_at(other)


async def test_a_gang_that_was_dropped_is_named(tmp_path: Path) -> None:
    async with running_engine(nodes=2) as engine:
        await ask_place(engine, place(make_job("a")))
        log = await exported(engine, tmp_path)
    (asked,) = records(log)
    (read,) = asked.reads
    other = dataclasses.replace(asked, reads=(dataclasses.replace(read, assumed=(("r-9", read.version),)),))
    with pytest.raises(NotRebuiltError, match="the gang of reservation r-9 was dropped"):
        log.view_at(other)
    assert stats_of(tmp_path, Problems()).views == {"complete": 1}
    rewrite_decisions(tmp_path, view_assumed=["r-9"])
    assert stats_of(tmp_path, Problems()).views == {"dropped": 1}


async def test_a_gang_in_flight_is_found_in_its_refusal_or_its_event(tmp_path: Path) -> None:
    async with running_engine(nodes=3) as engine:
        live = await engine._parts.views.get(CLUSTER)
        first = await engine.place(place(make_job("held")))
        refused = RunningJob(make_job("x"), (task_on("n2", 0),), RunState.RESERVED, "r-x", decision_id="d")
        live.assume([refused])
        await ask_place(engine, place(make_job("a")))
        await live.give_back([refused])
        held = (await first.settled()).decisions[0].reservation_id
        log = await exported(engine, tmp_path)
    asked = next(record for record in records(log) if record.jobs[0].id == "a")
    assert {name for name, _ in asked.reads[0].assumed} == {held, "r-x"}
    assert {"held", "x"} <= set(log.view_at(asked).jobs)
    assert stats_of(tmp_path, Problems()).views == {"complete": 2}
    log = rewritten(tmp_path, "gangs")
    with pytest.raises(NotRebuiltError, match="the gang of reservation r-x was dropped"):
        log.view_at(asked)
    assert stats_of(tmp_path, Problems()).views == {"complete": 1, "dropped": 1}


async def test_a_gang_refused_after_its_view_was_loaded_again_is_found(tmp_path: Path) -> None:
    async with running_engine(nodes=3) as engine:
        live = await engine._parts.views.get(CLUSTER)
        refused = RunningJob(make_job("x"), (task_on("n2", 0),), RunState.RESERVED, "r-x", decision_id="d")
        live.assume([refused])
        await ask_place(engine, place(make_job("a")))
        await live.load()
        await live.give_back([refused])
        log = await exported(engine, tmp_path)
    (asked,) = records(log)
    assert "r-x" in {name for name, _ in asked.reads[0].assumed}
    assert "x" in log.view_at(asked).jobs
    assert stats_of(tmp_path, Problems()).views == {"complete": 1}


async def test_a_record_of_an_older_version_says_nothing_of_its_view(tmp_path: Path) -> None:
    async with running_engine(nodes=2) as engine:
        await ask_place(engine, place(make_job("a")))
        log = await exported(engine, tmp_path)
    (asked,) = records(log)
    with pytest.raises(NotRebuiltError, match="does not say which view"):
        log.view_at(dataclasses.replace(asked, reads=()))


async def test_the_example_of_the_document_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with running_engine(nodes=2) as engine:
        await ask_place(engine, place(make_job("a", 2)))
        await exported(engine, tmp_path)
    text = (Path(__file__).parents[3] / "docs/decision-log.md").read_text("utf-8")
    section = text[text.index("### The view at a decision") :].partition("### joined")[0]
    code = "\n".join(re.findall(r"```python\n(.+?)```", section, re.DOTALL))
    exec(compile(code.replace('"DIR"', repr(str(tmp_path))), "decision-log.md", "exec"), {})
    assert "a [('worker-0', 'n" in capsys.readouterr().out


async def test_the_record_says_which_seed_was_the_callers_and_how_long_a_slot_was(tmp_path: Path) -> None:
    async with running_engine(nodes=2) as engine:
        await ask_place(engine, place(make_job("a"), seed=7))
        (asked,) = records(await exported(engine, tmp_path))
    assert asked.asked is not None
    assert (asked.asked.is_seeded, asked.asked.slot_s, asked.asked.settled) == (True, 10.0, ())


def test_a_gap_in_the_events_covers_no_view_behind_it() -> None:
    events = [("events", "c", "e", 1, 4), ("events", "c", "e", 5, 9), ("events", "c", "e", 11, 20)]
    log = Coverage([("snapshot", "c", "v", 3, 3), ("snapshot", "c", "w", 10, 10), *events, ("gangs", "c", "v", 0, 0)])
    assert [version for version in range(12) if log.has("c", "e", "v", version)] == [3, 4, 5, 6, 7, 8, 9]
    assert [version for version in range(25) if log.has("c", "e", "w", version)] == list(range(10, 21))
    assert not log.has("c", "other", "v", 4)
    assert not log.has("other", "e", "v", 4)


async def test_views_come_out_alike_in_any_order_and_are_the_callers_own(tmp_path: Path) -> None:
    """Its digest is compared each time: a view that kept something of another question would be refused."""
    async with running_engine(nodes=4) as engine:
        for i in range(24):
            await ask_place(engine, place(make_job(f"j{i}", 1, total_epochs=5.0)))
            kind = JobEventKind.FINISHED if i % 2 else JobEventKind.PROGRESS
            await engine.report_job_events(CLUSTER, [JobEvent(JobId(f"j{i // 2}"), kind, speed=1.0, epochs_done=1.0)])
        log = await exported(engine, tmp_path)
    asked = records(log)
    in_order = [set(log.view_at(record).jobs) for record in asked]
    for i in (*reversed(range(24)), *range(0, 24, 5), 7, 7):
        view = log.view_at(asked[i])
        assert set(view.jobs) == in_order[i]
        for job in list(view.jobs):
            view.remove_job(job)
        view.estimates.profiles.clear()
        view.queues.clear()
