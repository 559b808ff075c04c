"""A large report of nodes: made ready beside the view, shown at once, and the same in the end as a small one."""

import asyncio
import itertools
import threading
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.fakes.cluster import make_job, make_node
from tests.fakes.engine import CLUSTER, running_engine
from tests.fakes.place_cases import arrays
from tests.fakes.slices import every_round

from placewise.v1.cluster_pb2 import Node as NodeMessage
from placewise.v1.cluster_pb2 import ReportNodesRequest
from placewise.v1.job_pb2 import Resources as ResourcesMessage
from placewise_core.basics.clock import ManualClock
from placewise_core.domain.cluster import (
    Assignment,
    HeadReservation,
    Node,
    NodeState,
    NodeTelemetry,
    QueueState,
    RunningJob,
    RunState,
)
from placewise_core.domain.commands import JobEvent, JobEventKind
from placewise_core.domain.events import ClockMoved, ClusterRecords, Event, JobsChanged, JobsEnded, NodesReported
from placewise_core.domain.job import JobId, NodeId, Resources, Role
from placewise_core.view.renewal import Renewal
from placewise_core.view.view import ClusterView
from placewise_service.api.calls import rpcs
from placewise_service.api.convert import convert_in
from placewise_service.engine.reporting.reports import portions
from placewise_service.engine.views import LiveView
from placewise_service.state.reference.memory import MemoryStore
from placewise_service.state.store import JobReport, ReportResult

MANY = 300


def _node(i: int) -> Node:
    telemetry = NodeTelemetry(cpu_util=i / 1000, cpu_celsius=50.0 + i % 60, limit_celsius=90.0, observe_time_s=float(i))
    state = NodeState.READY if i % 7 else NodeState.DOWN
    return replace(make_node(f"n{i}"), telemetry=telemetry, state=state, rack=f"r{i % 5}")


def _running(name: str, node: str, gpu: int = 0) -> RunningJob:
    assignment = Assignment("worker-0", Role.WORKER, NodeId(node), (gpu,), Resources(cpu_cores=1.0, gpus=1.0))
    return RunningJob(make_job(name), (assignment,), RunState.RESERVED, reservation_id=f"r-{name}")


REPORTS = {
    "telemetry alone": NodesReported(tuple(_node(i + 1) for i in range(1, MANY - 1)), ()),
    "nodes go and come": NodesReported(tuple(_node(i) for i in range(50, MANY + 9)), (NodeId("n0"), NodeId("n7"))),
    "other hardware": NodesReported(tuple(replace(_node(i), max_jobs_per_gpu=3) for i in range(MANY)), ()),
}


def _view() -> ClusterView:
    jobs = tuple(_running(f"j{i}", f"n{i}") for i in range(100, 120))
    return ClusterView(ClusterRecords("c", 3, "life", tuple(make_node(f"n{i}") for i in range(MANY)), jobs))


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS.keys())
def test_a_view_renewed_is_the_view_that_the_report_was_applied_to(report: NodesReported) -> None:
    expected, view = _view(), _view()
    for one in (expected, view):
        one.apply_change(ClockMoved(1_000.0))
    expected.apply_change(report)
    renewal = Renewal(view, report)
    renewal.prepare()
    view.add_job(_running("late", "n60", 2))
    view.remove_job(JobId("j101"))
    expected.add_job(_running("late", "n60", 2))
    expected.remove_job(JobId("j101"))
    shown = renewal.show()
    assert shown.jobs == expected.jobs
    assert [node.id for node in shown.nodes.records] == [node.id for node in expected.nodes.records]
    seen = arrays(shown)
    for name, wanted in arrays(expected).items():
        np.testing.assert_array_equal(seen[name], wanted, err_msg=name)
    assert shown.nodes.has_telemetry == expected.nodes.has_telemetry
    assert shown.host_time_s == 1_000.0


async def _live() -> LiveView:
    store = MemoryStore(ManualClock(1000.0))
    await store.report_nodes("c", [make_node(f"n{i}") for i in range(MANY)], full=True)
    live = LiveView("c", store, ManualClock(1000.0), stale_telemetry_after_s=90.0)
    assert await live.load()
    return live


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS.keys())
async def test_a_large_report_is_shown_whole_and_what_follows_waits_for_it(
    report: NodesReported, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared_by = []
    prepare = Renewal.prepare
    monkeypatch.setattr(
        Renewal, "prepare", lambda renewal: (prepared_by.append(threading.get_ident()), prepare(renewal))
    )
    live = await _live()
    held = _running("held", "n60")
    live.assume([held])
    first = Event(live.view.version + 1, live.view.epoch, report)
    second = Event(live.view.version + 2, live.view.epoch, JobsEnded((JobId("nobody"),)))
    before = live.view.version
    live.apply([first, second])
    assert live.view.version == before
    assert not live.view.nodes.observe_time_s.any(), "nothing of it can be seen before all of it can"
    other = _running("other", "n61")
    live.assume([other])  # a decision taken meanwhile
    await live.wait_shown()
    assert live.view.version == before + 2
    assert {"held", "other"} <= set(live.view.jobs)
    assert live.view.nodes.observe_time_s.any()
    assert prepared_by
    assert threading.get_ident() not in prepared_by
    live.apply([first])  # as the tail brings it again
    await live.wait_shown()
    assert live.view.version == before + 2


def _gang(i: int, tasks: int = 100) -> RunningJob:
    demand = Resources(cpu_cores=0.25)
    placement = tuple(Assignment(f"worker-{k}", Role.WORKER, NodeId(f"n{i}"), (), demand) for k in range(tasks))
    return RunningJob(make_job(f"g{i}"), placement, RunState.RESERVED, reservation_id=f"r{i}")


async def test_many_jobs_come_and_end_in_portions_each_of_them_whole() -> None:
    live = await _live()
    before, idle = live.view.version, live.view.usage.free.copy()
    gangs = tuple(_gang(i) for i in range(40))
    comings = Event(before + 1, live.view.epoch, JobsChanged(gangs))
    endings = Event(before + 2, live.view.epoch, JobsEnded(tuple(gang.id for gang in gangs)))
    held: list[set[float]] = []
    counts: list[int] = []

    def look(_: int) -> None:
        held.append(set((idle - live.view.usage.free)[0, :40].tolist()))
        counts.append(len(live.view.jobs))

    for event, last in ((comings, 40), (endings, 0)):
        counts.clear()
        async with every_round(look):
            live.apply([event])
            assert live.view.version == event.version - 1
            await live.wait_shown()
        assert live.view.version == event.version
        assert len(live.view.jobs) == last
        assert len(set(counts)) >= 40 // 3, "at most three hundred tasks between two rounds"
    assert all(amounts <= {0.0, 25.0} for amounts in held)
    np.testing.assert_array_equal(live.view.usage.free, idle)


async def test_a_head_that_ends_with_many_others_keeps_no_nodes() -> None:
    live = await _live()
    gangs = tuple(_gang(i) for i in range(40))
    for gang in gangs:
        live.view.add_job(gang)
    head = HeadReservation("waits", (NodeId("n9"),), 0.0, 0.0, 1e12, 1e12)
    live.view.show_queue(QueueState("q", seq=1, head=head))
    ended = (JobId("waits"), *[gang.id for gang in gangs])
    live.apply([Event(live.view.version + 1, live.view.epoch, JobsEnded(ended, is_expiry=True))])
    await live.wait_shown()
    assert live.view.heads == {"q": head}, "who only lets a reservation expire still waits"
    for gang in gangs:
        live.view.add_job(gang)
    live.apply([Event(live.view.version + 1, live.view.epoch, JobsEnded(ended))])
    await live.wait_shown()
    assert live.view.heads == {}


async def test_who_is_assumed_while_its_earlier_self_ends_stays() -> None:
    live = await _live()
    gangs = tuple(_gang(i) for i in range(40))
    for gang in gangs:
        live.view.add_job(gang)
    live.apply([Event(live.view.version + 1, live.view.epoch, JobsEnded(tuple(gang.id for gang in gangs)))])
    await asyncio.sleep(0)
    again = _gang(39)
    live.assume([again])
    await live.wait_shown()
    assert live.view.jobs == {again.id: again}


async def test_what_was_assumed_is_shown_at_once() -> None:
    live = await _live()
    gangs = tuple(_gang(i) for i in range(40))
    live.assume(gangs)
    version = live.view.version + 1
    live.apply([Event(version, live.view.epoch, JobsChanged(gangs))])
    assert live.view.version == version


async def test_a_view_that_was_loaded_anew_meanwhile_stays() -> None:
    live = await _live()
    event = Event(live.view.version + 1, live.view.epoch, REPORTS["nodes go and come"])
    live.apply([event])
    await asyncio.sleep(0)
    assert await live.load()
    fresh = live.view
    await live.wait_shown()
    assert live.view is fresh


async def test_a_large_message_is_converted_beside_the_loop_and_a_small_one_on_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = set()
    convert = convert_in.node
    monkeypatch.setattr(convert_in, "node", lambda message: (threads.add(threading.get_ident()), convert(message))[1])
    node = NodeMessage(id="n", capacity=ResourcesMessage(cpu_cores=1), labels={"text": "x" * 500})
    small = ReportNodesRequest(cluster="c", nodes=[node])
    large = ReportNodesRequest(cluster="c")
    for i in range(100):
        large.nodes.add().CopyFrom(node)
        large.nodes[i].id = f"n{i}"
    limits = rpcs.Limits()
    assert len(await rpcs._converted(small, rpcs._nodes, limits)) == 1
    assert threads == {threading.get_ident()}
    threads.clear()
    assert len(await rpcs._converted(large, rpcs._nodes, limits)) == 100
    assert threads
    assert threading.get_ident() not in threads


def test_events_are_reported_in_portions_that_keep_their_order() -> None:
    placement = _running("j", "n0").assignments
    events = [
        JobEvent(JobId(f"j{i}"), JobEventKind.STARTED, placement=placement * (500 if i == 300 else 1))
        for i in range(1000)
    ]
    parts = list(portions(events))
    assert [event for part in parts for event in part] == events
    assert max(len(part) for part in parts) == 64
    assert [events[300]] in [list(part) for part in parts]
    assert list(portions([])) == [[]]


class Remote(MemoryStore):
    """A store that others' turns come before, as one over a network."""

    async def report_jobs(self, cluster: str, reports: Sequence[JobReport]) -> ReportResult:
        await asyncio.sleep(0)
        return await super().report_jobs(cluster, reports)


async def test_others_have_their_turn_within_a_large_report_of_events() -> None:
    placement = _running("j", "n0").assignments
    events = [JobEvent(JobId(f"j{i}"), JobEventKind.STARTED, placement=placement) for i in range(1000)]
    running: list[int] = []
    clock = ManualClock(1_000_000.0)
    async with running_engine(store=Remote(clock), clock=clock) as engine:
        live = await engine._parts.views.get(CLUSTER)
        async with every_round(lambda _: running.append(len(live.view.jobs))):
            outcome = await engine.report_job_events(CLUSTER, events)
    assert outcome.applied == 1000
    seen = sorted(set(running))
    assert len(seen) > 10
    assert max(after - before for before, after in itertools.pairwise(seen)) <= 64
