"""`placewise profile`: measures training loops on this machine. A module of its own, as it needs PyTorch to load."""

import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from placewise_training.cli import UsageError, print_json, progress_bar
from placewise_training.data.measured import accuracy
from placewise_training.lab.register import INTERRUPTED
from placewise_training.profiling.profiler import ProfileSettings, groups, hardware_name, profile, write
from placewise_training.profiling.short_profile import compare, write_short
from placewise_training.profiling.workloads import LOOPS, NETWORKS, WORKLOADS
from placewise_training.profiling.workloads import workload as known

profile_app = typer.Typer(add_completion=False)


@profile_app.command(name="profile")
def profile_command(
    out: Annotated[Path, typer.Option(help="Folder for the rows and their provenance.")] = Path("var/profile"),
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    cores: Annotated[str, typer.Option(help="CPU cores for the measured loops, such as 0,1; empty: all.")] = "",
    seconds: Annotated[float, typer.Option(min=0.1, help="Length of one measurement.")] = 3.0,
    repeats: Annotated[int, typer.Option(min=1)] = 3,
    triples: Annotated[bool, typer.Option(help="Measure three at a time as well.")] = True,
    pairs: Annotated[bool, typer.Option(help="Without: each alone, neither pairs nor triples.")] = True,
    workload: Annotated[
        list[str] | None, typer.Option(help="Only these, as resnet50 or resnet50@32 (batch); repeat.")
    ] = None,
    seed: Annotated[int, typer.Option()] = 0,
    short_seconds: Annotated[
        float,
        typer.Option(min=0, help="Instead: profiles this short beside runs of --seconds: how right they are."),
    ] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Measures real training loops alone, in pairs and in triples, on CPU cores or a GPU."""
    chosen_device = _device(device)
    names = tuple(workload or (LOOPS if chosen_device == "cpu" else NETWORKS))
    _check(names)
    chosen = ProfileSettings(names, chosen_device, _cores(cores), seconds, repeats, triples, seed, pairs)
    if short_seconds > 0:
        _compare(chosen, short_seconds, out / "short.csv", as_json=as_json)
        return
    total = len(names) + (len(groups(names, triples)) if pairs else 0)
    done = itertools.count(1)
    with progress_bar("profile", total, is_hidden=as_json or not sys.stderr.isatty()) as show:
        measured = profile(chosen, lambda what: show(next(done)))
    files = write(measured, chosen, out)
    if as_json:
        norms = {"+".join(s.models): [round(n, 4) for n in s.norms] for s in measured.sets}
        print_json({"files": [str(f) for f in files], "norms": norms, "partial": measured.is_partial})
    else:
        Console().print("\n".join(str(f) for f in files))
    if measured.is_partial:
        raise typer.Exit(INTERRUPTED)


def _compare(chosen: ProfileSettings, short_s: float, path: Path, *, as_json: bool) -> None:
    done = itertools.count(1)
    total = len(chosen.workloads) * chosen.repeats
    with progress_bar("profile", total, is_hidden=as_json or not sys.stderr.isatty()) as show:
        rows = compare(
            chosen.workloads,
            chosen.device,
            chosen.cores,
            short_s,
            chosen.seconds,
            chosen.repeats,
            lambda what: show(next(done)),
        )
    write_short(rows, path, hardware_name(chosen.device), short_s, chosen.seconds)
    right = accuracy([(row.short, row.long) for row in rows])
    if as_json:
        print_json({"files": [str(path)], "accuracy": right, "rows": len(rows)})
    else:
        Console().print(f"{path}\n{100.0 * right:.1f} % right over {len(rows)} metrics")
    if len({(row.model, row.repeat) for row in rows}) < total:
        raise typer.Exit(INTERRUPTED)


def _check(names: Sequence[str]) -> None:
    for name in names:
        try:
            known(name)
        except (KeyError, ValueError):
            raise UsageError(f"--workload {name!r} is none of {', '.join(WORKLOADS)}, nor one with @BATCH") from None


def _device(device: str) -> str:
    if device not in ("auto", "cpu", "cuda"):
        raise UsageError(f"--device is auto, cpu or cuda, not {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: there is no GPU that PyTorch can use")
    return "cuda" if device == "auto" and torch.cuda.is_available() else "cpu" if device == "auto" else device


def _cores(cores: str) -> tuple[int, ...]:
    try:
        return tuple(int(core) for core in cores.split(",") if core.strip())
    except ValueError:
        raise UsageError(f"--cores is a list such as 0,1, not {cores!r}") from None
