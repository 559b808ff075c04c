"""The option `--ray [ADDRESS]`: where a command has its work done."""

import argparse
import os
import re
from collections.abc import Sequence
from typing import Any, Final

from typer.core import TyperCommand

from placewise_training.lab.work.on_ray import LOCAL, OnRay
from placewise_training.lab.work.processes import Processes
from placewise_training.lab.work.workers import Here, Workers

OPTION: Final = "--ray"
METAVAR: Final = "[ADDRESS]"
HELP: Final = (
    "Work on Ray: started on this machine with a worker for each core, or with N of them for the ADDRESS N; or at "
    "HOST:PORT or ray://HOST:PORT. Results are the same."
)
PROCESSES_HELP: Final = "Processes that share the work; 0: one for each core. Results are the same."
_ADDRESS: Final = re.compile(r"\d+|(ray://)?[^\s/:]+:\d+|auto|local")


class RayCommand(TyperCommand):
    """A command with the option, whose value may be left out."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_address(args))


def with_address(arguments: Sequence[str]) -> list[str]:
    """The same arguments with an address behind each `--ray` that has none."""
    given: list[str] = []
    for i, word in enumerate(arguments):
        given.append(word)
        if word == OPTION and not _ADDRESS.fullmatch("".join(arguments[i + 1 : i + 2])):
            given.append(LOCAL)
    return given


def without_address(arguments: Sequence[str]) -> list[str]:
    """The same arguments without the option: where work was done is no part of how a result is made."""
    given = with_address([part for word in arguments for part in _split(word)])
    return [word for i, word in enumerate(given) if OPTION not in given[max(0, i - 1) : i + 1]]


def _split(word: str) -> Sequence[str]:
    return word.split("=", 1) if word.startswith(f"{OPTION}=") else (word,)


def add_option(parser: argparse.ArgumentParser) -> None:
    """The same option for `python -m …`."""
    parser.add_argument(OPTION, nargs="?", const=LOCAL, metavar="ADDRESS", help=HELP)


def workers_of(ray: str | None, processes: int = 1) -> Workers:
    """On Ray if `ray` is an address, else in so many processes, 0: one for each core. Raises RayMissingError."""
    if ray is not None:
        return OnRay(ray)
    count = processes or len(os.sched_getaffinity(0))
    return Processes(count) if count > 1 else Here()
