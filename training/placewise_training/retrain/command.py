"""The command `placewise retrain`. Shows progress, prints the verdict; the modules beside it do the work."""

import errno
import shutil
import sqlite3
import sys
import time
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from placewise_log.manifest import LogManifest
from placewise_models.bundle import BundleError, load
from placewise_training.cli import UsageError, print_json
from placewise_training.evaluate.command import REFUSED, NothingToEvaluateError
from placewise_training.evaluate.evaluation import NeverAskedError
from placewise_training.gate.report import as_json, lines
from placewise_training.gate.simulated import WINDOWS
from placewise_training.lab.mlruns import Run, add_run, numbers
from placewise_training.lab.origin import origin
from placewise_training.lab.register import INTERRUPTED
from placewise_training.log.placed import REWARD, Reward
from placewise_training.retrain.retrain import RetrainArgs, Retrained, RetrainError, retrain
from placewise_training.retrain.rounds import rounds
from placewise_training.sim.policies import NeedsBundleError

_FULL_BYTES = 1 << 16
retrain_app = typer.Typer(add_completion=False)


@retrain_app.command(name="retrain")
def retrain_command(
    log: Annotated[Path, typer.Option(help="Folder that `placewise log export` wrote.")],
    start: Annotated[Path, typer.Option(help="Bundle to begin with: the incumbent of the log.")],
    out: Annotated[Path, typer.Option(help="Folder of the new bundle, which must not exist.")],
    cluster: Annotated[str, typer.Option(help="Cluster of the log; by default its only one.")] = "",
    policy: Annotated[
        list[str] | None, typer.Option(help="Policy that the gate judges; repeat for the best of several.")
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="Train this model alone; repeat for more.")] = None,
    reward: Annotated[Reward, typer.Option(help="Column of `joined` that is the reward.")] = REWARD,
    block_min: Annotated[float, typer.Option(min=1, help="Length of a block of time, several horizons.")] = 120.0,
    windows: Annotated[int, typer.Option(min=4, help="Windows of the paired simulation.")] = WINDOWS,
    effort: Annotated[float, typer.Option(min=0.01, help="Share of the usual steps of training.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of every draw.")] = 0,
    every: Annotated[
        float, typer.Option(min=0, help="Again every so many minutes, from the bundle that passed last: OUT-0001, …")
    ] = 0.0,
    rounds_: Annotated[int, typer.Option("--rounds", min=0, help="With --every: so many; 0: until stopped.")] = 0,
    track: Annotated[
        Path | None, typer.Option(help="Also record the run in this folder, as MLflow keeps runs (mlruns).")
    ] = None,
    as_json_: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """A better bundle from the log of a running cluster, or the reasons why there is none (exit code 5)."""
    args = RetrainArgs(
        log, start, out, cluster, tuple(policy or ()), tuple(only or ()), reward, block_min, windows, effort, seed
    )
    start_s = time.time()
    try:
        if every:
            is_promoted = _repeated(args, every, rounds_, track, as_json_)
        else:
            is_promoted = _shown(args, retrain(args, _show), start_s, track, as_json_)
    except KeyboardInterrupt:
        Console(stderr=True).print("stopped; the same command goes on where it was")
        raise typer.Exit(INTERRUPTED) from None
    except (NeverAskedError, NeedsBundleError) as error:
        raise UsageError(str(error)) from error
    except BundleError as error:
        raise RetrainError(str(error)) from error
    except ValueError as error:
        raise NothingToEvaluateError(f"{log}: {error}") from error
    except (OSError, RuntimeError, sqlite3.Error) as error:
        if not _is_disk_full(error, out.parent):
            raise
        raise RetrainError(
            f"the disk is full: free some of it; the same command goes on. {out} was not written"
        ) from error
    if not is_promoted:
        raise typer.Exit(REFUSED)


def _repeated(args: RetrainArgs, every_min: float, count: int, track: Path | None, as_json_: bool) -> bool:
    """True if one round was promoted."""
    is_promoted, start_s = False, time.time()
    for each in rounds(args, count, lambda: time.sleep(60.0 * every_min), _show):
        if each.found is None:
            print(f"round {each.number}: {each.reason}", file=sys.stderr, flush=True)
        else:
            is_promoted |= _shown(args, each.found, start_s, track, as_json_)
        start_s = time.time()
    return is_promoted


def _shown(args: RetrainArgs, found: Retrained, start_s: float, track: Path | None, as_json_: bool) -> bool:
    if track is not None:
        add_run(track, _as_run(args, found, start_s))
    if as_json_:
        print_json(_json(found))
    else:
        Console().print("\n".join(_lines(found)), markup=False, highlight=False, soft_wrap=True)
    return found.is_promoted


def _is_disk_full(error: Exception, folder: Path) -> bool:
    """torch hides the system's reason behind its own: then the space that is left says it."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    if isinstance(error, sqlite3.Error):
        return "disk is full" in str(error)
    return shutil.disk_usage(folder).free < _FULL_BYTES


def _show(title: str, done: int, total: int) -> None:
    """The stage on a line of its own: a retraining runs for minutes, mostly unwatched."""
    if done == 0:
        print(title, file=sys.stderr, flush=True)


def _as_run(args: RetrainArgs, found: Retrained, start_s: float) -> Run:
    """Errors on later rows and the gate's figures are metrics; bundle and gate's reports are artifacts."""
    verdict, later = found.verdict, {step.name: step.later for step in found.steps}
    judged = as_json(verdict) if verdict is not None else {}
    made = [] if verdict is None else [found.folder, args.out.with_name(f"{args.out.name}.retrain") / "gate"]
    return Run(
        "retrain",
        args.out.name,
        start_s,
        {each.name: getattr(args, each.name) for each in fields(args)},
        dict(numbers({"later": later, **{name: judged.get(name) for name in ("evaluation", "simulated")}})),
        {
            "verdict": "promoted" if found.is_promoted else "refused",
            "data/log": LogManifest.read(args.log).digest,
            "data/start": load(args.start).digest,
            **origin(),
        },
        made,
    )


def _json(found: Retrained) -> Mapping[str, Any]:
    return {
        "promoted": found.is_promoted,
        "bundle": str(found.folder),
        "steps": {step.name: {"left": step.left, "later": step.later} for step in found.steps},
        "gate": as_json(found.verdict) if found.verdict is not None else None,
    }


def _lines(found: Retrained) -> list[str]:
    shown = []
    for step in found.steps:
        later = step.later
        learnt = f"error on later rows {later['error_before']:.3g} → {later['error_after']:.3g}" if later else "learnt"
        shown.append(f"{step.name}: {f'left as it was: {step.left}' if step.left else learnt}")
    if found.verdict is None:
        return [*shown, "refused: no model learnt anything"]
    return [*shown, *lines(found.verdict), str(found.folder)]
