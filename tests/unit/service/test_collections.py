"""Automatic garbage collections while a large answer is built: each walks so many objects and no more."""

import gc
from collections.abc import Iterator

import pytest

from placewise_core.domain.decision import Share
from placewise_service import main


@pytest.fixture
def _settled() -> Iterator[None]:
    before = gc.get_threshold()
    main._settle_garbage_collector()
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("_settled")
def test_no_collection_walks_more_than_a_part_of_a_large_answer() -> None:
    walked: list[int] = []

    def look(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            walked.append(sum(len(gc.get_objects(generation)) for generation in range(info["generation"] + 1)))

    gc.callbacks.append(look)
    try:
        kept = [[Share(f"n{i}", "gpu0", 1.0, 1.0, 60.0, 0.5)] for i in range(100_000)]
    finally:
        gc.callbacks.remove(look)
    assert len(kept) == 100_000
    assert len(walked) >= 10
    assert max(walked) <= 32_000
