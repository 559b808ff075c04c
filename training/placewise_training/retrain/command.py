"""The command `placewise retrain`. Shows progress, prints the verdict; the modules beside it do the work."""

import sqlite3
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from placewise_log.manifest import LogManifest
from placewise_models.bundle import BundleError, load
from placewise_models.signing import BundleKeyError, read_private
from placewise_training.cli import UsageError, print_json
from placewise_training.evaluate.command import REFUSED, NothingToEvaluateError
from placewise_training.evaluate.evaluation import NeverAskedError
from placewise_training.gate.report import as_json, lines
from placewise_training.gate.simulated import WINDOWS
from placewise_training.lab.mlruns import FinishedRun, add_run, numbers
from placewise_training.lab.origin import origin
from placewise_training.lab.register import INTERRUPTED
from placewise_training.lab.work.asked import HELP, METAVAR, PROCESSES_HELP, RayCommand
from placewise_training.lab.work.on_ray import RayUnreachableError
from placewise_training.lab.work.workers import LostItemError
from placewise_training.log.placed import REWARD, Reward
from placewise_training.retrain.retrain import (
    DISK_FULL,
    RetrainArgs,
    Retrained,
    RetrainError,
    is_disk_full,
    retrain,
    work_of,
)
from placewise_training.retrain.rounds import NoRoundError, rest_s, rounds
from placewise_training.retrain.served import ServedCluster
from placewise_training.sim.policies import NeedsBundleError

_KEEP_UP_S: Final = 300.0  # between two exports: a busy ring holds minutes
retrain_app = typer.Typer(add_completion=False)


@dataclass(frozen=True, slots=True)
class _Schedule:
    """`every_s` seconds from one round to the next; `count` rounds, 0 for no end; where runs are recorded."""

    every_s: float
    count: int
    track: Path | None
    as_json: bool
    served: ServedCluster | None


@retrain_app.command(name="retrain", cls=RayCommand)
def retrain_command(
    log: Annotated[
        Path, typer.Option(help="Folder that `placewise log export` wrote; with --target the folder for exports.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the new bundle, which must not exist.")],
    start: Annotated[
        Path | None, typer.Option(help="Bundle to begin with: the incumbent of the log. --target tells it by itself.")
    ] = None,
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
    target: Annotated[
        str, typer.Option(help="With --every: export the log of this running service, HOST:PORT[,…] (gRPC), first.")
    ] = "",
    canary: Annotated[
        float,
        typer.Option(min=0, max=0.99, help="With --target: share of jobs for a bundle that passed; 0: none."),
    ] = 0.0,
    key: Annotated[
        Path | None, typer.Option(help="With --target: private key to sign a bundle that passed.", dir_okay=False)
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(envvar="PLACEWISE_CLIENT_TOKEN_FILE", help="File with the token for --target.")
    ] = None,
    tls_ca: Annotated[
        Path | None, typer.Option(envvar="PLACEWISE_CLIENT_TLS_CA", help="CA certificate (PEM): switches TLS on.")
    ] = None,
    track: Annotated[
        Path | None, typer.Option(help="Also record the run in this folder, as MLflow keeps runs (mlruns).")
    ] = None,
    processes: Annotated[int, typer.Option(min=0, help=f"Of the gate. {PROCESSES_HELP}")] = 0,
    ray: Annotated[str | None, typer.Option(metavar=METAVAR, help=HELP)] = None,
    as_json_: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """A better bundle from the log of a running cluster, or the reasons why there is none (exit code 5)."""
    _check(target, every, start, is_for_service=bool(canary or key))
    policies, steps = tuple(policy or ()), tuple(only or ())
    args = RetrainArgs(
        log,
        start or Path(),
        out,
        cluster,
        policies,
        steps,
        reward,
        block_min,
        windows,
        effort,
        seed,
        ray,
        processes,
    )
    served = ServedCluster(target, log, cluster, token_file, tls_ca, canary, key) if target else None
    start_s = time.time()
    with _translate_errors(args):
        if key is not None:
            read_private(key)  # at once, and not after hours of training
        if every:
            is_promoted = _repeated(args, _Schedule(60.0 * every, rounds_, track, as_json_, served))
        else:
            is_promoted = _shown(args, retrain(args, _show), start_s, track, as_json_)
    if not is_promoted:
        raise typer.Exit(REFUSED)


@contextmanager
def _translate_errors(args: RetrainArgs) -> Iterator[None]:
    """Raises the errors of a retraining as those of the command line, with its exit codes."""
    try:
        yield
    except KeyboardInterrupt:
        Console(stderr=True).print("stopped; the same command goes on where it was")
        raise typer.Exit(INTERRUPTED) from None
    except (LostItemError, RayUnreachableError) as error:
        raise type(error)(f"{error}; {args.out} was not written. Run the same command again to go on") from error
    except (NeverAskedError, NeedsBundleError) as error:
        raise UsageError(str(error)) from error
    except (BundleError, BundleKeyError) as error:
        raise RetrainError(str(error)) from error
    except ValueError as error:
        raise NothingToEvaluateError(f"{args.log}: {error}") from error
    except (OSError, RuntimeError, sqlite3.Error) as error:
        if not is_disk_full(error, args.out.parent):
            raise
        raise RetrainError(f"{DISK_FULL}; the same command goes on. {args.out} was not written") from error


def _check(target: str, every: float, start: Path | None, *, is_for_service: bool) -> None:
    """Raises UsageError for options that do not go together."""
    if target and not every:
        raise UsageError("--target needs --every MINUTES; without them, give an exported log instead of --target")
    if is_for_service and not target:
        raise UsageError("--canary and --key need --target, the service that gets the bundle")
    if (start is None) != bool(target):
        raise UsageError(
            "give either --start, the bundle to begin with, or --target, the service whose bundle is taken"
        )


def _repeated(args: RetrainArgs, schedule: _Schedule) -> bool:
    """True if one round was promoted. A restart keeps to the schedule."""
    is_promoted = False
    _wait(rest_s(args, schedule.every_s), schedule.served)
    start_s = time.time()

    def wait() -> None:
        _wait(schedule.every_s, schedule.served)

    for each in rounds(args, schedule.count, wait, _show, schedule.served):
        if each.found is None:
            _tell(f"round {each.number}: {each.reason}")
        else:
            is_promoted |= _shown(each.args, each.found, start_s, schedule.track, schedule.as_json)
        if each.note:
            _tell(f"round {each.number}: {each.note}")
        start_s = time.time()
    return is_promoted


def _wait(seconds: float, served: ServedCluster | None) -> None:
    """Exports every few minutes meanwhile, before the service's ring forgets its entries."""
    until_s = time.monotonic() + seconds
    while (left_s := until_s - time.monotonic()) > 0:
        time.sleep(min(left_s, _KEEP_UP_S))
        if served is not None and left_s > _KEEP_UP_S:
            try:
                served.keep_up()
            except NoRoundError as error:
                _tell(str(error))


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _shown(args: RetrainArgs, found: Retrained, start_s: float, track: Path | None, as_json_: bool) -> bool:
    if track is not None:
        add_run(track, _as_run(args, found, start_s))
    if as_json_:
        print_json(_json(found))
    else:
        Console().print("\n".join(_lines(found)), markup=False, highlight=False, soft_wrap=True)
    return found.is_promoted


def _show(title: str, done: int, total: int) -> None:
    """The stage on a line of its own: a retraining runs for minutes, mostly unwatched."""
    if done == 0:
        _tell(title)


def _as_run(args: RetrainArgs, found: Retrained, start_s: float) -> FinishedRun:
    """Errors on later rows and the gate's figures are metrics; bundle and gate's reports are artifacts."""
    verdict, later = found.verdict, {step.name: step.later for step in found.steps}
    judged = as_json(verdict) if verdict is not None else {}
    made = [] if verdict is None else [found.folder, work_of(args.out) / "gate"]
    return FinishedRun(
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
