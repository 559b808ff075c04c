"""The bridge's lease as files in a directory that its hosts share: of several bridges of a cluster one decides.

Every write is a new file, "NAME.<number>", made by a hard link: of several hosts that make the same one, exactly one
succeeds, on NFS as well. The highest number counts; its text is the holder.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from placewise_client.adapter.lease import Lease, LeaseStoreError

T = TypeVar("T")


class FileLease(Lease):
    """`directory` has to exist. `name` is the cluster's; `identity` has to be another for each process."""

    def __init__(self, directory: Path, name: str, identity: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(name, identity, clock)
        self._directory = directory
        self._drafts = itertools.count()

    async def _read(self) -> tuple[str, str]:
        return await self._on_disk(self._newest)

    async def _write(self, version: str, holder: str) -> bool:
        return await self._on_disk(lambda: self._make(int(version or 0) + 1, holder))

    async def _on_disk(self, work: Callable[[], T]) -> T:
        """Off the event loop: shared storage may take its time."""
        try:
            return await asyncio.to_thread(work)
        except OSError as error:
            raise LeaseStoreError(str(error)) from error

    def _newest(self) -> tuple[str, str]:
        while numbers := self._numbers():
            with suppress(FileNotFoundError):  # the holder has renewed it since, and cleared this one away
                return self._path(numbers[-1]).read_text(), str(numbers[-1])
        return "", ""

    def _make(self, number: int, holder: str) -> bool:
        draft = self._directory / f"{self.name}.draft-{self.identity}-{next(self._drafts)}"
        draft.write_text(holder)
        try:
            is_first = _link(draft, self._path(number))
        finally:
            draft.unlink()
        # An old listing may have given a number that was used and cleared away. After a change of its own a host sees
        # the directory as it is.
        numbers = self._numbers()
        if is_first and numbers[-1] != number:
            self._path(number).unlink()
            return False
        if is_first:
            self._clear(numbers[:-1])
        return is_first

    def _clear(self, numbers: list[int]) -> None:
        for number in numbers:
            with suppress(FileNotFoundError):
                self._path(number).unlink()

    def _numbers(self) -> list[int]:
        prefix = f"{self.name}."
        names = (name.removeprefix(prefix) for name in os.listdir(self._directory) if name.startswith(prefix))
        return sorted(int(name) for name in names if name.isdigit())

    def _path(self, number: int) -> Path:
        return self._directory / f"{self.name}.{number}"


def _link(source: Path, target: Path) -> bool:
    """Whether this call has made `target`. NFS may lose the answer to a link that it made: then the link count is 2."""
    try:
        os.link(source, target)
    except FileExistsError:
        return source.stat().st_nlink > 1
    return True
