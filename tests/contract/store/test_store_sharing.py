"""GPUs shared by several jobs: fractions, limits, and whom a decision saw there. On every store (conftest.py)."""

import pytest
from tests.fakes.state import demand, hold, job, task, third

from placewise_core.domain.cluster import RunningJob
from placewise_service.state.store import Conflict, Reserved, StateStore


async def test_fractions_fill_a_gpu_exactly(store: StateStore) -> None:
    seen: tuple[str, ...] = ()
    for name in ("a", "b", "c"):
        assert isinstance(await hold(store, third(name), expected_tenants={"s0/0": seen}), Reserved)
        seen = (*seen, name)
    assert await hold(store, third("d"), expected_tenants={"s0/0": seen}) == Conflict("s0", "GPU_SHARE_FULL")


async def test_a_gpu_takes_no_more_jobs_than_it_may(store: StateStore) -> None:
    small = [job(name, task("s0", (0,), demand(gpus=0.125))) for name in "abcd"]
    for i in range(3):
        assert isinstance(await hold(store, small[i], expected_tenants={"s0/0": tuple("abc"[:i])}), Reserved)
    assert await hold(store, small[3], expected_tenants={"s0/0": ("a", "b", "c")}) == Conflict("s0", "GPU_SHARE_FULL")


async def test_fractions_never_add_up_to_more_than_a_gpu(store: StateStore) -> None:
    def part(name: str) -> RunningJob:
        return job(name, task("s0", (0,), demand(gpus=0.6)))

    assert isinstance(await hold(store, part("a")), Reserved)
    assert await hold(store, part("b"), expected_tenants={"s0/0": ("a",)}) == Conflict("s0", "GPU_SHARE_FULL")


async def test_exclusive_and_sharing_jobs_do_not_mix(store: StateStore) -> None:
    await hold(store, job("a", task("s0", (0,))), job("b", task("s0", (1,)), sharing=True))
    assert await hold(store, third("c", 0), expected_tenants={"s0/0": ("a",)}) == Conflict("s0", "GPU_TAKEN")
    assert await hold(store, job("c", task("s0", (1,)))) == Conflict("s0", "GPU_TAKEN")
    whole = job("c", task("s0", (1,)), sharing=True)
    assert isinstance(await hold(store, whole, expected_tenants={"s0/1": ("b",)}), Reserved)


async def test_shared_gpu_memory_is_counted_per_gpu(store: StateStore) -> None:
    def ask(name: str) -> object:
        return job(name, task("s0", (0, 1), demand(gpus=2.0, gpu_memory_gib=20.0)), sharing=True)

    assert isinstance(await hold(store, ask("a")), Reserved)
    seen = {"s0/0": ("a",), "s0/1": ("a",)}
    assert await hold(store, ask("b"), expected_tenants=seen) == Conflict("s0", "INSUFFICIENT_GPU_MEMORY")


@pytest.mark.parametrize("seen", [{}, {"s0/0": ()}, {"s0/0": ("b",)}, {"s0/0": ("a", "b")}])
async def test_other_tenants_than_the_decision_saw_conflict(
    store: StateStore, seen: dict[str, tuple[str, ...]]
) -> None:
    await hold(store, third("a"))
    result = await hold(store, third("x"), expected_tenants=seen)
    assert result == Conflict("s0", "GPU_TENANTS_CHANGED")


async def test_a_tenant_that_left_conflicts_too(store: StateStore) -> None:
    assert await hold(store, third("x"), expected_tenants={"s0/0": ("a",)}) == Conflict("s0", "GPU_TENANTS_CHANGED")


async def test_jobs_of_one_request_are_no_surprise_to_each_other(store: StateStore) -> None:
    await hold(store, third("a"))
    seen = {"s0/0": ("a", "b")}
    assert isinstance(await hold(store, third("b"), third("c"), expected_tenants=seen), Reserved)
