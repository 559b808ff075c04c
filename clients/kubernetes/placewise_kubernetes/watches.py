"""The watches of the host, and what has to be known before the first look."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from placewise_client.adapter.native import HostUnreachableError
from placewise_kubernetes.gang.spec import Source
from placewise_kubernetes.kube.watch import Reflector

SYNC_LIMIT_S = 5.0


@dataclass(frozen=True, slots=True)
class Watches:
    """`needed`: nodes and pods. `devices` and `others` are of collections that a cluster may not have.

    `jobs` is not waited for: a cluster whose Jobs may not be read has its gangs decided by their pods.
    """

    needed: Sequence[Reflector]
    devices: Sequence[Reflector]
    groups: Mapping[Source, Reflector]
    others: Sequence[Reflector]
    jobs: Sequence[Reflector]

    async def run(self) -> None:
        """Watches until it is cancelled."""
        reflectors = (*self.groups.values(), *self.others, *self.devices, *self.needed, *self.jobs)
        await asyncio.gather(*(reflector.run() for reflector in reflectors))

    def is_synced(self) -> bool:
        """Whether nodes and pods have been listed at least once, and devices and groups too where they can be."""
        return all(event.is_set() for event in self._first_lists())

    def is_current(self) -> bool:
        """Whether the mirrors of nodes and pods are up to date."""
        return self.is_synced() and not any(reflector.is_broken for reflector in self.needed)

    async def wait_synced(self) -> None:
        """Waits for the first lists. Raises HostUnreachableError: they do not come in time, or a watch is broken."""
        if not self.is_synced():
            try:
                async with asyncio.timeout(SYNC_LIMIT_S):
                    for event in self._first_lists():
                        await event.wait()
            except TimeoutError as error:
                raise HostUnreachableError("nodes, pods and devices have not been listed yet") from error
        if not self.is_current():
            # A decision on an old view could not be bound anyway.
            raise HostUnreachableError("a watch is broken")

    def _first_lists(self) -> list[asyncio.Event]:
        """A start is reported once: with the GPUs of its claims, if claims can be read at all."""
        tried = [reflector.tried for reflector in (*self.groups.values(), *self.others)]
        settled = [reflector.settled for reflector in self.devices]
        return [*tried, *settled, *(reflector.synced for reflector in self.needed)]
