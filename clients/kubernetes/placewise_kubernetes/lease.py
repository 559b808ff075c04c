"""One adapter of a cluster decides at a time: the one that holds a Lease of coordination.k8s.io and renews it.

Another replica waits. It takes over at once when the holder lets go, and after DURATION_S when the holder falls silent;
a holder that could not renew for RENEW_LIMIT_S stops before that, so two never decide together. Silence is measured by
the waiting replica's own clock from when it saw the last renewal: clocks of different machines are never compared.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from placewise_kubernetes.kube import KubeClient, KubeError, KubeUnreachableError

log = logging.getLogger(__name__)

# client-go's own defaults are 15, 10 and 2 seconds; an extender that is away costs decisions, so ours are shorter.
DURATION_S = 8.0
RENEW_LIMIT_S = 5.0
RETRY_S = 1.0
NOT_FOUND, CONFLICT = 404, 409


class LeaseLostError(Exception):
    """The lease could not be renewed, or another replica has taken it: this one must not decide any more."""


@dataclass(slots=True)
class Lease:
    """`name` is "namespace/name"; `identity` is this replica's alone, and the same when it is started again."""

    client: KubeClient
    name: str
    identity: str
    clock: Callable[[], float] = time.monotonic
    is_held: bool = False
    _renewed_at_s: float = float("-inf")
    _seen: tuple[str, float] = field(default=("", float("-inf")))

    async def acquire(self) -> None:
        """Returns when the lease is held. Waits for as long as another holds it."""
        holder = ""
        while True:
            found = await self._try()
            if self.is_held:
                log.info("lease %s is held by this replica (%s)", self.name, self.identity)
                return
            if found != holder:
                holder = found
                log.info("lease %s is held by %s: waiting", self.name, holder or "nobody known")
            await asyncio.sleep(RETRY_S)

    async def keep(self) -> NoReturn:
        """Renews it. Raises LeaseLostError."""
        while True:
            await asyncio.sleep(RETRY_S)
            holder = await self._try()
            if not self.is_held and holder and holder != self.identity:
                raise LeaseLostError(f"lease {self.name} was taken by {holder}")
            self.is_held = self.clock() - self._renewed_at_s < RENEW_LIMIT_S
            if not self.is_held:
                raise LeaseLostError(f"lease {self.name} could not be renewed for {RENEW_LIMIT_S:g} s")

    async def release(self) -> None:
        """Lets go, so that another replica need not wait. Best effort."""
        if not self.is_held:
            return
        self.is_held = False
        try:
            current = await self.client.get(self._path)
            if _holder(current) == self.identity:
                await self._write(current["metadata"]["resourceVersion"], "")
        except (KubeError, KubeUnreachableError) as error:
            log.info("lease %s is not released: %s", self.name, error)

    async def _try(self) -> str:
        """Takes or renews the lease where it may. Returns who holds it, as far as is known."""
        started_s = self.clock()
        try:
            current = await self.client.get(self._path)
            holder, version = _holder(current), current["metadata"]["resourceVersion"]
            if version != self._seen[0]:
                self._seen = (version, started_s)
            is_silent = started_s - self._seen[1] >= DURATION_S
            if holder not in ("", self.identity) and not is_silent:
                self.is_held = False
                return holder
            await self._write(version, self.identity)
        except KubeError as error:
            if error.status != NOT_FOUND or not await self._create():
                _log_refusal(error, self.name)
                return ""
        except KubeUnreachableError as error:
            log.warning("lease %s: %s", self.name, error)
            return ""
        # From before it was asked for: others count from when they see it, which is later.
        self.is_held, self._renewed_at_s = True, started_s
        return self.identity

    async def _create(self) -> bool:
        namespace, _, name = self.name.partition("/")
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name, "namespace": namespace},
            "spec": self._spec(self.identity),
        }
        try:
            await self.client.create(self._path.rpartition("/")[0], body)
        except (KubeError, KubeUnreachableError) as error:
            log.warning("lease %s is not made: %s", self.name, error)
            return False
        return True

    async def _write(self, version: str, holder: str) -> None:
        """Only where nobody has changed it since `version`: the apiserver refuses it otherwise."""
        await self.client.patch(self._path, {"metadata": {"resourceVersion": version}, "spec": self._spec(holder)})

    def _spec(self, holder: str) -> dict[str, Any]:
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {"holderIdentity": holder, "leaseDurationSeconds": int(DURATION_S), "renewTime": now}

    @property
    def _path(self) -> str:
        namespace, _, name = self.name.partition("/")
        return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"


def _holder(document: dict[str, Any]) -> str:
    return str(document.get("spec", {}).get("holderIdentity") or "")


def _log_refusal(error: KubeError, name: str) -> None:
    if error.status != CONFLICT:  # another replica was faster: nothing to tell
        log.warning("lease %s: %s", name, error)
