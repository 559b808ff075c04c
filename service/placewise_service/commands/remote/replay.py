"""`placewise replay`: a trace through the running service, one or more policies side by side, with a plot."""

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from placewise_client.aio import AsyncClient
from placewise_client.target import Target, TargetError
from placewise_core.basics.frozen import frozen
from placewise_core.domain.traces import TraceJob, at_rate, read_trace
from placewise_core.domain.truth import Truth, TruthSetting
from placewise_models.learned import LEARNED_POLICIES
from placewise_service.commands.connection import (
    DEFAULT_TARGET,
    CaOption,
    JsonOption,
    TargetOption,
    TokenOption,
    target_of,
)
from placewise_service.commands.console import console, errors, print_json, print_table, progress
from placewise_service.commands.exits import CommandError, Exit
from placewise_service.commands.remote.cluster import explorer_of
from placewise_service.commands.store import opened_store
from placewise_service.data import PHILLY_CUT
from placewise_service.declog.dataset import DatasetBusyError
from placewise_service.replay.host import Host, ReplayPlan, ReplayResult
from placewise_service.replay.keeping import save_log
from placewise_service.replay.summary import ReplayFigures
from placewise_service.replay.true_host import TrueHost
from placewise_service.replay.truths import truth_maker

_DAY_S = 86_400.0

app = typer.Typer(help="Send a trace through the running service.")

_TABLE = (
    ("jobs started", "jobs_started"),
    ("jobs that never fit", "never_fits"),
    ("jobs never admitted", "never_admitted"),
    ("JCT mean [s]", "avg_jct_s"),
    ("JCT p50 [s]", "jct_p50_s"),
    ("JCT p95 [s]", "jct_p95_s"),
    ("queueing mean [s]", "avg_queue_s"),
    ("queueing p95 [s]", "queue_p95_s"),
    ("share of jobs that waited", "waited_share"),
    ("GPU utilisation", "gpu_util"),
    ("makespan [s]", "makespan_s"),
    ("Place p50 [ms]", "place_p50_ms"),
    ("Place p99 [ms]", "place_p99_ms"),
    ("AdmitOrWait p50 [ms]", "admit_p50_ms"),
    ("AdmitOrWait p99 [ms]", "admit_p99_ms"),
    ("decision inside the service p50 [ms]", "decide_p50_ms"),
    ("wall time [s]", "wall_s"),
)


@app.command()
def replay(
    trace: Annotated[Path, typer.Option(help="Trace, CSV.", exists=True, dir_okay=False)] = PHILLY_CUT,
    policies: Annotated[list[str] | None, typer.Option("--policy", help="Placement policy; repeat to compare.")] = None,
    admit: Annotated[
        str, typer.Option(help="Admission policy, or none (with --truth). Default: fifo; with --truth: none.")
    ] = "",
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of the replayed cluster.")] = 12,
    gpus_per_node: Annotated[int, typer.Option(min=1, help="GPUs of each node.")] = 8,
    gpu_model: Annotated[str, typer.Option(help="GPU model of every node, with --truth.")] = "V100",
    max_jobs: Annotated[int, typer.Option(min=0, help="Number of jobs, from the first on; 0: all.")] = 0,
    jobs_per_hour: Annotated[float, typer.Option(min=0, help="Mean rate of arrivals; 0: the trace's own.")] = 0.0,
    truth: Annotated[
        str, typer.Option(help="Truth that gives the speeds: site or judge. Empty: the trace's times.")
    ] = "",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the truth and of the decisions, with --truth.")] = 0,
    exploration_rate: Annotated[float, typer.Option(min=0, max=1, help="Share of jobs that explore.")] = 0.0,
    explorers: Annotated[
        list[str] | None, typer.Option("--explorer", help="POLICY or POLICY=WEIGHT, also of a bundle; repeat for more.")
    ] = None,
    admit_exploration_rate: Annotated[
        float, typer.Option(min=0, max=1, help="Share of jobs for which AdmitOrWait explores.")
    ] = 0.0,
    speed: Annotated[
        float, typer.Option(min=0, help="Trace seconds per real second; 0: as fast as the service answers.")
    ] = 0.0,
    reports_progress: Annotated[
        bool | None,
        typer.Option(
            "--report-progress/--no-report-progress",
            help="Report all progress before each question, with --truth. Default: for learned policies.",
        ),
    ] = None,
    plot: Annotated[Path, typer.Option(help="File for the plot (PNG).")] = Path("replay.png"),
    cluster: Annotated[
        str,
        typer.Option(help="Name of the replayed cluster; default: one is drawn for each policy."),
    ] = "",
    is_keeping: Annotated[bool, typer.Option("--keep", help="Keep the clusters of the replay afterwards.")] = False,
    log: Annotated[
        Path | None, typer.Option(help="Export the decision log to this folder at the end.", file_okay=False)
    ] = None,
    target: TargetOption = DEFAULT_TARGET,
    token: TokenOption = "",
    tls_ca: CaOption = None,
    is_json: JsonOption = False,
) -> None:
    """Replay a trace: ask AdmitOrWait and Place, report starts, progress and ends, all at the trace's times."""
    if admit == "none" and not truth:
        raise CommandError("--admit none needs --truth: name an admission policy, such as fifo", Exit.USAGE)
    names = policies or ["consolidate", "load-balance"]
    if cluster and len(names) > 1:
        raise CommandError("--cluster needs a single --policy: each has a cluster of its own", Exit.USAGE)
    maker = truth_maker(truth) if truth else None
    jobs = _jobs_of(trace, max_jobs, jobs_per_hour)
    admit = admit or ("none" if truth else "fifo")
    plans = [
        ReplayPlan(
            cluster=cluster or f"replay-{secrets.token_hex(3)}-{policy}",
            place_policy=policy,
            admit_policy=admit,
            nodes=nodes,
            gpus_per_node=gpus_per_node,
            base_time_s=(time.time() - _most_span_s(jobs, nodes * gpus_per_node)) // _DAY_S * _DAY_S,
            exploration_rate=exploration_rate,
            seed=seed if truth else None,
            admit_exploration_rate=admit_exploration_rate,
            speed=speed,
            reports_progress=policy in LEARNED_POLICIES if reports_progress is None else reports_progress,
            explorers=tuple(map(explorer_of, explorers or ())),
        )
        for policy in names
    ]
    setting = TruthSetting(jobs, nodes, gpus_per_node, gpu_model, seed, is_elastic=admit != "none")
    made = (lambda: maker(setting)) if maker is not None else None
    runs = asyncio.run(_run_all(target_of(target, token, tls_ca), plans, jobs, made, _Keeping(is_keeping, log)))
    title = f"{trace.name}: {len(jobs)} jobs on {nodes} × {gpus_per_node} GPUs, admission {admit}"
    _print(runs, trace, len(jobs), truth, _drawn(runs, plot, title), is_json)


def _jobs_of(trace: Path, most: int, per_hour: float) -> list[TraceJob]:
    jobs = read_trace(trace, default_queue="default")
    jobs = jobs[:most] if most else jobs
    return at_rate(jobs, per_hour) if per_hour else jobs


@frozen
class _Keeping:
    """What becomes of a replayed cluster and of its decision log."""

    is_keeping: bool
    log: Path | None

    async def end(self, host: Host | TrueHost, run: ReplayResult) -> None:
        """Exports the log if that is asked for, and deletes the cluster unless it is kept.

        A log that could not be exported keeps its cluster. Raises CommandError then.
        """
        cluster, decisions = run.plan.cluster, run.decision_ids
        if self.log is not None:
            try:
                async with opened_store() as store:
                    missing = await save_log(store, self.log, cluster, decisions)
            except (CommandError, DatasetBusyError, OSError) as error:
                raise CommandError(f"the log was not exported, so cluster {cluster} is kept: {error}") from None
            if missing:
                raise CommandError(
                    f"{missing} of {len(decisions)} decisions are not in the log: cluster {cluster} is kept"
                )
        if self.is_keeping:
            return
        await host.clean_up()
        if self.log is None and decisions:
            lost = f"the decision log of {cluster} ({len(decisions)} decisions) is deleted with the cluster"
            errors.print(f"{lost}: --log DIR exports it first, --keep keeps both")


def _most_span_s(jobs: Sequence[TraceJob], gpus: int) -> float:
    """Seconds that the replay takes at most, if speeds are at least a quarter of the trace's: then its last event lies
    in the service's past."""
    work_s = sum(job.duration_s * job.gpus for job in jobs) / gpus
    return max(job.submit_s for job in jobs) + 4.0 * (work_s + max(job.duration_s for job in jobs))


def _drawn(runs: Sequence[ReplayFigures], plot: Path, title: str) -> str:
    """The path of the plot, or the reason if there is none: serving does not install the library for it."""
    try:
        from placewise_service.replay.plot import draw  # noqa: PLC0415 - of the extra `plot`
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        return "none: matplotlib is not installed (pip install 'placewise[plot]', in a checkout: make install)"
    draw(runs, plot, title)
    return str(plot)


async def _run_all(
    target: Target,
    plans: Sequence[ReplayPlan],
    jobs: Sequence[TraceJob],
    truth: Callable[[], Truth] | None,
    keeping: _Keeping,
) -> list[ReplayFigures]:
    runs = []
    try:
        opened = AsyncClient(target, timeout_s=30.0)
    except TargetError as error:
        raise CommandError(str(error).replace("placewise-client[http]", "placewise[http]"), Exit.USAGE) from None
    async with opened as client:
        for plan in plans:
            host = Host(client, plan, jobs) if truth is None else TrueHost(client, plan, truth())
            with progress(plan.place_policy, len(jobs)) as bar:
                task = bar.task_ids[0]
                try:
                    runs.append(ReplayFigures.of(await host.run(lambda n, b=bar, t=task: b.advance(t, n))))  # type: ignore[misc]
                finally:
                    await keeping.end(host, host.result)
    return runs


def _print(runs: Sequence[ReplayFigures], trace: Path, jobs: int, truth: str, plot: str, is_json: bool) -> None:
    results = [run.as_dict() for run in runs]
    if is_json:
        first = runs[0].run.plan
        summary: dict[str, Any] = {"trace": str(trace), "jobs": jobs}
        summary |= {"truth": truth} if truth else {}
        summary |= {"nodes": first.nodes, "gpus_per_node": first.gpus_per_node, "policies": results, "plot": plot}
        print_json(summary)
        return
    columns = ("", *(str(result["policy"]) for result in results))
    print_table(
        f"{trace.name}, {jobs} jobs", columns, [(label, *(r.get(key) for r in results)) for label, key in _TABLE]
    )
    console.print(f"plot: {plot}")
