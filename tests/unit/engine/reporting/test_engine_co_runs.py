"""Pairs learned from reports of progress: on every replica, while the setting is on."""

from dataclasses import replace

import pytest
from tests.fakes.cluster import make_job
from tests.fakes.engine import CLUSTER, running_engine

from placewise.v1 import cluster_pb2
from placewise_core.basics.clock import ManualClock
from placewise_core.domain.cluster import Assignment, ClusterSettings
from placewise_core.domain.commands import JobEvent, JobEventKind
from placewise_core.domain.job import GpuSharing, JobId, NodeId, Resources, Role
from placewise_service.api.convert.convert_cluster import changed_settings, settings
from placewise_service.engine import Engine
from placewise_service.state.reference.memory import MemoryStore

NOW_S = 1_000_000.0
ON = ClusterSettings(learn_co_runs=True)


async def start(engine: Engine, name: str, model: str) -> None:
    job = replace(make_job(name), model=model, dataset_size=1000, batch_size=64, gpu_sharing=GpuSharing(True, 3.0))
    task = Assignment("worker-0", Role.WORKER, NodeId("n0"), (0,), Resources(gpus=1.0))
    await engine.report_job_events(CLUSTER, [JobEvent(JobId(name), JobEventKind.STARTED, job=job, placement=(task,))])


async def progress(engine: Engine, name: str, speed: float, epochs: float) -> None:
    event = JobEvent(JobId(name), JobEventKind.PROGRESS, speed=speed, epochs_done=epochs)
    await engine.report_job_events(CLUSTER, [event])


async def test_reports_count_while_the_setting_is_on_and_every_replica_computes_the_same() -> None:
    clock = ManualClock(NOW_S)
    store = MemoryStore(clock)
    async with (
        running_engine(store=store, clock=clock) as one,
        running_engine(nodes=0, store=store, clock=clock) as other,
    ):
        await start(one, "a", "lm")
        await progress(one, "a", 0.5, 1.0)
        assert not list((await one.get_cluster(CLUSTER)).view.estimates.pairs.kinds)
        await one.update_settings(CLUSTER, ON)
        await progress(one, "a", 0.5, 2.0)
        await start(one, "b", "vgg")
        assert (await one.get_cluster(CLUSTER)).co_runs == ()
        await progress(one, "a", 0.25, 4.0)
        await progress(one, "a", 0.25, 4.0)  # a repeat
        shown = await one.get_cluster(CLUSTER)
        (found,) = shown.co_runs
        assert (found.model, found.partner, found.gpu_type, found.reports) == ("lm", "vgg", "v100", 0.5)
        assert found.low < found.relative_speed < found.high
        live = await other._parts.views.get(CLUSTER)
        while live.view.version < shown.view.version:
            await live.wait_changed(1.0)
        assert (await other.get_cluster(CLUSTER)).co_runs == (found,)


def test_the_setting_is_changed_alone() -> None:
    message = settings(ON)
    assert message.learn_co_runs
    request = cluster_pb2.UpdateClusterSettingsRequest(settings=message)
    request.update_mask.paths.append("learn_co_runs")
    current = ClusterSettings(learn_heat=True)
    changed = changed_settings(request, current, lambda _: pytest.fail("no queue"))
    assert changed == replace(current, learn_co_runs=True)
