"""Bundles that explore under their own names, beside the one in force. A decision never waits for one of them."""

import asyncio
from collections.abc import Callable, Collection
from typing import Final

import structlog

from placewise_core.domain.errors import InvalidRequestError, NotFoundError
from placewise_core.gang.policy import PlacementPolicy
from placewise_models.bundle import Bundle
from placewise_service.engine.registry import BundleRegistry

log = structlog.get_logger(__name__)

_RETRY_EVERY: Final = 30  # rounds until a bundle that was refused is tried again: its files may have come meanwhile


class BundleExplorers:
    """The policies of the bundles that clusters name as explorers, by the names they use. One event loop owns it.

    `explorer_of` builds a bundle's policy of this name, or the one that explores for the bundle if the name is "". It
    gives None if the bundle has no net for it.
    """

    def __init__(self, registry: BundleRegistry, explorer_of: Callable[[Bundle, str], PlacementPolicy | None]) -> None:
        self._registry = registry
        self._explorer_of = explorer_of
        self.loaded: dict[str, PlacementPolicy] = {}
        self._refused: set[str] = set()
        self._unused: set[str] = set()
        self._rounds = 0

    async def load(self, name: str) -> None:
        """Loads BUNDLE or BUNDLE/POLICY, the bundle by name or alias. Raises NotFoundError, InvalidRequestError for one
        that is refused or that has no net for it."""
        if name in self.loaded:
            return
        policy = await asyncio.to_thread(self._built, name)
        if policy is None:
            bundle, _, wanted = name.partition("/")
            net = f"for the policy {wanted!r}" if wanted else "that places jobs"
            raise InvalidRequestError(f"the bundle {bundle!r} has no net {net}: name another", "name")
        self.loaded[name] = policy

    async def follow(self, named: Collection[str]) -> None:
        """Loads those of the names that are bundles of this process, and forgets bundles that nobody has named for two
        rounds. Reports each refusal once."""
        self._rounds += 1
        if self._rounds % _RETRY_EVERY == 0:
            self._refused.clear()
        for name in set(named) - self.loaded.keys() - self._refused:
            try:
                await self.load(name)
            except (InvalidRequestError, NotFoundError) as error:
                self._refused.add(name)
                log.error("an explorer is left out", explorer=name, reason=error.message)
        unused = self.loaded.keys() - set(named)
        for name in unused & self._unused:
            del self.loaded[name]
        self._unused = unused

    def _built(self, name: str) -> PlacementPolicy | None:
        bundle, _, policy = name.partition("/")
        return self._explorer_of(self._registry.verified(bundle), policy)
