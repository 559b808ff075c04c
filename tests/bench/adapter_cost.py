"""Cost of an adapter's decision in two source trees, in one sitting, over HTTP and gRPC.

    python -m tests.bench.adapter_cost --before TREE [--now TREE] [--rounds 5] [--calls 200] [--pause S] [--json FILE]

Each round starts, for either tree, one service and one client process with that tree's own SDK. The client asks as an
adapter does: its `Decider` decides one gang of four GPUs on 16 nodes, then the reservation is given back by an event.
Both trees decide by the same policies instead of their defaults. `consolidate` is the services' own, as a service
works ahead for its default policy. Admission is first in, first out without backfill, which is `fifo` up to 1da29792
and `fifo-strict` since then.
An adapter asks now and then: a pause is between two gangs. A longer one leaves the processor's caches colder.
The two clients take turns of ten gangs, AdmitOrWait with Place in one call first, then Place alone. A figure is the
median of a round in milliseconds; the difference has the standard error of its mean over the rounds. The program ends
with 1 if this tree's mean is above the earlier one's by more than 5 % and by more than 0.2 ms.
"""

import argparse
import asyncio
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import uvloop
from tests.attack.source import Source

from placewise.v1 import cluster_pb2, job_pb2
from placewise_client.adapter.decider import Decider
from placewise_client.adapter.native import AdapterSettings, NativeJob, Placed, Stage
from placewise_client.aio import AsyncClient
from placewise_service.bench.processes import free_port, service_process, stop

ROOT = Path(__file__).parent.parent.parent
CARRIERS: Final = ("http", "grpc")
CALLS: Final = ("AdmitOrWait", "Place")
_TURN, _WARM_UP = 10, 3
_PLACE_POLICY: Final = "consolidate"
_ADMIT_POLICY: Final = {"before": "fifo", "now": "fifo-strict"}
_MOST_RATIO, _MOST_MS = 1.05, 0.2


def main() -> int:
    parser = argparse.ArgumentParser(description="An adapter's decision in two source trees by turns.")
    parser.add_argument("--before", default="")
    parser.add_argument("--now", default=str(ROOT))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--pause", type=float, default=0.002, help="seconds between two gangs")
    parser.add_argument("--json", default="")
    parser.add_argument("--client", default="", help=argparse.SUPPRESS)
    parser.add_argument("--admit-policy", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.client:
        asyncio.run(_serve_turns(args.client, args.pause, args.admit_policy))
        return 0
    trees = [Source(Path(args.before).resolve(), "before"), Source(Path(args.now).resolve(), "now")]
    figures: dict[str, dict[str, list[float]]] = {}
    for index in range(args.rounds):
        for carrier in CARRIERS:
            found = uvloop.run(_round(carrier, trees if index % 2 else trees[::-1], args.calls, args.pause))
            for call in CALLS:
                before, now = (statistics.median(found[tree][call]) for tree in ("before", "now"))
                of_call = figures.setdefault(f"{call} over {carrier}", {"before": [], "now": []})
                of_call["before"].append(before)
                of_call["now"].append(now)
                print(f"round {index + 1}, {call} over {carrier}: {before:.3f} ms, now {now:.3f} ms", flush=True)
    if args.json:
        Path(args.json).write_text(json.dumps(figures, indent=1))
    return _verdict(figures)


async def _round(carrier: str, trees: list[Source], calls: int, pause_s: float) -> dict[str, dict[str, list[float]]]:
    """Milliseconds of each gang by tree and call, all on new processes."""
    async with AsyncExitStack() as stack:
        clients = {}
        for tree in trees:
            rest = free_port()
            path = {"PYTHONPATH": tree.environment()["PYTHONPATH"]}
            settings = path | {"PLACEWISE_SERVER__REST_PORT": str(rest), "PLACEWISE_PLACE__POLICY": _PLACE_POLICY}
            service = await stack.enter_async_context(service_process(settings))
            target = service.target if carrier == "grpc" else f"http://127.0.0.1:{rest}"
            clients[tree.name] = _client(target, path, pause_s, _ADMIT_POLICY[tree.name])
            stack.callback(stop, clients[tree.name])
        found: dict[str, dict[str, list[float]]] = {name: {call: [] for call in CALLS} for name in clients}
        for call in CALLS:
            for index in range(_WARM_UP + calls // _TURN):
                for name in clients if index % 2 else reversed(clients):
                    times_ms = _ask(clients[name], call)
                    found[name][call] += times_ms if index >= _WARM_UP else ()
        return found


def _client(target: str, path: dict[str, str], pause_s: float, admit_policy: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, str(Path(__file__)), "--client", target, "--pause", str(pause_s)]
    command += ["--admit-policy", admit_policy]
    return subprocess.Popen(command, env={**os.environ, **path}, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _ask(client: "subprocess.Popen[bytes]", call: str) -> list[float]:
    """One turn of a client."""
    assert client.stdin is not None
    assert client.stdout is not None
    client.stdin.write(f"{call}\n".encode())
    client.stdin.flush()
    times_ms: list[float] = json.loads(client.stdout.readline())
    return times_ms


async def _serve_turns(target: str, pause_s: float, admit_policy: str) -> None:
    """The client: reads the name of a call, and writes the milliseconds of one turn."""
    async with AsyncClient(target) as client:
        gpus = [cluster_pb2.Gpu(index=index, model="V100") for index in range(8)]
        capacity = job_pb2.Resources(gpus=8, cpu_cores=64, memory_gib=256)
        nodes = [cluster_pb2.Node(id=f"n{index}", capacity=capacity, gpus=gpus) for index in range(16)]
        await client.report_nodes(cluster_pb2.ReportNodesRequest(cluster="c", nodes=nodes, full=True))
        loop, names = asyncio.get_running_loop(), (f"job-{number}" for number in itertools.count(1))
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            is_asking = line.strip() == "AdmitOrWait"
            settings = AdapterSettings(
                cluster="c", place_policy=_PLACE_POLICY, ask_admission=is_asking, admit_policy=admit_policy
            )
            decider = Decider(client, settings)
            times_ms = []
            for name in itertools.islice(names, _TURN):
                times_ms.append(await _decide(client, decider, name))
                await asyncio.sleep(pause_s)
            print(json.dumps(times_ms), flush=True)


async def _decide(client: AsyncClient, decider: Decider, key: str) -> float:
    """Milliseconds until the gang has its place, which is then given back."""
    demand = job_pb2.Resources(gpus=2, cpu_cores=4, memory_gib=8)
    group = job_pb2.TaskGroup(role=job_pb2.TaskGroup.WORKER, count=2, demand=demand)
    gang = NativeJob(key, job_pb2.Job(id=key, model="bert", batch_size=32, groups=[group]), Stage.WAITING)
    began_s = time.perf_counter()
    verdict = (await decider.decide([gang]))[key]
    took_ms = (time.perf_counter() - began_s) * 1e3
    if not isinstance(verdict, Placed):
        raise SystemExit(f"{key}: {verdict}")
    event = cluster_pb2.JobEvent(
        job_id=key, kind=cluster_pb2.JobEvent.CANCELLED, reservation_id=verdict.placement.reservation_id
    )
    await client.report_job_events(cluster_pb2.ReportJobEventsRequest(cluster="c", events=[event]))
    return took_ms


def _verdict(figures: dict[str, dict[str, list[float]]]) -> int:
    is_slower = False
    for name, by_tree in figures.items():
        before, now = statistics.fmean(by_tree["before"]), statistics.fmean(by_tree["now"])
        each = [y - x for x, y in zip(by_tree["before"], by_tree["now"], strict=True)]
        spread = statistics.stdev(each) / math.sqrt(len(each)) if len(each) > 1 else math.nan
        is_row_slower = now > _MOST_RATIO * before and now - before > _MOST_MS
        is_slower |= is_row_slower
        mark = "SLOWER" if is_row_slower else "ok"
        print(f"{mark:<7} {name:<22} {before:.3f} -> {now:.3f} ms  ({now - before:+.3f} ± {spread:.3f})")
    return 1 if is_slower else 0


if __name__ == "__main__":
    sys.exit(main())
