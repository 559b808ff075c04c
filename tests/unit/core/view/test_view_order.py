"""The order of jobs on a view is that of their events, so that it can be rebuilt: sums of floats run in this order."""

from dataclasses import replace

from tests.fakes.cluster import make_job, make_node

from placewise_core.domain.cluster import Assignment, RunningJob, RunState
from placewise_core.domain.events import ClusterRecords, Event, JobsChanged
from placewise_core.domain.job import GpuSharing, NodeId, Resources, Role
from placewise_core.view.view import ClusterView


def running(name: str, node: str = "n0") -> RunningJob:
    job = replace(make_job(name), gpu_sharing=GpuSharing(True, 4.0))
    task = Assignment("worker-0", Role.WORKER, NodeId(node), (0,), Resources(1.0, 1.0, 4.0))
    return RunningJob(job, (task,), RunState.RESERVED, f"r-{name}")


def view() -> ClusterView:
    return ClusterView(ClusterRecords("c", 0, "e", tuple(make_node(f"n{i}", max_jobs_per_gpu=4) for i in range(2))))


def order(found: ClusterView) -> tuple[list[str], list[str], list[str]]:
    return list(found.jobs), list(found.usage.jobs_on(0)), [tenant.job_id for tenant in found.usage.tenants(0, 0)]


def test_a_job_that_is_confirmed_moves_behind_those_that_came_since() -> None:
    own, other = running("own"), running("other")
    asked, followed = view(), view()
    asked.add_job(own)  # assumed
    asked.apply(Event(1, "e", JobsChanged((other,))))
    asked.apply(Event(2, "e", JobsChanged((replace(own, expire_time_s=60.0),))))
    for version, job in enumerate((other, own), 1):
        followed.apply(Event(version, "e", JobsChanged((job,))))
    assert order(asked) == order(followed) == (["other", "own"],) * 3
    assert asked.jobs[own.id].expire_time_s == 60.0
    assert asked.digest() == followed.digest()


def test_a_job_that_moves_is_seen_as_a_change_of_its_node_alone() -> None:
    own = running("own")
    asked = view()
    asked.add_job(own)
    asked.add_job(running("other"))
    asked.add_job(running("elsewhere", "n1"))
    stamps = asked.usage.node_stamp.copy()
    fork = asked.fork()
    asked.add_job(replace(own, expire_time_s=60.0))
    assert (asked.usage.node_stamp > stamps).tolist() == [True, False]
    assert order(fork)[1] == ["own", "other"], "a fork keeps its own order"


def test_the_digest_sees_usage_telemetry_and_the_order_of_jobs() -> None:
    one, other = view(), view()
    for job in (running("a"), running("b")):
        one.add_job(job)
    for job in (running("b"), running("a")):
        other.add_job(job)
    assert one.digest() != other.digest()
    assert view().digest() == view().digest() != one.digest()
    reported = view()
    node = reported.nodes.records[0]
    reported.nodes.report(0, replace(node, telemetry=replace(node.telemetry, cpu_util=0.5)))
    assert reported.digest() != view().digest()
