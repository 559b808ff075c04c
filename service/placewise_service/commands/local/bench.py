"""`placewise bench`: latency and throughput against a bare gRPC echo in one run; contention and chaos."""

import asyncio
import contextlib
import math
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from placewise_service.bench.batches import BatchPlan, BatchResult
from placewise_service.bench.contention import Contention, ContentionPlan
from placewise_service.bench.figures import figures
from placewise_service.bench.load import LoadPlan, Result, set_up
from placewise_service.bench.paced import SIDES, PacedPlan, PacedResult
from placewise_service.bench.processes import Service, echo_process, free_port, redis_process, service_process
from placewise_service.bench.shadow_figures import shadow_figures
from placewise_service.bench.workload import GPUS_PER_NODE, Workload
from placewise_service.commands.connection import JsonOption
from placewise_service.commands.console import print_json, print_table, progress
from placewise_service.commands.exits import CommandError, Exit
from placewise_service.settings import DecisionLogSettings
from placewise_service.state.redis.embedded import EmbeddedRedis

app = typer.Typer(
    help="Measure the service against a bare gRPC echo, or hunt for broken promises.", no_args_is_help=True
)

_LEARNED = ("harmony", "search")
_LEARNED_FIGURES = ("p50_ms", "p50_ratio", "p99_over_p50", "echo_p50_ms", "decide_p50_ms", "errors")
_RECOVERY_LIMIT_S = 2.0

NodesOption = Annotated[int, typer.Option(min=1, help="Nodes, of 8 GPUs each.")]
JobsOption = Annotated[int, typer.Option(min=0, help="Running jobs.")]
TasksOption = Annotated[int, typer.Option(min=1, help="Tasks per gang, one GPU each.")]
PolicyOption = Annotated[str, typer.Option(help="Policy; empty: the service's default.")]
RoundsOption = Annotated[int, typer.Option(min=1, help="Rounds of up to 32 calls, on service and echo by turns.")]
ConcurrencyOption = Annotated[int, typer.Option(min=1, help="Concurrent callers in the throughput run.")]
ReplicasOption = Annotated[int, typer.Option(min=1, help="Service processes on one Redis.")]
BundlesOption = Annotated[
    Path | None,
    typer.Option(
        "--bundles", file_okay=False, resolve_path=True, help="Folder of bundles to serve; empty: the shipped one."
    ),
]
SharingOption = Annotated[bool, typer.Option("--sharing", help="Jobs share GPUs: decisions look at neighbours.")]


@app.command()
def place(
    nodes: NodesOption = 30,
    jobs: JobsOption = 32,
    tasks: TasksOption = 4,
    policy: PolicyOption = "",
    rounds: RoundsOption = 40,
    concurrency: ConcurrencyOption = 16,
    replicas: ReplicasOption = 1,
    is_sharing: SharingOption = False,
    bundles: BundlesOption = None,
    is_json: JsonOption = False,
) -> None:
    """Place: one more gang beside the running jobs, reserved and given back."""
    workload = Workload("bench", nodes, jobs, tasks, policy, is_sharing)
    _bench("Place", workload, rounds, concurrency, replicas, is_json, bundles)


@app.command("learned")
def measure_learned(
    nodes: NodesOption = 30,
    jobs: JobsOption = 32,
    tasks: TasksOption = 4,
    batch: Annotated[
        int, typer.Option(min=1, max=256, help="Concurrent requests when decisions per second are measured.")
    ] = 256,
    rounds: RoundsOption = 40,
    batch_rounds: Annotated[int, typer.Option(min=1, help="Rounds of `batch` gangs for each way of asking.")] = 6,
    bundles: BundlesOption = None,
    is_json: JsonOption = False,
) -> None:
    """Learned policies: latency of harmony and search against the echo, and harmony's decisions per second."""
    result: dict[str, Any] = {}
    for policy in _LEARNED:
        workload = Workload("bench", nodes, jobs, tasks, policy)
        workload.check()
        measured = asyncio.run(_measure("Place", workload, rounds, 1, 1, bundles))
        result |= {f"{policy}_{name}": measured[name] for name in _LEARNED_FIGURES}
    result |= asyncio.run(_throughput(jobs, tasks, batch, batch_rounds, bundles))
    if is_json:
        print_json(result)
    else:
        print_table("learned policies", ("figure", "value"), list(result.items()))
    errors = sum(value for name, value in result.items() if name.endswith("errors"))
    if errors:
        raise CommandError(f"{errors} calls failed or did not fit", Exit.NEGATIVE)


@app.command()
def admit(
    nodes: NodesOption = 30,
    jobs: JobsOption = 32,
    tasks: TasksOption = 4,
    policy: PolicyOption = "",
    rounds: RoundsOption = 40,
    concurrency: ConcurrencyOption = 16,
    replicas: ReplicasOption = 1,
    is_json: JsonOption = False,
) -> None:
    """AdmitOrWait: one elastic job, in a slot of its own."""
    _bench("AdmitOrWait", Workload("bench", nodes, jobs, tasks, policy), rounds, concurrency, replicas, is_json)


@app.command()
def partition(
    nodes: NodesOption = 30,
    jobs: JobsOption = 32,
    tasks: TasksOption = 4,
    policy: PolicyOption = "",
    rounds: RoundsOption = 40,
    concurrency: ConcurrencyOption = 16,
    replicas: ReplicasOption = 1,
    is_json: JsonOption = False,
) -> None:
    """Partition: one divisible task over the idle units."""
    _bench("Partition", Workload("bench", nodes, jobs, tasks, policy), rounds, concurrency, replicas, is_json)


@app.command()
def shadow(
    nodes: NodesOption = 60,
    jobs: JobsOption = 32,
    tasks: TasksOption = 4,
    policy: PolicyOption = "",
    bundle: Annotated[str, typer.Option(help="Bundle of the shadow; empty: the bundle that answers.")] = "",
    shadow_policy: Annotated[str, typer.Option(help="Policy that shadows; empty: the bundle's choice.")] = "harmony",
    turns: Annotated[int, typer.Option(min=1, help="Turns with the shadow off, on and off again.")] = 5,
    seconds: Annotated[
        float, typer.Option(min=0.1, help="Length of each side of a turn, in stretches of half a second.")
    ] = 20.0,
    share: Annotated[float, typer.Option(min=0.01, max=0.95, help="Share of saturation.")] = 0.5,
    concurrency: ConcurrencyOption = 16,
    bundles: BundlesOption = None,
    redis: Annotated[
        str,
        typer.Option(help="URL of the service's Redis; empty: the embedded one, which rewrites its file now and then."),
    ] = "",
    is_json: JsonOption = False,
) -> None:
    """Place with a shadow off, on and off again by turns: at a share of saturation, and at saturation."""
    workload = Workload("bench", nodes, jobs, tasks, policy)
    workload.check()
    plan = PacedPlan(workload, "", bundle, shadow_policy, turns, seconds, share, concurrency)
    result = asyncio.run(_shadowed(plan, bundles, redis))
    if is_json:
        print_json(result)
    else:
        print_table("Place with a shadow against Place without", ("figure", "value"), list(result.items()))
    if result["errors"] or not result["answers_equal"]:
        raise CommandError(f"{result['errors']} calls failed or did not fit, or answers differ", Exit.NEGATIVE)


@app.command()
def contention(
    nodes: NodesOption = 16,
    decisions: Annotated[int, typer.Option(min=1, help="Place calls in all.")] = 100_000,
    clients: Annotated[int, typer.Option(min=1, help="Clients at once.")] = 64,
    replicas: ReplicasOption = 2,
    policy: PolicyOption = "",
    seed: Annotated[int, typer.Option(help="Seed of the load.")] = 0,
    is_json: JsonOption = False,
) -> None:
    """Many clients on nearly full nodes: is a GPU or core ever handed out twice, is a reservation ever left over?"""
    _hunt(ContentionPlan(nodes, clients, decisions, policy, 0, seed), replicas, is_json)


@app.command()
def chaos(
    nodes: NodesOption = 16,
    decisions: Annotated[int, typer.Option(min=1, help="Place calls at least.")] = 20_000,
    clients: Annotated[int, typer.Option(min=1, help="Clients at once.")] = 64,
    replicas: ReplicasOption = 2,
    kills: Annotated[int, typer.Option(min=1, help="Number of times to kill Redis.")] = 20,
    policy: PolicyOption = "",
    seed: Annotated[int, typer.Option(help="Seed of the load.")] = 0,
    is_json: JsonOption = False,
) -> None:
    """Run `contention` while Redis is killed and started again."""
    _hunt(ContentionPlan(nodes, clients, decisions, policy, kills, seed), replicas, is_json)


def _bench(
    rpc: str,
    workload: Workload,
    rounds: int,
    concurrency: int,
    replicas: int,
    is_json: bool,
    bundles: Path | None = None,
) -> None:
    workload.check()
    result = asyncio.run(_measure(rpc, workload, rounds, concurrency, replicas, bundles))
    if is_json:
        print_json(result)
    else:
        print_table(f"{rpc} against a bare gRPC echo", ("figure", "value"), list(result.items()))
    if result["errors"]:
        raise CommandError(f"{result['errors']} calls failed or did not fit", Exit.NEGATIVE)


async def _measure(
    rpc: str, workload: Workload, rounds: int, concurrency: int, replicas: int, bundles: Path | None
) -> dict[str, Any]:
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(redis_process()) if replicas > 1 else None
        async with _services(replicas, redis, bundles) as services:
            sample = await set_up(services[0].target, rpc, workload)
            with echo_process(rpc, sample) as echo:
                targets = tuple(service.target for service in services)
                plan = LoadPlan(rpc, workload, targets, echo, rounds, concurrency)
                result = await asyncio.to_thread(_load, plan)
            return figures(plan, result, services[0].ready_s, services[0].memory_mib())


async def _throughput(jobs: int, tasks: int, batch: int, rounds: int, bundles: Path | None) -> dict[str, Any]:
    """Decisions per second of one replica, on nodes for the running jobs and a batch, and a quarter more."""
    nodes = math.ceil(1.25 * (jobs + batch) * tasks / GPUS_PER_NODE)
    workload = Workload("bench", nodes, jobs, tasks, _LEARNED[0])
    async with _services(1, None, bundles) as (service,):
        await set_up(service.target, "Place", workload)
        plan = BatchPlan(workload, service.target, batch, rounds)
        result = await asyncio.to_thread(_run_client, "batches", msgspec.json.encode(plan))
    measured = msgspec.json.decode(result, type=BatchResult)
    return {
        "batch": batch,
        "batch_nodes": nodes,
        **{f"decisions_per_s_{way}": per_s for way, per_s in measured.per_s.items()},
        "batch_fallbacks": measured.fallbacks,
        "batch_errors": measured.errors,
    }


async def _shadowed(plan: PacedPlan, bundles: Path | None, redis: str) -> dict[str, Any]:
    port = free_port()
    share = DecisionLogSettings().study_time_share / len(SIDES)
    environment = {"PLACEWISE_SERVER__REST_PORT": str(port), "PLACEWISE_DECLOG__STUDY_TIME_SHARE": str(share)}
    if bundles is not None:
        environment["PLACEWISE_BUNDLE_DIR"] = str(bundles)
    if redis:
        environment["PLACEWISE_REDIS_URL"] = redis
    async with service_process(environment) as service:
        await set_up(service.target, "Place", plan.workload)
        plan = msgspec.structs.replace(plan, target=service.target)
        output = await asyncio.to_thread(_run_client, "paced", msgspec.json.encode(plan))
        counted = await asyncio.to_thread(_shadow_counters, port)
    return shadow_figures(plan, msgspec.json.decode(output, type=PacedResult), counted)


def _shadow_counters(port: int) -> dict[str, float]:
    """Jobs that the shadow decided about, and those that it left out, by reason."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30.0) as answer:
        lines = answer.read().decode().splitlines()
    counted = {"shadowed": 0.0}
    for line in lines:
        name, _, value = line.rpartition(" ")
        if name.startswith("placewise_shadow_decisions_total{"):
            counted["shadowed"] += float(value)
        elif name.startswith("placewise_shadow_left_out_total{"):
            counted[f"left_out_{name.split(chr(34))[1]}"] = float(value)
    return counted


def _load(plan: LoadPlan) -> Result:
    return msgspec.json.decode(_run_client("load", msgspec.json.encode(plan)), type=Result)


def _run_client(module: str, plan: bytes) -> bytes:
    """The output of a client of placewise_service.bench, run in a process of its own."""
    command = [sys.executable, "-m", f"placewise_service.bench.{module}"]
    done = subprocess.run(command, input=plan, stdout=subprocess.PIPE, check=False)  # noqa: S603 - our own words
    if done.returncode:
        raise CommandError(f"the load client ended with {done.returncode}")
    return done.stdout


@asynccontextmanager
async def _services(
    replicas: int, redis: EmbeddedRedis | None, bundles: Path | None = None
) -> AsyncIterator[list[Service]]:
    """Replicas on one Redis; without one, a service on its embedded Redis."""
    environment = {"PLACEWISE_REDIS_URL": redis.url} if redis is not None else {}
    if bundles is not None:
        environment["PLACEWISE_BUNDLE_DIR"] = str(bundles)
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(service_process(environment)) for _ in range(replicas)]


def _hunt(plan: ContentionPlan, replicas: int, is_json: bool) -> None:
    result = asyncio.run(_contend(plan, replicas))
    if is_json:
        print_json(result)
    else:
        title = "chaos" if plan.kills else "contention"
        print_table(title, ("figure", "value"), list(result.items()))
    is_late = result["recovery_max_s"] > _RECOVERY_LIMIT_S
    if any(result[name] for name in ("handed_out_twice", "leaked", "lost", "unexpected")) or is_late:
        raise typer.Exit(Exit.NEGATIVE)


async def _contend(plan: ContentionPlan, replicas: int) -> dict[str, Any]:
    with redis_process() as redis:
        async with _services(replicas, redis) as services:
            run = Contention(plan, [service.target for service in services], redis)
            with progress("Place", plan.decisions) as bar:
                await run.run(lambda n: bar.advance(bar.task_ids[0], n))
            return run.figures()
