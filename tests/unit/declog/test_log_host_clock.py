"""An export in the middle of a replay: whether H has passed, or a job was silent for long, goes by the host's clock."""

from pathlib import Path

from tests.fakes.cluster import make_job, make_node
from tests.fakes.declog import job_rows
from tests.fakes.engine import CLUSTER, answer_is_on_its_way, ask_place, logged, place, running_engine

from placewise_core.domain.cluster import ClusterSettings
from placewise_core.domain.commands import JobEvent, JobEventKind
from placewise_core.domain.job import JobId
from placewise_service.declog.export import export

MINUTE_S = 60.0


async def test_rewards_and_silence_go_by_the_hosts_clock(tmp_path: Path) -> None:
    async with running_engine(nodes=0, alternatives_share=1.0) as engine:
        await engine.update_settings(CLUSTER, ClusterSettings(host_clock=True))
        await engine.report_nodes(CLUSTER, [make_node("n0", 4)], full=True, now_s=1.0)
        for name in ("goes-on", "ends"):
            await ask_place(engine, place(make_job(name, total_epochs=4.0), now_s=10.0))
            await answer_is_on_its_way()
            await logged(engine)
            engine._studying._rests_until_s = 0.0
        started = [JobEvent(JobId(name), JobEventKind.STARTED, 11.0) for name in ("ends", "goes-on")]
        await engine.report_job_events(CLUSTER, started, now_s=11.0)
        ended = JobEvent(JobId("ends"), JobEventKind.FINISHED, 11.0 + 2 * MINUTE_S, epochs_done=4.0)
        await engine.report_job_events(CLUSTER, [ended], now_s=11.0 + 2 * MINUTE_S)
        for passed_min, known in ((2, [False, False]), (7, [True, False])):
            now_s = 11.0 + passed_min * MINUTE_S
            progress = JobEvent(JobId("goes-on"), JobEventKind.PROGRESS, now_s, epochs_done=passed_min / 10)
            await engine.report_job_events(CLUSTER, [progress], now_s=now_s)
            await logged(engine)
            report = await export(engine._parts.store, tmp_path)
            (row,) = job_rows(tmp_path, job_id="ends")
            assert [row[f"reward_{minutes}min"] is not None for minutes in (5, 20)] == known
            assert report.joined["OPEN"] == 1, "the wall says that it was silent for eleven days"
