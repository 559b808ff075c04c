"""`placewise state`: the append-only file of the embedded Redis. Works on the file alone, and never beside a server."""

import fcntl
import os
import shutil
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from placewise_log.auditing import audited
from placewise_service.commands.connection import JsonOption
from placewise_service.commands.console import print_json
from placewise_service.commands.exits import CommandError, Exit
from placewise_service.commands.store import settings
from placewise_service.state.redis.aof import damaged_in, files_of, soundness

app = typer.Typer(help="The state directory of the embedded Redis.", no_args_is_help=True)

CutOption = Annotated[bool, typer.Option("--cut", help="Copy the file, then cut off its unreadable end.")]


@app.callback()
def _group() -> None:
    """The state directory of the embedded Redis."""


@app.command()
def check(cut: CutOption = False, as_json: JsonOption = False) -> None:
    """Check how far the append-only file can be read. With --cut, copy it and truncate it there."""
    directory = settings().state_dir / "redis"
    files = files_of(directory)
    path = damaged_in(directory) or (files or [directory / "appendonly.aof"])[-1]
    with audited("state check --cut", str(path)) if cut else nullcontext():
        if not files:
            raise CommandError(f"{path} does not exist: check PLACEWISE_STATE_DIR", Exit.USAGE)
        if path != files[-1]:  # what comes after it means nothing without its end
            raise CommandError(f"{path} is damaged, and Redis wrote other files after it: restore a copy", Exit.FAILED)
        _check(path, directory, cut, as_json)


def _check(path: Path, directory: Path, cut: bool, as_json: bool) -> None:
    with (directory / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommandError("a service uses this state directory: stop it first", Exit.USAGE) from None
        found = soundness(path)
        if found.sound < 0:
            raise CommandError(f"{path} holds a snapshot, which cannot be checked: restore a copy", Exit.FAILED)
        copy = _cut(path, found.sound) if cut and not found.is_whole else None
    lost = found.size - found.sound
    if as_json:
        print_json({"file": str(path), "bytes": found.size, "sound_bytes": found.sound, "copy": str(copy or "")})
    elif found.is_whole:
        typer.echo(f"{path}: {found.size} bytes, all of which can be read")
    elif copy is not None:
        typer.echo(f"{path}: cut at byte {found.sound}; the file as it was, {lost} bytes longer, is {copy}")
    else:
        typer.echo(f"{path}: damaged at byte {found.sound}; --cut keeps a copy and cuts off the last {lost} bytes")


def _cut(path: Path, at: int) -> Path:
    copy = path.with_name(f"{path.name}.{time.strftime('%Y%m%dT%H%M%S')}.damaged")
    shutil.copy2(path, copy)
    with path.open("r+b") as file:
        file.truncate(at)
        os.fsync(file.fileno())
    return copy
