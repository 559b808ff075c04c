"""A report of progress is logged with the jobs on the same nodes at that time."""

from tests.fakes.cluster import make_job
from tests.fakes.engine import CLUSTER, ask_place, logged, place, running_engine

from placewise_core.domain.commands import JobEvent, JobEventKind
from placewise_core.domain.job import JobId
from placewise_log.record import OutcomeRecord, decode_entry


async def test_a_report_of_progress_names_the_jobs_beside_it() -> None:
    async with running_engine(nodes=1, gpus=4) as engine:
        for name in ("a", "b"):
            await ask_place(engine, place(make_job(name)))
        report = JobEvent(JobId("a"), JobEventKind.PROGRESS, speed=1.0)
        await engine.report_job_events(CLUSTER, [report, JobEvent(JobId("a"), JobEventKind.FINISHED)])
        assert await logged(engine)
        found = [decode_entry(data) for _, data in await engine._parts.store.read_decisions(CLUSTER, "0", 1000)]
    outcomes = [entry for entry in found if isinstance(entry, OutcomeRecord)]
    assert [entry.neighbours for entry in outcomes] == [("b",), None]
