"""Two replicas on one Redis that refuse the same: the log counts it as one refusal."""

from pathlib import Path

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
        await refused(one, other)
        for engine in (one, two):
            await engine.drain(30.0)
        await export(one._parts.store, tmp_path)
        records = {record.decision_id: record.seen for record in ExportedLog(tmp_path).records()}
        assert {name for name, seen in records.items() if seen is not None and seen.first_refusal} == {ids[1], again}
        assert records[ids[1]].first_refusal == ids[0]  # type: ignore[union-attr]
        assert records[again].first_refusal == both  # type: ignore[union-attr]
        found = stats_of(tmp_path, Problems())
        assert found.decisions == {"AdmitOrWait WAIT": 3}
        assert found.refusals_left_out == 4, "two by each replica for itself, two that the other wrote first"
        for engine in (one, two):
            await engine.close()
    finally:
        server.stop()
