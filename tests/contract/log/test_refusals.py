"""Two replicas on one Redis that refuse the same: the log counts it as one refusal."""

from pathlib import Path

import pyarrow.parquet as pq
from tests.contract.log.replicas import CLUSTER, engines
from tests.fakes.cluster import make_job, make_node
from tests.fakes.servers.redis_server import RedisServer

from placewise_core.domain.commands import AdmitCommand
from placewise_core.domain.decision import Verdict
from placewise_core.domain.job import Job
from placewise_log.reading import ExportedLog
from placewise_service.declog.export import export
from placewise_service.declog.problems import Problems
from placewise_service.declog.upkeep.stats import stats_of
from placewise_service.engine import Engine


async def refused(engine: Engine, *jobs: Job, seed: int | None = None) -> str:
    """Id of the answer."""
    decision = await (await engine.admit_or_wait(AdmitCommand(CLUSTER, "q", jobs, "fifo", seed=seed))).settled()
    assert {given.verdict for given in decision.plan.admissions} == {Verdict.WAIT}
    return decision.meta.decision_id


async def written(engine: Engine) -> None:
    engine._parts.telemetry.afterwards.run()
    await engine._parts.sink.flush()


async def test_a_refusal_that_two_replicas_repeat_is_one_refusal_of_the_log(tmp_path: Path) -> None:
    server = RedisServer().start()
    try:
        one, two = await engines(server.url)
        await one.report_nodes(CLUSTER, [make_node("n0", gpus=2)], full=True)
        large, other = make_job("large", 8), make_job("other", 8)
        ids = []
        for engine in (one, two, one, two):
            ids.append(await refused(engine, large))
            await written(engine)
        assert ids[2:] == ids[:2], "each answer's id is that of a record"
        both = await refused(two, large, other)
        await written(two)
        again = await refused(one, large, other)
        await written(one)
        alone = await refused(one, other)
        for engine in (one, two):
            await engine.drain(30.0)
        await export(one._parts.store, tmp_path)
        found_records = list(ExportedLog(tmp_path).records())
        records = {record.decision_id: record.seen for record in found_records}
        jobs = {record.decision_id: record.jobs for record in found_records}
        firsts = {name: seen.refused_before for name, seen in records.items() if seen is not None}
        assert {name for name, before in firsts.items() if len(before) == len(jobs[name])} == {ids[1], again, alone}
        assert firsts[ids[1]] == {"large": ids[0]}
        assert firsts[both] == {"large": ids[0]}, "of the other job it is the first refusal"
        assert firsts[again] == {"large": ids[0], "other": both}
        assert firsts[alone] == {"other": both}
        found = stats_of(tmp_path, Problems())
        assert found.decisions == {"AdmitOrWait WAIT": 2}
        assert found.refusals_left_out == 5, "two by each replica for itself, three whose jobs the log had already"
        for engine in (one, two):
            await engine.close()
    finally:
        server.stop()


async def test_a_list_that_grows_has_each_refusal_of_a_job_once(tmp_path: Path) -> None:
    server = RedisServer().start()
    try:
        one, two = await engines(server.url)
        await one.report_nodes(CLUSTER, [make_node("n0", gpus=2)], full=True)
        waiting: list[Job] = []
        for number in range(6):
            waiting.append(make_job(f"large-{number}", 8))
            await refused(one, *waiting)
            await written(one)
        small = make_job("small", 1)
        given = await (await two.admit_or_wait(AdmitCommand(CLUSTER, "q", (*waiting, small), "fifo"))).settled()
        assert [each.verdict for each in given.plan.admissions].count(Verdict.ADMIT) == 1
        await written(two)
        for engine in (one, two):
            await engine.drain(30.0)
        counted = (await export(one._parts.store, tmp_path)).joined
        rows = pq.read_table(tmp_path / "joined").to_pylist()
        assert sorted(row["job_id"] for row in rows) == sorted([job.id for job in waiting] + ["small"])
        assert counted["REFUSED_AGAIN"] == 15 + 6
        for engine in (one, two):
            await engine.close()
    finally:
        server.stop()
