"""Slurm's host list expressions: `n[1-3,7],gpu01` to names. Pure text."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

_PART = re.compile(r"[^,\[\]]+|\[[^\]]*\]|,")
# Longer lists could fill the memory: Slurm's own limit on a host list is 64 Ki.
_MOST = 65_536


def expand(expression: str) -> list[str]:
    """Names in order. Raises ValueError for brackets that do not match or an invalid range."""
    names: list[str] = []
    for host in _split(expression):
        names.extend(itertools.islice(_expand_one(host), _MOST + 1))
        if len(names) > _MOST:
            raise ValueError(f"more than {_MOST} hosts in {expression[:60]!r}")
    return names


def _split(expression: str) -> Iterator[list[str]]:
    """Hosts as lists of pieces, each piece literal text or a bracket."""
    if expression.count("[") != expression.count("]"):
        raise ValueError(f"brackets do not match in {expression!r}")
    host: list[str] = []
    for piece in _PART.findall(expression):
        if piece == ",":
            if host:
                yield host
            host = []
        else:
            host.append(piece)
    if host:
        yield host


def _expand_one(pieces: list[str]) -> Iterator[str]:
    choices = [list(_ranges(piece[1:-1])) if piece.startswith("[") else [piece] for piece in pieces]
    return ("".join(chosen) for chosen in itertools.product(*choices))


def _ranges(inside: str) -> Iterator[str]:
    for item in inside.split(","):
        first, dash, last = item.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise ValueError(f"{item!r} is not a range")
        end = int(last) if dash else int(first)
        if end - int(first) >= _MOST:
            raise ValueError(f"more than {_MOST} hosts in {item!r}")
        yield from (str(number).zfill(len(first)) for number in range(int(first), end + 1))
