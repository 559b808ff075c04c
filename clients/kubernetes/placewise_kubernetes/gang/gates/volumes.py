"""Reads the volumes of held pods, in the background: a decision has to know which nodes may use them. Never writes."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable

from placewise_kubernetes.gang.book import GangBook
from placewise_kubernetes.gang.gang import Gang
from placewise_kubernetes.gang.gates.gated import GatedPods
from placewise_kubernetes.kube.client import KubeClient, KubeUnreachableError
from placewise_kubernetes.kube.objects import Pod
from placewise_kubernetes.kube.volumes import read_volume

log = logging.getLogger(__name__)

RETRY_S = 1.0


class VolumeReader:
    """`under_way`: the reading of each gang's volumes, by the gang's key. `put` takes a pod whose volumes are known;
    `poke` wakes the loop when a gang is done."""

    def __init__(
        self,
        client: KubeClient,
        gated: GatedPods,
        book: GangBook,
        put: Callable[[Pod], None],
        poke: Callable[[], None],
    ) -> None:
        self._client = client
        self._gated = gated
        self._book = book
        self._put = put
        self._poke = poke
        self.under_way: dict[str, asyncio.Task[None]] = {}

    def read(self) -> None:
        """Begins with every gang that waits for its volumes."""
        for gang in self._book.active.values():
            if gang.key not in self.under_way and _unread(gang):
                self.under_way[gang.key] = asyncio.create_task(self._read(gang, gang.key))

    async def _read(self, gang: Gang, key: str) -> None:
        try:
            while unread := _unread(gang):
                for pod in unread:
                    await self._read_for(pod)
                self._resolve(gang)
                if _unread(gang):
                    await asyncio.sleep(RETRY_S)
            self._poke()
        finally:
            del self.under_way[key]

    async def _read_for(self, pod: Pod) -> None:
        try:
            for claim in self._gated.unread(pod):
                volume = await read_volume(self._client, pod.namespace, claim)
                if volume is not None:
                    self._gated.volumes.put((pod.namespace, claim), volume)
        except KubeUnreachableError as error:
            log.warning("volumes of %s: %s", pod.path, error)

    def _resolve(self, gang: Gang) -> None:
        for pod in gang.waiting():
            if pod.is_unread and gang.pods.get(pod.uid) is pod:
                self._put(self._gated.resolve(pod))
        if gang.facts is not None and any(pod.is_unread for pod in gang.facts.templates.values()):
            templates = {role: self._gated.resolve(pod) for role, pod in gang.facts.templates.items()}
            gang.facts = dataclasses.replace(gang.facts, templates=templates)


def _unread(gang: Gang) -> list[Pod]:
    """Pods, and stand-ins, whose volumes are still to be read; none of a gang that no pod is left of."""
    return [pod for pod in gang.to_judge() if pod.is_unread] if gang.live() else []
