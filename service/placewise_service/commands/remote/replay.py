"""`placewise replay`: a trace through the running service, one or more policies side by side, with a plot."""

import asyncio
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from placewise_client.aio import AsyncClient
from placewise_client.target import Target
from placewise_core.domain.traces import TraceJob, read_trace
from placewise_service.commands.connection import (
    DEFAULT_TARGET,
    CaOption,
    JsonOption,
    TargetOption,
    TokenOption,
    target_of,
)
from placewise_service.commands.console import console, print_json, print_table, progress
from placewise_service.data import PHILLY_CUT
from placewise_service.replay.host import Host, ReplayPlan
from placewise_service.replay.summary import Figures

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
    admit: Annotated[str, typer.Option(help="Admission policy.")] = "fifo",
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of the replayed cluster.")] = 12,
    gpus_per_node: Annotated[int, typer.Option(min=1, help="GPUs of each node.")] = 8,
    max_jobs: Annotated[int, typer.Option(min=0, help="Only the first so many jobs; 0: all.")] = 0,
    plot: Annotated[Path, typer.Option(help="File for the plot (PNG).")] = Path("replay.png"),
    is_keeping: Annotated[bool, typer.Option("--keep", help="Keep the clusters of the replay afterwards.")] = False,
    target: TargetOption = DEFAULT_TARGET,
    token: TokenOption = "",
    tls_ca: CaOption = None,
    is_json: JsonOption = False,
) -> None:
    """AdmitOrWait, Place, started, progress, finished: in the trace's time, as fast as the service answers."""
    jobs = read_trace(trace, default_queue="default")
    jobs = jobs[:max_jobs] if max_jobs else jobs
    # After the last event of the trace lies the present, so that nothing happens in the service's future.
    base_s = time.time() - max(job.submit_s + job.duration_s for job in jobs)
    plans = [
        ReplayPlan(f"replay-{secrets.token_hex(3)}-{policy}", policy, admit, nodes, gpus_per_node, base_s)
        for policy in policies or ["consolidate", "load-balance"]
    ]
    runs = asyncio.run(_run_all(target_of(target, token, tls_ca), plans, jobs, is_keeping))
    title = f"{trace.name}: {len(jobs)} jobs on {nodes} × {gpus_per_node} GPUs, admission {admit}"
    _print(runs, trace, len(jobs), _drawn(runs, plot, title), is_json)


def _drawn(runs: Sequence[Figures], plot: Path, title: str) -> str:
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
    target: Target, plans: Sequence[ReplayPlan], jobs: Sequence[TraceJob], is_keeping: bool
) -> list[Figures]:
    runs = []
    async with AsyncClient(target, timeout_s=30.0) as client:
        for plan in plans:
            host = Host(client, plan, jobs)
            with progress(plan.place_policy, len(jobs)) as bar:
                task = bar.task_ids[0]
                try:
                    runs.append(Figures.of(await host.run(lambda n, b=bar, t=task: b.advance(t, n))))  # type: ignore[misc]
                finally:
                    if not is_keeping:
                        await host.clean_up()
    return runs


def _print(runs: Sequence[Figures], trace: Path, jobs: int, plot: str, is_json: bool) -> None:
    results = [run.as_dict() for run in runs]
    if is_json:
        first = runs[0].run.plan
        summary: dict[str, Any] = {"trace": str(trace), "jobs": jobs}
        summary |= {"nodes": first.nodes, "gpus_per_node": first.gpus_per_node, "policies": results, "plot": plot}
        print_json(summary)
        return
    columns = ("", *(str(result["policy"]) for result in results))
    print_table(
        f"{trace.name}, {jobs} jobs", columns, [(label, *(r.get(key) for r in results)) for label, key in _TABLE]
    )
    console.print(f"plot: {plot}")
