"""Digests of tables of numbers that change cell by cell, the same on any machine and in any order of changes."""

import zlib
from collections.abc import Mapping


def digest_of(row: str, cells: Mapping[str, float]) -> int:
    """32 bits over the cells of a row. That of several rows is their exclusive or, so that cells come and go."""
    found = 0
    for name, value in cells.items():
        found ^= zlib.crc32(f"{row}\n{name}\n{float(value)!r}".encode())
    return found
