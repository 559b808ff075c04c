"""Command-line faces of the package, mounted by `placewise` through the entry-point group `placewise.commands`."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from placewise_core.domain.cluster import QueueSettings
from placewise_core.domain.traces import TraceJob
from placewise_training.lab.register import INTERRUPTED
from placewise_training.sim.discipline import ORDERS, Discipline, Order
from placewise_training.sim.gangs.engine import SimResult
from placewise_training.sim.hardware import NodeSpec, uniform_cluster
from placewise_training.sim.jobs import SimJob
from placewise_training.sim.policies import NeedsBundleError, opened
from placewise_training.sim.runs import Contender, Setting, Summary, Workload, simulate, summarise
from placewise_training.sim.speed.composed import ComposedSpeed
from placewise_training.sim.speed.profiles import GPU_SPEED
from placewise_training.sim.traces import TraceMapping, read_jobs
from placewise_training.sim.truths import TRUTHS
from placewise_training.sim.workloads import ElasticWorkload, HarmonyWorkload

_SHOWN = (
    ("avg_jct_s", "JCT mean"),
    ("p50", "p50"),
    ("p95", "p95"),
    ("p99", "p99"),
    ("avg_queueing_s", "queueing"),
    ("avg_slowdown", "slowdown"),
    ("makespan_s", "makespan"),
    ("gpu_util", "GPU util"),
    ("qos_rate", "QoS rate"),
    ("load_balance", "balance"),
    ("decisions_per_s", "decisions/s"),
)
simulate_app = typer.Typer(add_completion=False)


class UsageError(Exception):
    """A combination of options that makes no sense."""

    exit_code = 2


@contextmanager
def progress_bar(title: str, total: int, *, is_hidden: bool) -> Iterator[Callable[[int], None]]:
    """A bar on stderr with the time left; the function it yields sets how many are done."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    shown = Console(stderr=True)
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=shown, disable=is_hidden) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.update(task, completed=done)


@simulate_app.command(name="simulate")
def simulate_command(
    trace: Annotated[str, typer.Option(help="CSV file, or one of the shipped traces: philly, ms_itp.")] = "",
    workload: Annotated[str, typer.Option(help="Generated instead of a trace: harmony or elastic.")] = "",
    pattern: Annotated[str, typer.Option(help="Arrivals of a generated workload.")] = "poisson",
    nodes: Annotated[int, typer.Option(min=1)] = 6,
    gpus_per_node: Annotated[int, typer.Option(min=0)] = 8,
    gpu_model: Annotated[str, typer.Option(help="GPU model of every node.")] = "V100",
    policy: Annotated[list[str] | None, typer.Option(help="Placement policy; repeat to compare.")] = None,
    admit: Annotated[str, typer.Option(help="Admission policy, or none.")] = "none",
    bundle: Annotated[Path | None, typer.Option(help="Bundle of learned policies; else the shipped one.")] = None,
    interval_s: Annotated[float, typer.Option(min=0, help="Decide at multiples of this; 0: at every event.")] = 0.0,
    order: Annotated[str, typer.Option(help="Queue order: policy, fifo, srtf (true lengths) or declared.")] = "policy",
    backfill: Annotated[bool, typer.Option(help="May jobs pass one that does not fit?")] = True,
    truth: Annotated[str, typer.Option(help="Speed model: judge, train or site.")] = "judge",
    seeds: Annotated[int, typer.Option(min=1)] = 1,
    jobs: Annotated[int, typer.Option(min=0, help="Only the first so many jobs; 0: all.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Runs a workload on a simulated cluster, with the service's own policies."""
    discipline = Discipline(every_s=_slot_s(admit, interval_s), order=_order(order), backfills=backfill)
    cluster = uniform_cluster(nodes, gpus_per_node, gpu_model)
    total, made = _workload(trace, workload, pattern, gpu_model, gpus_per_node, jobs, is_elastic=_shapes(admit))
    if truth not in TRUTHS:
        raise UsageError(f"--truth is one of {', '.join(TRUTHS)}, not {truth!r}")
    if gpu_model.upper() not in GPU_SPEED:
        raise UsageError(f"--gpu-model is one of {', '.join(GPU_SPEED)}, not {gpu_model!r}")
    queues = QueueSettings(slot_s=discipline.every_s or 10.0)
    setting = Setting(cluster, made, truth, discipline, queues)
    try:
        numbers = opened(bundle)
        contenders = [Contender(name, admit, numbers) for name in policy or ["load-balance"]]
        summaries = _run_all(setting, contenders, range(seeds), total, is_quiet=as_json)
    except (ValueError, NeedsBundleError) as error:
        raise UsageError(str(error)) from error
    _print(summaries, cluster, as_json=as_json)
    if any(s.is_partial for s in summaries):
        raise typer.Exit(INTERRUPTED)


def print_json(value: object) -> None:
    """One object on stdout. Raises ValueError for a number JSON does not have."""
    json.dump(value, sys.stdout, ensure_ascii=False, allow_nan=False)
    sys.stdout.write("\n")


def _slot_s(admit: str, interval_s: float) -> float:
    """Proteus as printed decides once per slot: it needs one."""
    return 10.0 if admit == "proteus-paper" and interval_s == 0 else interval_s


def _shapes(admit: str) -> bool:
    return admit not in ("", "none")


def _order(order: str) -> Order:
    if order not in ORDERS:
        raise UsageError(f"--order is one of {', '.join(ORDERS)}, not {order!r}")
    return order


def _workload(
    trace: str, workload: str, pattern: str, gpu_model: str, gpus_per_node: int, jobs: int, *, is_elastic: bool
) -> tuple[int, Workload]:
    if bool(trace) == bool(workload):
        raise UsageError("give either --trace or --workload")
    if trace:
        rows = _rows(trace, jobs)
        mapping = TraceMapping(
            gpu_model=gpu_model, gpus_per_node=max(1, gpus_per_node), is_elastic=is_elastic, has_classes=True
        )
        return len(rows), _traced(rows, mapping)
    count = jobs or 200
    per_node = max(1, gpus_per_node)
    if workload == "harmony":
        gangs = HarmonyWorkload(jobs=count, pattern=pattern, gpu_model=gpu_model, gpus_per_node=per_node)
        return count, gangs.generate
    if workload == "elastic":
        elastic = ElasticWorkload(jobs=count, pattern=pattern, gpu_model=gpu_model, gpus_per_node=per_node)
        return count, elastic.generate
    raise UsageError(f"--workload is harmony or elastic, not {workload!r}")


def _rows(trace: str, jobs: int) -> list[TraceJob]:
    try:
        rows = read_jobs(trace)
    except OSError as error:
        raise UsageError(f"{trace}: {error.strerror}") from error
    return rows[:jobs] if jobs else rows


def _traced(rows: Sequence[TraceJob], mapping: TraceMapping) -> Workload:
    def generate(truth: ComposedSpeed, seed: int) -> Iterable[SimJob]:
        return mapping.generate(rows, truth, seed)

    return generate


def _run_all(
    setting: Setting, contenders: Sequence[Contender], seeds: Sequence[int], total: int, *, is_quiet: bool
) -> list[Summary]:
    """Contender by contender; Ctrl-C ends with what there is."""
    summaries: list[Summary] = []
    hidden = is_quiet or not sys.stderr.isatty()
    for contender in contenders:
        results: list[SimResult] = []
        with progress_bar(contender.label, total * len(seeds), is_hidden=hidden) as show:
            for i, seed in enumerate(seeds):
                results.append(simulate(setting, contender, seed, progress=_offset(show, i * total)))
                show((i + 1) * total)
                if results[-1].is_partial:
                    break
        summaries.append(summarise(contender.label, list(seeds), results))
        if summaries[-1].is_partial:
            break
    return summaries


def _offset(show: Callable[[int], None], before: int) -> Callable[[int, float], None]:
    return lambda done, now_s: show(before + done)


def _print(summaries: Sequence[Summary], cluster: Sequence[NodeSpec], *, as_json: bool) -> None:
    if as_json:
        rows = [summary.as_dict() for summary in summaries]
        print_json(rows[0] if len(rows) == 1 else {"policies": rows})
        return
    table = Table(title=f"{len(cluster)} nodes, {len(summaries[0].seeds)} seed(s)", title_justify="left")
    table.add_column("seconds, shares of 1")
    for summary in summaries:
        table.add_column(summary.label + (" (partial)" if summary.is_partial else ""), justify="right")
    for name, title in _SHOWN:
        table.add_row(title, *(_cell(summary, name) for summary in summaries))
    Console().print(table)
    for summary in summaries:
        if summary.impossible:
            shown = ", ".join(summary.impossible[:5])
            more = "" if len(summary.impossible) <= 5 else f" and {len(summary.impossible) - 5} more"
            Console(stderr=True).print(f"{summary.label}: can never run on this cluster: {shown}{more}")


def _cell(summary: Summary, name: str) -> str:
    value = summary.estimates[name]
    text = f"{value.mean:.3f}" if value.mean < 10 else f"{value.mean:,.0f}"
    return text if value.count == 1 else f"{text} ±{value.half_width:.2g}"
