"""The client of a benchmark, in a process of its own: asks service and echo by turns and prints the measurements.

    python -m placewise_service.bench.load < plan.json > result.json

Rounds on the service and on the echo alternate, and so does the first of the two, so that other load on the machine
falls on both.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Any

import grpc.aio
import msgspec
import uvloop

from placewise.v1 import decision_pb2
from placewise.v1.cluster_pb2 import (
    JobEvent,
    ReportJobEventsRequest,
    ReportJobEventsResponse,
    ReportNodesRequest,
    UpdateClusterSettingsRequest,
)
from placewise.v1.decision_pb2 import PlaceResponse
from placewise_client.aio import AsyncClient
from placewise_service.bench.echo import SERVICE as ECHO_SERVICE
from placewise_service.bench.workload import Workload

SAMPLE = -1  # number of the question that set_up asks
_MOST_IN_BATCH = 32
_WARM_UP_ROUNDS = 2
_NODES_PER_REPORT = 1000

Call = Callable[[Any], Awaitable[Any]]


class LoadPlan(msgspec.Struct, frozen=True):
    """What to measure: `rounds` of single calls one after another, then `rounds` with `concurrency` at once."""

    rpc: str
    workload: Workload
    services: tuple[str, ...]
    echo: str
    rounds: int
    concurrency: int


class Result(msgspec.Struct):
    """Milliseconds per call, one after another; then calls and seconds of the concurrent rounds."""

    service_ms: list[float]
    echo_ms: list[float]
    decide_ms: list[float]
    service_calls: int = 0
    service_s: float = 0.0
    echo_calls: int = 0
    echo_s: float = 0.0
    errors: int = 0


class Bench:
    """One measurement. `batch` calls are measured, then their reservations are released, unmeasured."""

    def __init__(self, plan: LoadPlan) -> None:
        self._plan = plan
        self._result = Result([], [], [])
        self._numbers = count()
        self._channels = [grpc.aio.insecure_channel(target) for target in (*plan.services, plan.echo)]
        path = f"/placewise.v1.DecisionService/{plan.rpc}"
        self._services = [_method(channel, path, plan.rpc) for channel in self._channels[:-1]]
        self._echo = _method(self._channels[-1], f"/{ECHO_SERVICE}/{plan.rpc}", plan.rpc)
        self._report = self._channels[0].unary_unary(
            "/placewise.v1.ClusterService/ReportJobEvents",
            request_serializer=ReportJobEventsRequest.SerializeToString,
            response_deserializer=ReportJobEventsResponse.FromString,
        )
        is_holding = plan.rpc == "Place"
        self._batch = max(1, min(_MOST_IN_BATCH, plan.workload.free_gangs // 2)) if is_holding else _MOST_IN_BATCH

    async def run(self) -> Result:
        """Both phases; the first rounds warm up and are thrown away."""
        result = self._result
        for index in range(_WARM_UP_ROUNDS + self._plan.rounds):
            if index == _WARM_UP_ROUNDS:
                result.service_ms, result.echo_ms, result.decide_ms = [], [], []
            for is_echo in (index % 2 == 0, index % 2 == 1):
                times_ms, _ = await self.round(is_echo, 1)
                (result.echo_ms if is_echo else result.service_ms).extend(times_ms)
        for index in range(self._plan.rounds):
            for is_echo in (index % 2 == 0, index % 2 == 1):
                times_ms, seconds = await self.round(is_echo, self._plan.concurrency)
                if is_echo:
                    result.echo_calls, result.echo_s = result.echo_calls + len(times_ms), result.echo_s + seconds
                else:
                    result.service_calls += len(times_ms)
                    result.service_s += seconds
        await self.close()
        return result

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close(None)

    async def round(self, is_echo: bool, concurrency: int) -> tuple[list[float], float]:
        """One batch: milliseconds of each call, and seconds of all; `concurrency` callers share the batch."""
        requests = [self._request(next(self._numbers)) for _ in range(self._batch)]
        calls = [self._echo] if is_echo else self._services
        queue = iter(list(enumerate(requests)))
        times_ms: list[float] = []
        answers: list[Any] = []

        async def caller() -> None:
            for index, request in queue:
                began_s = time.perf_counter()
                try:
                    answer = await calls[index % len(calls)](request)
                except grpc.aio.AioRpcError:
                    self._result.errors += 1
                    continue
                times_ms.append((time.perf_counter() - began_s) * 1000.0)
                answers.append(answer)

        began_s = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(concurrency)))
        seconds = time.perf_counter() - began_s
        if not is_echo:
            self._result.decide_ms.extend(answer.meta.decide_ms for answer in answers)
            await self._give_back(answers)
        return times_ms, seconds

    def _request(self, number: int) -> Any:
        workload = self._plan.workload
        by_rpc = {"Place": workload.place, "AdmitOrWait": workload.admit, "Partition": workload.partition}
        return by_rpc[self._plan.rpc](number)

    async def _give_back(self, answers: Sequence[Any]) -> None:
        placed = [d for answer in answers if isinstance(answer, PlaceResponse) for d in answer.decisions]
        self._result.errors += sum(decision.outcome != decision_pb2.PLACED for decision in placed)
        events = [
            JobEvent(job_id=decision.job_id, kind=JobEvent.CANCELLED, reservation_id=decision.reservation_id)
            for decision in placed
            if decision.reservation_id
        ]
        if events:
            await self._report(ReportJobEventsRequest(cluster=self._plan.workload.cluster, events=events))


async def set_up(target: str, rpc: str, workload: Workload) -> bytes:
    """The cluster with its running jobs; gives one real answer, for the echo."""
    async with AsyncClient(target, timeout_s=60.0) as client:
        nodes = workload.inventory()
        for start in range(0, len(nodes), _NODES_PER_REPORT):
            part = nodes[start : start + _NODES_PER_REPORT]
            await client.report_nodes(ReportNodesRequest(cluster=workload.cluster, nodes=part))
        settings = UpdateClusterSettingsRequest(cluster=workload.cluster, settings=workload.settings())
        await client.update_cluster_settings(settings)
        running = list(workload.running())
        if running:
            await client.report_job_events(ReportJobEventsRequest(cluster=workload.cluster, events=running))
        if rpc == "Place":
            request = workload.place(SAMPLE)
            request.reserve_ttl.FromSeconds(1)  # the sample must not hold its GPUs for the whole run
            return (await client.place(request)).SerializeToString()
        if rpc == "AdmitOrWait":
            return (await client.admit_or_wait(workload.admit(-1))).SerializeToString()
        return (await client.partition(workload.partition(-1))).SerializeToString()


def _method(channel: Any, path: str, rpc: str) -> Call:
    request: Any = getattr(decision_pb2, f"{rpc}Request")
    response: Any = getattr(decision_pb2, f"{rpc}Response")
    method: Call = channel.unary_unary(
        path, request_serializer=request.SerializeToString, response_deserializer=response.FromString
    )
    return method


async def _measure(plan: LoadPlan) -> Result:
    return await Bench(plan).run()


if __name__ == "__main__":
    sys.stdout.buffer.write(
        msgspec.json.encode(uvloop.run(_measure(msgspec.json.decode(sys.stdin.buffer.read(), type=LoadPlan))))
    )
