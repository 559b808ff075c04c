"""Finds the damage in an append-only file of Redis. Reads files and changes none.

A file holds commands in Redis' protocol, after a snapshot if it was rewritten ("preamble"). Scripts stand in it as
transactions: a file ends well only behind a whole one. Redis 7 keeps several files, which a manifest names: a snapshot,
and the commands since.
"""

import mmap
import re
from pathlib import Path

from placewise_core.basics.frozen import frozen

_HEADER = re.compile(rb"([*$])(\d{1,9})\r\n")
# What Redis writes first behind a snapshot, whose last nine bytes are its end mark and a checksum.
_AFTER_SNAPSHOT = b"*2\r\n$6\r\nSELECT\r\n"
_END_MARK, _END_BYTES = 0xFF, 9


_SINGLE, _MANIFEST = "appendonly.aof", "appendonlydir/appendonly.aof.manifest"


@frozen
class Soundness:
    """`size` of a file in bytes, and the position up to which it is `sound`: -1 if unknown."""

    size: int
    sound: int

    @property
    def is_whole(self) -> bool:
        return self.sound == self.size


def files_of(directory: Path) -> list[Path]:
    """The files with commands in the directory of a Redis, in the order in which it reads them. Raises OSError."""
    manifest = directory / _MANIFEST
    if not manifest.exists():
        single = directory / _SINGLE
        return [single] if single.exists() else []
    rows = [line.split() for line in manifest.read_text().splitlines()]  # file NAME seq N type b|i|h
    named = [manifest.parent / row[1] for row in rows if len(row) >= 6 and row[5] != "h"]  # h: replaced, unread
    return [path for path in named if path.suffix == ".aof" and path.exists()]


def damaged_in(directory: Path) -> Path | None:
    """The first file of the directory that cannot be read to its end. Raises OSError."""
    return next((path for path in files_of(directory) if not soundness(path).is_whole), None)


def soundness(path: Path) -> Soundness:
    """How much of the file can be read. Raises OSError."""
    size = path.stat().st_size
    if size == 0:
        return Soundness(0, 0)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        start = _behind_snapshot(data) if data[:5] == b"REDIS" else 0
        return Soundness(size, start if start < 0 else _last_whole(data, start))


def _behind_snapshot(data: mmap.mmap) -> int:
    """The beginning of the commands; -1 if nothing but the snapshot is recognised."""
    at = data.find(_AFTER_SNAPSHOT)
    while at >= 0:
        if at >= _END_BYTES and data[at - _END_BYTES] == _END_MARK:
            return at
        at = data.find(_AFTER_SNAPSHOT, at + 1)
    return -1


def _last_whole(data: mmap.mmap, start: int) -> int:
    """Behind the last command, or the last whole transaction, before anything that is neither."""
    sound = at = start
    is_open = False
    while (command := _command(data, at)) is not None:
        name, at = command
        is_open = name == b"multi" or (is_open and name != b"exec")
        sound = sound if is_open else at
    return sound


def _command(data: mmap.mmap, at: int) -> tuple[bytes, int] | None:
    """The name of the command at this place and its end; None if it is incomplete."""
    header = _HEADER.match(data, at)
    if header is None or header[1] != b"*" or int(header[2]) == 0:
        return None
    name, at = b"", header.end()
    for i in range(int(header[2])):
        part = _HEADER.match(data, at)
        if part is None or part[1] != b"$":
            return None
        first, at = part.end(), part.end() + int(part[2])
        if data[at : at + 2] != b"\r\n":
            return None
        if i == 0:
            name = data[first:at].lower()
        at += 2
    return name, at
