"""An adapter's reports of nodes if the service accepts some and refuses others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.fakes.quick.logged import warnings_logged

from placewise.v1.cluster_pb2 import Node, ReportNodesRequest
from placewise.v1.job_pb2 import Resources
from placewise_client import DeadlineExceededError, InvalidRequestError
from placewise_client.adapter.native import AdapterSettings
from placewise_client.adapter.reporter import OutcomeReporter
from placewise_core.domain.errors import InvalidRequestError as RefusedError
from placewise_core.domain.validate import Limits, check_node
from placewise_service.api.convert import convert_in


class Service:
    """Takes reports of nodes by the service's own rules; knows `nodes` (their GPUs by id)."""

    def __init__(self) -> None:
        self.nodes: dict[str, float] = {}
        self.requests: list[ReportNodesRequest] = []
        self.limits = Limits()
        self.refusal: InvalidRequestError | None = None
        self.per_node_s = 0.0
        self.taking: Callable[[], None] = lambda: None

    async def report_nodes(self, request: ReportNodesRequest, *, timeout_s: float, **_: Any) -> None:
        self.requests.append(request)
        self.taking()
        if self.per_node_s * len(request.nodes) > timeout_s:
            raise DeadlineExceededError("no answer")
        if self.refusal is not None:
            raise self.refusal
        for i, node in enumerate(request.nodes):
            try:
                check_node(convert_in.node(node), f"nodes[{i}]", self.limits)
            except RefusedError as error:
                raise InvalidRequestError(error.message, metadata=error.metadata) from error
        if request.full:
            self.nodes.clear()
        self.nodes |= {node.id: node.capacity.gpus for node in request.nodes}


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def reporter_to(service: Service, clock: Clock) -> OutcomeReporter:
    client: Any = service
    return OutcomeReporter(client, AdapterSettings("c"), clock=clock, now=clock)


def node(name: str, gpus: float = 8, **extended: float) -> Node:
    return Node(id=name, capacity=Resources(cpu_cores=32, gpus=gpus, extended=extended))


def bytes_of(name: str) -> Node:
    return node(name, gpumem=8e10)


async def test_those_that_are_refused_are_found_among_many() -> None:
    service, clock = Service(), Clock()
    reporter = reporter_to(service, clock)
    nodes = [bytes_of(f"n{i}") if i in (0, 7, 8, 99, 199) else node(f"n{i}") for i in range(200)]
    with warnings_logged() as records:
        assert await reporter.report_nodes(nodes)
    assert len(service.nodes) == 195
    assert service.nodes.keys().isdisjoint({"n0", "n7", "n8", "n99", "n199"})
    assert len(service.requests) <= 12
    assert [len(request.nodes) for request in service.requests if request.full] == [200, 195]
    assert len(records) == 5
    clock.now_s += 100  # the next look that is in full
    with warnings_logged() as more:
        assert await reporter.report_nodes(nodes)
    assert len(service.requests[-1].nodes) == 195
    assert not more


async def test_where_all_are_refused_the_service_has_none() -> None:
    service = Service()
    reporter = reporter_to(service, Clock())
    assert await reporter.report_nodes([bytes_of(f"n{i}") for i in range(70)])
    assert service.nodes == {}
    assert not reporter.breaker.is_open()


async def test_one_that_becomes_unreadable_goes_and_comes_back_when_it_changes() -> None:
    service = Service()
    reporter = reporter_to(service, Clock())
    assert await reporter.report_nodes([node("n0"), node("n1")])
    assert await reporter.report_nodes([node("n0", 4), node("n1", 1e6)])
    assert service.nodes == {"n0": 4}  # nothing is placed on n1 as it was
    asked = len(service.requests)
    assert await reporter.report_nodes([node("n0", 4), node("n1", 1e6)])
    assert len(service.requests) == asked
    assert await reporter.report_nodes([node("n0", 4), node("n1", 2)])
    assert service.nodes == {"n0": 4, "n1": 2}


async def test_only_a_refused_reading_is_forgiven_by_the_next() -> None:
    service = Service()
    reporter = reporter_to(service, Clock())
    good, hot, large = node("n0"), node("n1"), node("n2", 1e6)
    hot.telemetry.cpu_util = 17
    assert await reporter.report_nodes([good, hot, large])
    assert service.nodes.keys() == {"n0"}
    hot.telemetry.cpu_util = large.telemetry.cpu_util = 0.5
    asked = len(service.requests)
    assert await reporter.report_nodes([good, hot, large])
    assert service.nodes.keys() == {"n0", "n1"}
    assert len(service.requests) == asked + 1


async def test_after_an_outage_those_refused_are_told_again() -> None:
    service = Service()
    reporter = reporter_to(service, Clock())
    assert await reporter.report_nodes([node("n0"), node("n1", 200)])
    assert service.nodes == {"n0": 8}
    service.limits = Limits(gpus_per_node=256)
    reporter.forget_all(())
    assert await reporter.report_nodes([node("n0"), node("n1", 200)])
    assert service.nodes == {"n0": 8, "n1": 200}


@pytest.mark.parametrize("field", ["", "cluster", "nodes", "nodes[9].id"])
async def test_a_report_refused_for_no_node_of_it_takes_none_out(field: str) -> None:
    service = Service()
    reporter = reporter_to(service, Clock())
    assert await reporter.report_nodes([node("n0")])
    service.refusal = InvalidRequestError("no", metadata={"field": field})
    assert not await reporter.report_nodes([node("n0"), node("n1")])
    assert reporter.breaker.is_open()
    assert len(service.requests) == 2
    assert service.nodes == {"n0": 8}


@pytest.mark.parametrize("nodes", [100, 10_000])
async def test_a_large_cluster_has_the_time_that_the_service_takes_for_its_nodes(nodes: int) -> None:
    service = Service()
    service.per_node_s = 0.0006
    assert await reporter_to(service, Clock()).report_nodes([node(f"n{i}") for i in range(nodes)])
    assert len(service.nodes) == nodes


@pytest.mark.parametrize(("took_s", "due_s"), [(0.1, 15.0), (2.3, 23.0), (6.0, 45.0)])
async def test_a_large_cluster_is_reported_as_a_whole_less_often(took_s: float, due_s: float) -> None:
    service, clock = Service(), Clock()
    service.taking = lambda: setattr(clock, "now_s", clock.now_s + took_s)
    reporter = reporter_to(service, clock)
    assert await reporter.report_nodes([node("n1")])
    clock.now_s += due_s - 0.1
    assert not reporter.is_refresh_due()
    clock.now_s += 0.2
    assert reporter.is_refresh_due()
