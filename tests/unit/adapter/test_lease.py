"""The lease, wherever it is kept: one adapter holds it, another takes over when it releases it or falls silent."""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from placewise_client.adapter import lease as module
from placewise_client.adapter.lease import DURATION_S, RENEW_LIMIT_S, Lease, LeaseLostError, LeaseStoreError
from placewise_kubernetes.kube.client import KubeClient, KubeError, KubeUnreachableError
from placewise_kubernetes.kube.lease import KubeLease
from placewise_slurm.lease import FileLease


class LeaseApi:
    """Leases of an apiserver: a write names the version it changes, and is refused if there is a newer one."""

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


class Place:
    """Where leases are kept, and how to switch it off."""

    def __init__(self, make: Callable[[str, Clock], Lease], set_reachable: Callable[[bool], None]) -> None:
        self.clock = Clock()
        self.set_reachable = set_reachable
        self._make = make

    def replica(self, name: str) -> Lease:
        return self._make(name, self.clock)


def in_api() -> Place:
    api = LeaseApi()

    def set_reachable(is_reachable: bool) -> None:
        api.is_reachable = is_reachable

    return Place(lambda name, clock: KubeLease(cast(KubeClient, api), "placewise/adapter", name, clock), set_reachable)


def in_files(directory: Path) -> Place:
    kept = directory / "kept"
    kept.mkdir()

    def set_reachable(is_reachable: bool) -> None:
        (directory / "away" if is_reachable else kept).rename(kept if is_reachable else directory / "away")

    return Place(lambda name, clock: FileLease(kept, "main.lease", name, clock), set_reachable)


@pytest.fixture(params=["api", "files"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    return in_api() if request.param == "api" else in_files(tmp_path)


async def test_the_first_holds_it_and_the_second_waits_until_it_is_released(place: Place) -> None:
    first, second = place.replica("a"), place.replica("b")
    await first.acquire()
    waiting = asyncio.ensure_future(second.acquire())
    for _ in range(20):
        place.clock.now_s += 1
        await first.attempt()  # as `keep` does
        await asyncio.sleep(0.002)
    assert first.is_held
    assert not second.is_held
    await first.release()
    await asyncio.wait_for(waiting, 30)
    assert (first.is_held, second.is_held) == (False, True)


async def test_a_silent_holder_is_succeeded_after_the_duration_and_stops_before(place: Place) -> None:
    first, second = place.replica("a"), place.replica("b")
    await first.acquire()
    await second.attempt()
    assert RENEW_LIMIT_S < DURATION_S
    place.clock.now_s += DURATION_S - 0.1
    await second.attempt()
    assert not second.is_held
    place.clock.now_s += 0.2
    await second.attempt()
    assert second.is_held
    with pytest.raises(LeaseLostError):
        await first.keep()
    assert not first.is_held


async def test_who_has_taken_it_is_said(place: Place) -> None:
    first, second = place.replica("a"), place.replica("b")
    await first.acquire()
    await first.release()
    await second.acquire()
    with pytest.raises(LeaseLostError, match="taken by b"):
        await first.keep()


async def test_a_holder_that_cannot_renew_stops_in_time(place: Place) -> None:
    holder = place.replica("a")
    await holder.acquire()
    place.set_reachable(False)
    keeping = asyncio.ensure_future(holder.keep())
    place.clock.now_s += RENEW_LIMIT_S - 0.1
    await asyncio.sleep(0.01)
    assert not keeping.done()
    place.clock.now_s += 0.2
    with pytest.raises(LeaseLostError, match="renewed"):
        await asyncio.wait_for(keeping, 30)


async def test_storage_that_hangs_does_not_keep_the_holder(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RENEW_LIMIT_S", 0.05)
    holder = place.replica("a")
    await holder.acquire()

    async def hang() -> tuple[str, str]:
        place.clock.now_s += 1
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(holder, "_read", hang)
    with pytest.raises(LeaseLostError, match="renewed"):
        await asyncio.wait_for(holder.keep(), 30)


async def test_a_replica_of_the_same_identity_takes_its_own_lease_at_once(place: Place) -> None:
    await place.replica("a").acquire()
    again = place.replica("a")
    await again.attempt()
    assert again.is_held


async def test_of_many_that_write_at_once_one_succeeds(place: Place) -> None:
    replicas = [place.replica(f"r{number}") for number in range(8)]
    for _ in range(20):
        holder, version = await replicas[0]._read()
        written = await asyncio.gather(*(replica._write(version, replica.identity) for replica in replicas))
        assert sum(written) == 1
        assert await replicas[0]._read() != (holder, version)
        assert (await replicas[0]._read())[0] == f"r{written.index(True)}"


async def test_work_ends_with_the_lease_and_the_lease_with_the_work(place: Place) -> None:
    holder, other = place.replica("a"), place.replica("b")
    await holder.acquire()
    ended = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("work")

    leading = asyncio.ensure_future(holder.lead(work()))
    await asyncio.sleep(0)
    is_taken = False
    while not is_taken:  # unless it was renewed in between
        is_taken = await other._write((await other._read())[1], "b")
    with pytest.raises(LeaseLostError):
        await asyncio.wait_for(leading, 30)
    assert ended == ["work"]

    async def done() -> None:
        ended.append("done")

    await other.lead(done())
    assert ended == ["work", "done"]


async def test_an_old_number_is_not_taken_again(tmp_path: Path) -> None:
    """A host whose listing is an old one may believe in a number that was used and cleared away."""
    lease = FileLease(tmp_path, "main.lease", "a")
    for number in range(5):
        assert await lease._write(str(number) if number else "", "a")
    assert not await lease._write("2", "b")
    assert await lease._read() == ("a", "5")
    assert os.listdir(tmp_path) == ["main.lease.5"]


async def test_a_missing_directory_is_said(tmp_path: Path) -> None:
    with pytest.raises(LeaseStoreError, match="nowhere"):
        await FileLease(tmp_path / "nowhere", "main.lease", "a")._read()
