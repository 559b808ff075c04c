"""The choice of bundles and its history, in memory."""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace

from placewise_service.state.store import MOST_CHANGES, BundleChange, BundleChoice


class MemoryBundles:
    """The part of the reference store that concerns bundles."""

    def __init__(self) -> None:
        self._bundles = BundleChoice()
        self._changes: deque[BundleChange] = deque(maxlen=MOST_CHANGES)
        self._evidence: dict[str, Counter[str]] = {}

    async def bundles(self) -> BundleChoice:
        return self._bundles

    async def choose_bundles(self, choice: BundleChoice, change: BundleChange | None = None) -> bool:
        if choice.seq != self._bundles.seq:
            return False
        self._bundles = replace(choice, seq=choice.seq + 1)
        if change is not None:
            self._changes.appendleft(change)
        return True

    async def bundle_history(self) -> Sequence[BundleChange]:
        return tuple(self._changes)

    async def add_evidence(self, salt: str, counts: Mapping[str, int]) -> Mapping[str, int]:
        found = self._evidence.setdefault(salt, Counter())
        found.update(counts)
        return dict(found)
