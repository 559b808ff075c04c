"""One choice of bundles and shadows for all processes: it lives in the store, and each follows it within a second.

A choice is a name with the digest of its contents; an alias has none, and stands for the bundle that each process finds
under it. A process that cannot use the chosen bundle (not there, torn, other contents, made for another version) keeps
its last good one, reports that, is not ready, and tries again now and then. Verifying and loading is the registry's
task.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import structlog

from placewise_core.domain.errors import (
    InvalidRequestError,
    NotFoundError,
    PlacewiseError,
    StaleSnapshotError,
    StateUnavailableError,
)
from placewise_models.bundle import Bundle
from placewise_service.engine.parts import check_policy_exists
from placewise_service.engine.registry import BundleRegistry, BundleStatus, Serving
from placewise_service.engine.shadowing.questions import COMPLETED
from placewise_service.engine.shadows import PolicySet, Shadow
from placewise_service.state.store import ActiveChoice, BundleChoice, ShadowChoice, StateStore

log = structlog.get_logger(__name__)

_PERIOD_S = 1.0
_RETRY_EVERY = 30  # rounds until a bundle that was refused is tried again: its files may have come meanwhile
_ATTEMPTS = 5


class SharedBundles:
    """Lists, activates and rolls back for every process that shares the store. One event loop owns it."""

    def __init__(self, store: StateStore, registry: BundleRegistry) -> None:
        self._store = store
        self._registry = registry
        # What serves until somebody chooses.
        self._configured = registry.configured
        self._configured_digest = self._pinned(registry.configured, registry.bundle)
        self._seen = BundleChoice()
        self._is_behind = False  # something of the choice in force is refused here
        self.problem = ""  # why the serving bundle is not the chosen one
        self._lock = asyncio.Lock()

    async def list(self) -> Sequence[BundleStatus]:
        """Every bundle that this process finds, verified again, with its state here."""
        return await asyncio.to_thread(self._registry.list)

    async def activate(self, name: str, cluster: str = "") -> BundleStatus:
        """Lets a bundle answer, here at once and everywhere soon: for one cluster, or for all that have none of their
        own. "" as a bundle ends the cluster's own.

        Raises NotFoundError, InvalidRequestError for a bundle that is refused here (nothing changes then anywhere),
        StateUnavailableError.
        """
        async with self._lock:
            return await (self._activate_for(cluster, name) if cluster else self._activate(name))

    async def rollback(self, cluster: str = "") -> BundleStatus:
        """Back to the bundle that served before, which for a cluster may be that of all. Raises NotFoundError if there
        was none, and as activate does."""
        async with self._lock:
            choice = await self._store.bundles()
            if cluster:
                own = choice.actives.get(cluster)
                if own is None:
                    raise NotFoundError(f"no bundle was activated for {cluster!r} alone", {"cluster": cluster})
                return await self._activate_for(cluster, own.previous)
            if not choice.previous:
                raise NotFoundError("no bundle was active before this one")
            return await self._activate(choice.previous)

    async def set_shadow(self, name: str, cluster: str = "", policy: str = "") -> BundleStatus | None:
        """Lets a bundle, or a policy of the one that answers, decide and log without answering; both "" end that. For
        one cluster, or, for "", for all that have no shadow of their own.

        The bundle's status, None without one. Raises as activate does, and InvalidRequestError for a policy that does
        not exist or a bundle that has no net for it.
        """
        async with self._lock:
            bundle = await self._unaltered(name, (await self._store.bundles()).digest_of(name)) if name else None
            chosen = ShadowChoice(name, self._pinned(name, bundle) if bundle else "", policy)
            known: dict[ShadowChoice, Shadow | None] = {}
            if chosen != ShadowChoice():
                shadow = self._registry.shadows.ready(bundle, policy)
                known[chosen] = _checked(shadow, shadow.policies or self._registry.policies_of(cluster))
            await self._publish(lambda choice: choice.with_shadow(cluster, chosen))
            await self._use_shadows(self._seen, known)
            return self._registry.status(bundle) if bundle is not None else None

    @property
    def shadows(self) -> Mapping[str, ShadowChoice]:
        """The shadows that were chosen, by cluster; "" for all others. A process that is refused one has none."""
        return self._seen.all_shadows

    @property
    def actives(self) -> Mapping[str, ActiveChoice]:
        """The bundles that were chosen for single clusters."""
        return self._seen.actives

    async def forget(self, cluster: str) -> None:
        """Ends the shadow and the own bundle of a cluster that was deleted. Raises StateUnavailableError."""
        async with self._lock:
            choice = await self._store.bundles()
            if cluster in choice.shadows or cluster in choice.actives:
                await self._publish(
                    lambda found: found.with_shadow(cluster, ShadowChoice()).with_active(cluster, "", "")
                )
                await self._adopt(self._seen)

    async def refresh(self, is_retrying: bool = False) -> None:
        """Takes up a choice made elsewhere. Raises StateUnavailableError."""
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
        bundle = await self._unaltered(name, (await self._store.bundles()).digest_of(name))
        status = self._registry.activate(bundle)
        await self._publish(lambda choice: self._activated(choice, name, self._pinned(name, bundle)))
        return status

    async def _activate_for(self, cluster: str, name: str) -> BundleStatus:
        """Lets a bundle answer for a cluster; for "", that of all."""
        if not name:
            await self._publish(lambda choice: choice.with_active(cluster, "", ""))
            self._registry.serve({other: own for other, own in self._registry.own.items() if other != cluster})
            return self._registry.status(self._registry.bundle)
        bundle = await self._unaltered(name, (await self._store.bundles()).digest_of(name))
        serving, digest = self._registry.serving(bundle), self._pinned(name, bundle)
        await self._publish(lambda choice: choice.with_active(cluster, name, digest))
        self._registry.serve({**self._registry.own, cluster: serving})
        return self._registry.status(bundle)

    async def _unaltered(self, name: str, digest: str) -> Bundle:
        """The bundle, verified. Raises InvalidRequestError where its digest is another than that it was chosen under,
        or than that of the bundle of this name that serves."""
        bundle = await asyncio.to_thread(self._registry.verified, name)
        serving = self._registry.bundle
        wanted = digest or (serving.digest if serving.name == bundle.name else "")
        if wanted and bundle.digest != wanted:
            raise InvalidRequestError(
                f"bundle {name!r} has the digest {bundle.digest[:12]}…, and {wanted[:12]}… was chosen. "
                "A bundle is never altered: put its files back, or give the new bundle another name",
                "name",
            )
        return bundle

    def _pinned(self, name: str, bundle: Bundle) -> str:
        """The digest to choose `name` under; "" for an alias, which follows the release of each process."""
        return "" if self._registry.is_alias(name) else bundle.digest

    def _activated(self, choice: BundleChoice, name: str, digest: str) -> BundleChoice:
        old = (choice.active, choice.active_digest) if choice.active else (self._configured, self._configured_digest)
        previous = (choice.previous, choice.previous_digest) if old[0] == name else old
        return replace(choice, active=name, active_digest=digest, previous=previous[0], previous_digest=previous[1])

    async def _publish(self, change: Callable[[BundleChoice], BundleChoice]) -> None:
        """Stores the choice in force here; a choice that cannot be stored is undone. Raises PlacewiseError."""
        try:
            for _ in range(_ATTEMPTS):
                choice = change(await self._store.bundles())
                if await self._store.choose_bundles(choice):
                    self._seen = replace(choice, seq=choice.seq + 1)
                    self._is_behind, self.problem = False, ""
                    return
            raise StaleSnapshotError("the choice of bundles changed during each attempt: try again")
        except PlacewiseError:
            await self._adopt(self._seen)
            raise

    async def _adopt(self, choice: BundleChoice) -> None:
        self._seen = choice
        name, digest = (choice.active, choice.active_digest) if choice.active else (self._configured, "")
        # The serving bundle is not read again: even if its files changed since, it is the chosen one.
        is_served = self._registry.serves(name, digest)
        self.problem = "" if is_served else await self._refusal(self._registry.activate, name, digest)
        self.problem = await self._use_actives(choice) or self.problem
        are_all_here = await self._use_shadows(choice, {})
        self._is_behind = bool(self.problem) or not are_all_here

    async def _use_actives(self, choice: BundleChoice) -> str:
        """Puts the bundles of single clusters into force; why one is refused here, or "". Its cluster keeps the last
        good one. No answer waits."""
        own, problem = dict[str, Serving](), ""
        for cluster, chosen in choice.actives.items():
            serving = self._registry.own.get(cluster)
            if serving is None or not chosen.digest or serving.bundle.digest != chosen.digest:
                try:
                    serving = self._registry.serving(await self._unaltered(chosen.bundle, chosen.digest))
                except (NotFoundError, InvalidRequestError) as error:
                    problem = _refused(chosen.bundle, error)
            if serving is not None:
                own[cluster] = serving
        self._registry.serve(own)
        return problem

    async def _use_shadows(self, choice: BundleChoice, known: dict[ShadowChoice, Shadow | None]) -> bool:
        """Puts the chosen shadows into force, `known` of them ready; False if one is refused here. No answer waits."""
        chosen = choice.all_shadows
        for each in chosen.values():
            if each not in known:
                known[each] = await self._shadow(each)
        ready = {cluster: shadow for cluster, each in chosen.items() if (shadow := known[each]) is not None}
        self._registry.shadows.use(ready)
        return len(ready) == len(chosen)

    async def _shadow(self, chosen: ShadowChoice) -> Shadow | None:
        shadows = self._registry.shadows
        try:
            if not chosen.bundle:
                return shadows.ready(None, chosen.policy)
            bundle = shadows.kept(chosen.bundle, chosen.digest)
            return shadows.ready(bundle or await self._unaltered(chosen.bundle, chosen.digest), chosen.policy)
        except (NotFoundError, InvalidRequestError) as error:
            log.error("a shadow that was chosen is refused here: it does not decide", reason=error.message)
            return None

    async def _refusal(self, take: Callable[[Bundle], object], name: str, digest: str) -> str:
        """Takes up a bundle; why that could not be, which is logged, or ""."""
        try:
            take(await self._unaltered(name, digest))
        except (NotFoundError, InvalidRequestError) as error:
            return _refused(name, error)
        return ""


def _refused(name: str, error: PlacewiseError) -> str:
    log.error("a bundle that was chosen is refused here; the last good one serves", reason=error.message)
    return f"the bundle {name!r} was chosen and is refused here: {error.message}"


def _checked(shadow: Shadow, policies: PolicySet) -> Shadow:
    """The same. Raises InvalidRequestError for a policy that does not exist, or that its own bundle has no net for."""
    check_policy_exists(shadow.policy, {*policies.placement, *policies.of_other_calls}, "policy")
    resting = {*policies.learned, *policies.admission, *policies.partition, *COMPLETED}
    if shadow.bundle is not None and shadow.policy and shadow.policy not in resting:
        raise InvalidRequestError(
            f"the bundle {shadow.bundle.name!r} has no net for {shadow.policy!r}: leave the bundle out", "policy"
        )
    return shadow
