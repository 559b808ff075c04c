"""One choice of bundles for all processes: it lives in the store, and each process follows it within a second.

A process that cannot use what was chosen (not there, torn, made for another version) keeps its last good bundle, says
so, and tries again now and then. Verifying and loading is the registry's affair.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import structlog

from placewise_core.errors import (
    InvalidRequestError,
    NotFoundError,
    PlacewiseError,
    StaleSnapshotError,
    StateUnavailableError,
)
from placewise_service.model.bundle import Bundle
from placewise_service.model.registry import BundleRegistry, BundleStatus
from placewise_service.state.store import BundleChoice, StateStore

log = structlog.get_logger(__name__)

_PERIOD_S = 1.0
_RETRY_EVERY = 30  # rounds until a bundle that was refused is tried again: its files may have come meanwhile
_ATTEMPTS = 5


class SharedBundles:
    """Lists, activates and rolls back for every process that shares the store. One event loop owns it."""

    def __init__(self, store: StateStore, registry: BundleRegistry) -> None:
        self._store = store
        self._registry = registry
        self._configured = registry.active  # what serves until somebody chooses
        self._seen = BundleChoice()
        self._is_behind = False  # something of the choice in force is refused here
        self._lock = asyncio.Lock()

    async def list(self) -> Sequence[BundleStatus]:
        """Every bundle this process finds, verified anew, with its state here."""
        return await asyncio.to_thread(self._registry.list)

    async def activate(self, name: str) -> BundleStatus:
        """Lets a bundle answer, here at once and everywhere soon.

        Raises NotFoundError, InvalidRequestError for a bundle that is refused here (nothing changes then anywhere),
        StateUnavailableError.
        """
        async with self._lock:
            return await self._activate(name)

    async def rollback(self) -> BundleStatus:
        """Back to the bundle that served before. Raises NotFoundError if there was none, and as activate does."""
        async with self._lock:
            name = (await self._store.bundles()).previous
            if not name:
                raise NotFoundError("no bundle was active before this one")
            return await self._activate(name)

    async def set_shadow(self, name: str) -> BundleStatus | None:
        """Lets a bundle decide and log without answering, everywhere; "" ends that. Raises as activate does."""
        async with self._lock:
            status = self._registry.set_shadow(await self._verified(name) if name else None)
            await self._publish(lambda choice: replace(choice, shadow=name))
            return status

    async def refresh(self, is_retrying: bool = False) -> None:
        """Takes up what was chosen elsewhere. Raises StateUnavailableError."""
        async with self._lock:
            choice = await self._store.bundles()
            if choice.seq != self._seen.seq or (is_retrying and self._is_behind):
                await self._adopt(choice)

    async def follow(self) -> None:
        """Refreshes for ever; outlives every failure of the store."""
        rounds = 0
        while True:
            await asyncio.sleep(_PERIOD_S)
            rounds += 1
            try:
                await self.refresh(is_retrying=rounds % _RETRY_EVERY == 0)
            except StateUnavailableError:
                continue  # the views report it; the choice in force stands

    async def _activate(self, name: str) -> BundleStatus:
        status = self._registry.activate(await self._verified(name))
        await self._publish(lambda choice: self._activated(choice, name))
        return status

    async def _verified(self, name: str) -> Bundle:
        return await asyncio.to_thread(self._registry.verified, name)

    def _activated(self, choice: BundleChoice, name: str) -> BundleChoice:
        old = choice.active or self._configured
        return replace(choice, active=name, previous=choice.previous if old == name else old)

    async def _publish(self, change: Callable[[BundleChoice], BundleChoice]) -> None:
        """Stores what is in force here; what cannot be stored is taken back. Raises PlacewiseError."""
        try:
            for _ in range(_ATTEMPTS):
                choice = change(await self._store.bundles())
                if await self._store.choose_bundles(choice):
                    self._seen = replace(choice, seq=choice.seq + 1)
                    self._is_behind = False
                    return
            raise StaleSnapshotError("the choice of bundles kept changing")
        except PlacewiseError:
            await self._adopt(self._seen)
            raise

    async def _adopt(self, choice: BundleChoice) -> None:
        self._seen, self._is_behind = choice, False
        try:
            self._registry.activate(await self._verified(choice.active or self._configured))
            self._registry.set_shadow(await self._verified(choice.shadow) if choice.shadow else None)
        except (NotFoundError, InvalidRequestError) as error:
            self._is_behind = True
            log.error("a bundle that was chosen is refused here; the last good one serves", reason=error.message)
