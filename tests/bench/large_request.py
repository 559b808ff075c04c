"""CPU time of a large Place request: gateway, engine and in-memory store in one process, no network.

    python tests/bench/large_request.py [--policy NAME] [--gangs N] [--rounds N]

Prints the least and the median CPU ms of a gang over the rounds. Other processes disturb CPU time less than the wall
time of `placewise bench learned`, and more than not at all: compare two versions by turns.
"""

import argparse
import asyncio
import gc
import logging
import math
import statistics
import time
from collections.abc import Sequence

import structlog
from google.protobuf.message import Message

from placewise.v1.cluster_pb2 import JobEvent, ReportJobEventsRequest, ReportNodesRequest
from placewise.v1.decision_pb2 import PLACED, JobDecision, PlaceResponse
from placewise_core.basics.clock import SystemClock
from placewise_service.api.calls.gateway import Gateway
from placewise_service.api.calls.rpcs import RPCS
from placewise_service.api.identity.auth import NOBODY, Open
from placewise_service.bench.workload import GPUS_PER_NODE, Workload
from placewise_service.main import make_engine
from placewise_service.settings import Settings
from placewise_service.state.reference.memory import MemoryStore
from placewise_service.telemetry import Telemetry

_CLUSTER, _RUNNING, _TASKS = "bench", 32, 4


class LargeRequests:
    """The nodes, running jobs and gangs of `placewise bench learned`."""

    def __init__(self, policy: str, gangs: int) -> None:
        nodes = math.ceil(1.25 * (_RUNNING + gangs) * _TASKS / GPUS_PER_NODE)
        self._workload = Workload(_CLUSTER, nodes, _RUNNING, _TASKS, policy)
        self._gangs, self._asked = gangs, 0
        clock, settings = SystemClock(), Settings(_env_prefix="PLACEWISE_LARGE_REQUEST_")
        self.engine = make_engine(settings, MemoryStore(clock), clock, Telemetry())
        self._gateway = Gateway(self.engine, clock, settings.limits, Open(), self.engine._parts.telemetry)

    async def set_up(self) -> None:
        """Reports the cluster, and sets the garbage collector as the service does."""
        report = ReportNodesRequest(cluster=_CLUSTER, full=True)
        report.nodes.extend(self._workload.inventory())
        await self._ask("ReportNodes", report)
        await self._report(list(self._workload.running()))
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000, 1, 2_000)

    async def round(self) -> float:
        """CPU ms of each gang of one request, which is given back afterwards, unmeasured."""
        requests = [self._workload.place(self._asked + i) for i in range(self._gangs)]
        self._asked += self._gangs
        whole = requests[0]
        for request in requests[1:]:
            whole.jobs.extend(request.jobs)
        began_s = time.process_time()
        answer = PlaceResponse.FromString((await self._ask("Place", whole)).SerializeToString())
        spent_s = time.process_time() - began_s
        if answer.meta.fallback or any(decision.outcome != PLACED for decision in answer.decisions):
            raise SystemExit("a gang found no place, or a heuristic placed it")
        await self._give_back(answer.decisions)
        return 1000.0 * spent_s / self._gangs

    async def _give_back(self, decisions: Sequence[JobDecision]) -> None:
        await self._report(
            [
                JobEvent(job_id=each.job_id, kind=JobEvent.CANCELLED, reservation_id=each.reservation_id)
                for each in decisions
            ]
        )
        self.engine._parts.telemetry.afterwards.run()

    async def _report(self, events: list[JobEvent]) -> None:
        await self._ask("ReportJobEvents", ReportJobEventsRequest(cluster=_CLUSTER, events=events))

    async def _ask(self, rpc: str, message: Message) -> Message:
        found = RPCS[rpc]
        request = found.request.FromString(message.SerializeToString())
        return await self._gateway.call(found, request, NOBODY, math.inf)


async def _measure(policy: str, gangs: int, rounds: int) -> list[float]:
    asked = LargeRequests(policy, gangs)
    await asked.engine.start()
    await asked.set_up()
    await asked.round()  # unmeasured
    found = [await asked.round() for _ in range(rounds)]
    await asked.engine.close()
    return found


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description="CPU time of a large Place request.")
    parser.add_argument("--policy", default="harmony", help="Placement policy.")
    parser.add_argument("--gangs", type=int, default=256, help="Gangs of a request.")
    parser.add_argument("--rounds", type=int, default=6, help="Requests that are measured.")
    args = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    found = asyncio.run(_measure(args.policy, args.gangs, args.rounds))
    print(f"{args.policy}: least {min(found):.3f}, median {statistics.median(found):.3f} CPU ms a gang")


if __name__ == "__main__":
    main()
