"""Keeps a mirror of one resource: list, then watch. Never writes.

After a break it resumes from the last version seen. If the apiserver has forgotten that version, it lists again, and
the sink learns of all objects that went missing meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from placewise_client.backoff import Backoff
from placewise_kubernetes.kube.client import GONE, OPENED, KubeClient, KubeError, KubeUnreachableError

log = logging.getLogger(__name__)

PAUSES = Backoff(0.1, 5.0)
FORBIDDEN, NOT_FOUND = 403, 404
# How often a collection is looked for that the apiserver does not serve: its definition may be installed any time.
ABSENT_S = 60.0


class Sink(Protocol):
    """The receiver of changes. Methods are called from one coroutine and must not block or raise."""

    def read(self, item: Mapping[str, Any]) -> Any:
        """The part of a listed object that `replace` needs. The objects of a large cluster together fill gigabytes."""

    def replace(self, items: Iterable[Any]) -> None:
        """The complete list, as `read` has given it; objects that are not in it are gone."""

    def change(self, item: Mapping[str, Any]) -> None:
        """Added or modified."""

    def remove(self, item: Mapping[str, Any]) -> None:
        """Deleted."""


class Reflector:
    """Lists and watches `path` into `sink` until it is cancelled.

    `tried`: it has listed, or has failed to. One that `may_be_absent` is passed over, and looked for again later, where
    the apiserver does not serve it or does not let us see it: then it `is_absent`. `settled`: it has listed, or is
    passed over.
    """

    def __init__(self, client: KubeClient, path: str, sink: Sink, *, may_be_absent: bool = False) -> None:
        self._may_be_absent = may_be_absent
        self._client = client
        self._path = path
        self._sink = sink
        self._version = ""
        self._failed = 0
        self.synced = asyncio.Event()
        self.tried = asyncio.Event()
        self.settled = asyncio.Event()
        self.is_broken = False
        self.is_absent = False

    async def run(self) -> None:
        """Never returns; survives every error of the API."""
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except KubeError as error:
                # 410: the version is too old. Any other refusal may have come with a version that is of no use either.
                self._version = ""
                if self._may_be_absent and error.status in (FORBIDDEN, NOT_FOUND):
                    await self._pass_over(error)
                elif error.status != GONE:
                    await self._rest(error)
            except KubeUnreachableError as error:
                await self._rest(error)

    def is_live(self) -> bool:
        """Whether the sink is up to date."""
        return self.synced.is_set() and not self.is_broken

    async def _list(self) -> None:
        items, version = await self._client.list_all(self._path, self._sink.read)
        self._note_recovery()  # first: the sink may depend on it
        self._sink.replace(items)
        self._version = version
        for event in (self.synced, self.tried, self.settled):
            event.set()

    async def _watch(self) -> None:
        async for kind, item in self._client.watch(self._path, self._version):
            self._note_recovery()
            if kind == OPENED:
                continue
            self._version = item["metadata"]["resourceVersion"]
            if kind == "DELETED":
                self._sink.remove(item)
            elif kind != "BOOKMARK":
                self._sink.change(item)

    def _note_recovery(self) -> None:
        self.is_broken = self.is_absent = False
        self._failed = 0

    async def _pass_over(self, error: KubeError) -> None:
        if not self.is_absent:
            log.info("%s is not watched, and is looked for every %.0f s: %s", self._path, ABSENT_S, error)
        self.is_absent = self.is_broken = True
        self._sink.replace(())
        self.tried.set()
        self.settled.set()
        await asyncio.sleep(ABSENT_S)

    async def _rest(self, error: Exception) -> None:
        self.is_broken = True
        self.tried.set()
        self._failed += 1
        pause_s = PAUSES.pause_s(self._failed)
        log.warning("watch of %s: %s; again in %.1f s", self._path, error, pause_s)
        await asyncio.sleep(pause_s)
