"""The command `placewise`: a table of subcommands, each imported only when it is called. Does no work itself.

Other packages add subcommands by an entry point in the group `placewise.commands`: its name is the command's, its value
a Typer app or a plain function with Typer annotations.
"""

import gc
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points, version
from types import ModuleType
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_command

from placewise_service.commands.exits import Exit, run

PLUGIN_GROUP: Final = "placewise.commands"

# name → module with `app` (a Typer app)
_COMMANDS: Final[Mapping[str, str]] = {
    module.rpartition(".")[2]: f"placewise_service.commands.{module}"
    for module in (
        "local.serve",
        "remote.cluster",
        "remote.whatif",
        "remote.log",
        "local.doctor",
        "local.token",
        "local.state",
        "remote.bundle",
        "remote.replay",
        "local.bench",
    )
}


class LazyGroup(TyperGroup):
    """Finds a subcommand in the table or among the plugins, and imports it then."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*_COMMANDS, *sorted(point.name for point in entry_points(group=PLUGIN_GROUP))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in _COMMANDS:
            return _command(cmd_name, _imported(_COMMANDS[cmd_name]).app)
        for point in entry_points(group=PLUGIN_GROUP, name=cmd_name):
            return _command(cmd_name, _loaded(point.name, point.load))
        return None


def _imported(module: str) -> ModuleType:
    """Imports without the garbage collector, which would walk objects that stay: a tenth of the time of a start."""
    gc.disable()
    try:
        return importlib.import_module(module)
    finally:
        gc.enable()


def _loaded(name: str, load: Callable[[], Any]) -> Any:
    """A plugin's app; without its dependencies, a command that reports the missing one."""
    try:
        return load()
    except ImportError as error:
        reason = f"{name} needs a part that is not installed ({error.name or error}): pip install 'placewise[training]'"
        return _unavailable(reason)


def _unavailable(reason: str) -> typer.Typer:
    """An app that reports the reason, whatever else is on the command line."""
    app = typer.Typer(add_completion=False)

    @app.command(
        help=f"(not available: {reason})",
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
    def command() -> None:
        typer.echo(reason, err=True)
        raise typer.Exit(Exit.FAILED)

    return app


def _command(name: str, target: Any) -> Any:
    if isinstance(target, typer.Typer):
        command = get_command(target)
    else:
        wrapper = typer.Typer(add_completion=False)
        wrapper.command()(target)
        command = get_command(wrapper)
    command.name = name
    return command


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Placewise, a decision service for schedulers: where, how and when to run a job.",
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"placewise {version('placewise')}")
        raise typer.Exit


@app.callback()
def _root(
    is_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Placewise, a decision service for schedulers: where, how and when to run a job."""


def invoke(args: Sequence[str] | None = None) -> int:
    """Runs one command line (None: the process's own); its exit code."""
    return run(get_command(app), args)


def main() -> None:
    """Entry point: runs the command line and ends the process with one of the documented exit codes.

    numpy multiplies matrices in one thread unless the environment sets another number. Two threads take twice the CPU
    for matrices as small as ours. They also round differently, so results would depend on the number of cores.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy reads it when a command imports it
    sys.exit(invoke())


if __name__ == "__main__":
    main()
