"""What commands print: JSON for scripts, tables and progress bars for people. Decides nothing about exit codes."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

# A pipe has no width; 80 columns would fold tables that a file or a log has room for.
console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 140)
errors = Console(stderr=True, highlight=False, markup=False)


def print_json(value: Mapping[str, Any]) -> None:
    """One object on stdout, keys in their order."""
    json.dump(value, sys.stdout, ensure_ascii=False)
    sys.stdout.write("\n")


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table; columns whose name ends in a unit in brackets, or that hold numbers, are set right-aligned."""
    cells = [[_cell(value) for value in row] for row in rows]
    raw = list(zip(*cells, strict=True)) if cells else [() for _ in columns]
    console.print(title, style="bold")
    table = Table(header_style="bold", pad_edge=False)
    for name, values in zip(columns, raw, strict=True):
        table.add_column(name, justify="right" if values and all(_is_number(v) for v in values) else "left")
    for row in cells:
        table.add_row(*row)
    console.print(table)


@contextmanager
def progress(description: str, total: int | None, *, is_shown: bool = True) -> Iterator[Progress]:
    """A progress bar on stderr with time left; add to it by `advance(bar.task_ids[0], n)`."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=errors,
        disable=not is_shown,
        transient=True,
    )
    with bar:
        bar.add_task(description, total=total)
        yield bar


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.3g}" if abs(value) < 100 else f"{value:,.0f}"
    return "" if value is None else str(value)


def _is_number(text: str) -> bool:
    return text.replace(",", "").replace(".", "").replace("-", "").replace("e", "").replace("+", "").isdigit()
