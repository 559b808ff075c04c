"""The lease: one replica holds it, another takes over when it lets go, falls silent or loses it."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from placewise_kubernetes import lease as module
from placewise_kubernetes.kube import KubeError, KubeUnreachableError
from placewise_kubernetes.lease import DURATION_S, RENEW_LIMIT_S, Lease, LeaseLostError


class LeaseApi:
    """Leases of an apiserver: a write names the version it changes, and is refused where there is a newer one."""

    def __init__(self) -> None:
        self.document: dict[str, Any] | None = None
        self.is_reachable = True

    async def get(self, path: str) -> dict[str, Any]:
        self._check()
        if self.document is None:
            raise KubeError(404, "NotFound", path)
        return copy.deepcopy(self.document)

    async def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self._check()
        if self.document is not None:
            raise KubeError(409, "AlreadyExists", path)
        self.document = {"metadata": {**body["metadata"], "resourceVersion": "1"}, "spec": body["spec"]}
        return self.document

    async def patch(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self._check()
        assert self.document is not None
        version = self.document["metadata"]["resourceVersion"]
        if body["metadata"]["resourceVersion"] != version:
            raise KubeError(409, "Conflict", path)
        self.document["metadata"]["resourceVersion"] = str(int(version) + 1)
        self.document["spec"] |= body["spec"]
        return self.document

    def _check(self) -> None:
        if not self.is_reachable:
            raise KubeUnreachableError("away")


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    return Clock()


@pytest.fixture
def api() -> LeaseApi:
    return LeaseApi()


def replica(api: Any, name: str, clock: Clock) -> Lease:
    return Lease(api, "placewise/adapter", name, clock)


async def test_the_first_holds_it_and_the_second_waits_until_it_lets_go(api: LeaseApi, clock: Clock) -> None:
    first, second = replica(api, "a", clock), replica(api, "b", clock)
    await first.acquire()
    waiting = asyncio.ensure_future(second.acquire())
    for _ in range(20):
        clock.now_s += 1
        await first._try()  # as `keep` does
        await asyncio.sleep(0)
    assert first.is_held
    assert not second.is_held
    await first.release()
    await asyncio.wait_for(waiting, 1)
    assert (first.is_held, second.is_held) == (False, True)


async def test_a_silent_holder_is_succeeded_after_the_duration_and_stops_before(api: LeaseApi, clock: Clock) -> None:
    first, second = replica(api, "a", clock), replica(api, "b", clock)
    await first.acquire()
    await second._try()
    assert RENEW_LIMIT_S < DURATION_S
    clock.now_s += DURATION_S - 0.1
    await second._try()
    assert not second.is_held
    clock.now_s += 0.2
    await second._try()
    assert second.is_held
    with pytest.raises(LeaseLostError, match="taken by b"):
        await first.keep()
    assert not first.is_held


async def test_a_holder_that_cannot_renew_stops_in_time(api: LeaseApi, clock: Clock) -> None:
    holder = replica(api, "a", clock)
    await holder.acquire()
    api.is_reachable = False
    keeping = asyncio.ensure_future(holder.keep())
    clock.now_s += RENEW_LIMIT_S - 0.1
    await asyncio.sleep(0.01)
    assert not keeping.done()
    clock.now_s += 0.2
    with pytest.raises(LeaseLostError, match="renewed"):
        await asyncio.wait_for(keeping, 1)


async def test_a_replica_started_again_takes_its_own_lease_at_once(api: LeaseApi, clock: Clock) -> None:
    await replica(api, "a", clock).acquire()
    again = replica(api, "a", clock)
    await again._try()
    assert again.is_held


async def test_of_two_that_take_it_at_once_one_is_refused(api: LeaseApi, clock: Clock) -> None:
    first, second = replica(api, "a", clock), replica(api, "b", clock)
    await first.acquire()
    await first.release()
    seen = await api.get("")
    await first._try()
    with pytest.raises(KubeError):
        await second._write(seen["metadata"]["resourceVersion"], "b")
    assert (await api.get(""))["spec"]["holderIdentity"] == "a"
