"""The command `placewise gate`. Judges a candidate bundle from a log, prints, writes the report."""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from placewise_log.auditing import audited
from placewise_models.bundle import BundleError
from placewise_training.cli import UsageError, print_json
from placewise_training.evaluate.command import REFUSED, NothingToEvaluateError
from placewise_training.evaluate.evaluation import NeverAskedError
from placewise_training.gate.gate import GateArgs, GateVerdict, gate
from placewise_training.gate.report import as_json, lines, record, write
from placewise_training.gate.simulated import WINDOWS
from placewise_training.lab.work.asked import HELP, METAVAR, PROCESSES_HELP, RayCommand, workers_of
from placewise_training.log.placed import REWARD, Reward
from placewise_training.sim.policies import NeedsBundleError

gate_app = typer.Typer(add_completion=False)


@gate_app.command(name="gate", cls=RayCommand)
def gate_command(
    log: Annotated[Path, typer.Option(help="Folder that `placewise log export` wrote.")],
    bundle: Annotated[Path, typer.Option(help="The candidate.")],
    incumbent: Annotated[Path, typer.Option(help="Bundle that the log's policies had.")],
    policy: Annotated[
        list[str] | None, typer.Option(help="Policy on the candidate's nets; repeat to judge the best of several.")
    ] = None,
    cluster: Annotated[str, typer.Option(help="Cluster of the log; by default its only one.")] = "",
    reward: Annotated[Reward, typer.Option(help="Column of `joined` that is the reward.")] = REWARD,
    block_min: Annotated[float, typer.Option(min=1, help="Length of a block of time, several horizons.")] = 120.0,
    windows: Annotated[int, typer.Option(min=4, help="Windows of the paired simulation.")] = WINDOWS,
    out: Annotated[Path | None, typer.Option(help="Folder for the report.")] = None,
    recorded: Annotated[
        Path | None,
        typer.Option(
            "--record", help="Write the candidate and its verdict to this new bundle; promotion reads the verdict."
        ),
    ] = None,
    is_brief: Annotated[
        bool,
        typer.Option(
            "--brief", help="Skip the simulation if a check of the log has failed: the candidate is refused anyway."
        ),
    ] = False,
    processes: Annotated[int, typer.Option(min=0, help=PROCESSES_HELP)] = 0,
    ray: Annotated[str | None, typer.Option(metavar=METAVAR, help=HELP)] = None,
    as_json_: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """May this bundle go to a canary? Exit code 5 if not, with the checks that failed."""
    args = GateArgs(log, bundle, incumbent, tuple(policy or ()), cluster, reward, block_min, windows, out, is_brief)
    with audited("gate --record", recorded.resolve().name) if recorded is not None else nullcontext():
        found = _judged(args, ray, processes)
        if out is not None:
            write(found, out)
        _print(found, as_json_)
        if recorded is not None:
            try:
                record(found, bundle, recorded.resolve())
            except (BundleError, OSError) as error:
                raise UsageError(str(error)) from error
    if not found.is_promoted:
        raise typer.Exit(REFUSED)


def _judged(args: GateArgs, ray: str | None, processes: int) -> GateVerdict:
    try:
        with workers_of(ray, processes) as workers:
            return gate(args, workers)
    except (NeverAskedError, NeedsBundleError) as error:
        raise UsageError(str(error)) from error
    except ValueError as error:
        raise NothingToEvaluateError(f"{args.log}: {error}") from error


def _print(found: GateVerdict, as_json_: bool) -> None:
    if as_json_:
        print_json(as_json(found))
    else:
        Console().print("\n".join(lines(found)), markup=False, highlight=False, soft_wrap=True)
