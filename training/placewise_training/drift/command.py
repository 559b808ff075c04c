"""The command `placewise drift`. Reads a log and prints; the modules beside it compute."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from placewise_training.cli import print_json
from placewise_training.drift.compare import as_json, drift_of_log, lines

DRIFTED = 5  # exit code: it worked, and the answer is no
drift_app = typer.Typer(add_completion=False)


class NothingToCompareError(Exception):
    """The log holds too little for two stretches."""

    exit_code = DRIFTED


@drift_app.command(name="drift")
def drift_command(
    log: Annotated[Path, typer.Option(help="Folder that `placewise log export` wrote.")],
    bundle: Annotated[str, typer.Option(help="Only decisions of the bundle of this name.")] = "",
    recent_share: Annotated[
        float, typer.Option(min=0.01, max=0.99, help="Share of the time that counts as recent.")
    ] = 0.25,
    block_min: Annotated[float, typer.Option(min=1, help="Length of a block of time.")] = 120.0,
    as_json_: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Does the cluster still look as it did? Compares the last part of a log with the part before it."""
    try:
        found = drift_of_log(log, recent_share, 60.0 * block_min, bundle)
    except ValueError as error:
        raise NothingToCompareError(f"{log}: {error}") from error
    if as_json_:
        print_json(as_json(found))
    else:
        Console().print("\n".join(lines(found)), markup=False, highlight=False, soft_wrap=True)
    if found.is_drifted:
        raise typer.Exit(DRIFTED)
