"""Pauses of the garbage collector: each walks so many objects and no more, and a call leaves it nothing to do."""

import gc
from collections import Counter
from collections.abc import Iterator

import pytest
from google.protobuf.message import Message
from tests.golden.net import messages as m
from tests.golden.net.seams import Service, serving

from placewise.v1.cluster_pb2 import JobEvent, ReportJobEventsRequest
from placewise.v1.decision_pb2 import AdmitOrWaitRequest, PlaceRequest
from placewise_core.domain.decision import Share
from placewise_service import main

RNG = m.drawn("garbage")


@pytest.fixture
def _settled() -> Iterator[None]:
    before = gc.get_threshold()
    main._settle_garbage_collector()
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("_settled")
def test_no_collection_walks_more_than_a_part_of_a_large_answer() -> None:
    walked: list[int] = []

    def look(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            walked.append(sum(len(gc.get_objects(generation)) for generation in range(info["generation"] + 1)))

    gc.callbacks.append(look)
    try:
        kept = [[Share(f"n{i}", "gpu0", 1.0, 1.0, 60.0, 0.5)] for i in range(100_000)]
    finally:
        gc.callbacks.remove(look)
    assert len(kept) == 100_000
    assert len(walked) >= 10
    assert max(walked) <= 10_000


def a_job(name: str, policy: str, gpus: float, gangs: int = 2) -> Message:
    more = {"subtasks": m.subtasks(RNG, 3)} if policy.startswith("ldwp") else {}
    return m.job(name, [m.group(1 if more else gangs, m.demand(gpus=gpus))], RNG, **more)


def a_place(name: str, policy: str, gpus: float) -> PlaceRequest:
    return m.place("c", [a_job(name, policy, gpus)], policy, 1)


def questions(service: Service) -> Iterator[tuple[str, str, list[Message]]]:
    """Each with the same twice before, so that no cache is filled for the first time."""
    for policy in service.place_policies:
        yield policy, "Place", [a_place(f"{policy}{i}", policy, 1.0) for i in range(4)]
        yield f"{policy} shares", "Place", [a_place(f"{policy}-{i}", policy, 0.25) for i in range(4)]
    yield "too large", "Place", [m.place("c", [a_job(f"l{i}", "", 1.0, 1000)], "", 1) for i in range(4)]
    for policy in service.admit_policies:
        asked = [AdmitOrWaitRequest(cluster="c", policy=policy, queue=policy) for _ in range(4)]
        for i, request in enumerate(asked):
            request.jobs.append(a_job(f"{policy}-a{i}", "", 1.0))
        yield f"admit {policy}", "AdmitOrWait", asked
    ends = [JobEvent(job_id=f"consolidate{i}", kind=JobEvent.CANCELLED) for i in range(4)]
    yield "events", "ReportJobEvents", [ReportJobEventsRequest(cluster="c", events=[end]) for end in ends]


@pytest.fixture
def _by_hand() -> Iterator[None]:
    gc.disable()
    yield
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


@pytest.mark.usefixtures("_by_hand")
async def test_a_call_leaves_no_garbage() -> None:
    left: dict[str, Counter[str]] = {}
    async with serving() as service:
        await service.ask("ReportNodes", m.nodes_request("c", [m.node(f"n{i}", 8, "V100", RNG, 64) for i in range(40)]))
        for name, rpc, asked in questions(service):
            for request in asked[:2]:
                await service.ask(rpc, request)
            if found := await garbage_of(service, rpc, asked[2:]):
                left[name] = found
    assert not left


async def garbage_of(service: Service, rpc: str, asked: list[Message]) -> Counter[str]:
    """Types of the objects that only the collector frees, after these calls and their records."""
    await service.flush()
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    for request in asked:
        await service.ask(rpc, request)
    await service.flush()
    gc.collect()
    gc.set_debug(0)
    found = Counter(type(each).__qualname__ for each in gc.garbage)
    gc.garbage.clear()
    return found
