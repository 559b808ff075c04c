"""`placewise train all`: every other trainer of the command, one after the other, with its defaults. Trains nothing.

A trainer that is registered with the command is run here without being named: what it takes of `out`, `seed`, `resume`
and `card` is passed on.
"""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

NAME = "all"


def run_all(
    app: typer.Typer, out: Path, cards: Path | None, passed: dict[str, Any], show: Callable[[str], None]
) -> list[str]:
    """Runs every command of `app` but this one, each into its own folder under `out`; their names in order.

    Raises what a trainer raises: those after it are not run.
    """
    ran: list[str] = []
    for command in app.registered_commands:
        name, callback = command.name or "", command.callback
        if name == NAME or callback is None:
            continue
        show(name)
        callback(**_options(callback, name, out, cards, passed))
        ran.append(name)
    return ran


def _options(
    callback: Callable[..., Any], name: str, out: Path, cards: Path | None, passed: dict[str, Any]
) -> dict[str, Any]:
    """Every option at its default, except for those passed on."""
    options = {key: parameter.default for key, parameter in inspect.signature(callback).parameters.items()}
    given = {**passed, "out": out / name}
    if cards is not None:
        given["card"] = type(options.get("card", ""))(cards / f"{name}.md")
    return {key: given.get(key, value) for key, value in options.items()}


def register(app: typer.Typer) -> None:
    """Adds the command to `app`, after its trainers."""

    @app.command(name=NAME)
    def _all(
        out: Annotated[Path, typer.Option(help="Folder; every model gets one of its own in it.")] = Path("var/train"),
        seed: Annotated[int, typer.Option(help="Of every draw of every trainer.")] = 0,
        resume: Annotated[bool, typer.Option(help="Go on from the checkpoints in `out`.")] = False,
        cards: Annotated[Path | None, typer.Option(help="Also write the model cards into this folder.")] = None,
    ) -> None:
        """Train every model with its defaults, one after the other. Takes about half an hour of one core."""
        shown = Console(stderr=True)
        run_all(app, out, cards, {"seed": seed, "resume": resume}, shown.rule)
