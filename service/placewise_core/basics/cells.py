"""Digests of tables of numbers that change cell by cell, the same on any machine and in any order of changes."""

from collections.abc import Mapping
from hashlib import blake2b


def number_of(data: bytes) -> int:
    """64 bits over the bytes."""
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")


def digest_of(row: str, cells: Mapping[str, float]) -> int:
    """64 bits over the cells of a row. The exclusive or of several rows' digests is the table's: cells are added and
    removed one by one."""
    found = 0
    for name, value in cells.items():
        found ^= number_of(f"{row}\n{name}\n{float(value)!r}".encode())
    return found
