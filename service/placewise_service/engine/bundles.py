"""One choice of bundles, canaries and shadows for all processes. It lives in the store; each follows within a second.

A choice is a name with the digest of its contents; an alias has none, and stands for the bundle that each process finds
under it. A process that cannot use the chosen bundle (not there, torn, other contents, made for another version) keeps
its last good one, reports that, is not ready, and tries again now and then. Verifying and loading is the registry's
task.
"""

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import structlog

from placewise_core.basics.clock import Clock
from placewise_core.domain.errors import (
    InvalidRequestError,
    NotFoundError,
    PlacewiseError,
    StaleSnapshotError,
    StateUnavailableError,
)
from placewise_core.policies.trial.arms import Arms, Unit
from placewise_models.bundle import Bundle
from placewise_service.audit import AuditSink
from placewise_service.engine.canary.promotion import UNGATED_REMEDY, rolled_back, why_ungated
from placewise_service.engine.parts import check_policy_exists
from placewise_service.engine.registry import BundleRegistry, BundleStatus, Canary, Serving
from placewise_service.engine.shadowing.questions import COMPLETED
from placewise_service.engine.shadows import PolicySet, Shadow
from placewise_service.fail_together import FailTogether
from placewise_service.state.store import (
    ActiveChoice,
    BundleChange,
    BundleChoice,
    CanaryChoice,
    ChangeKind,
    ShadowChoice,
    StateStore,
)

log = structlog.get_logger(__name__)

_PERIOD_S = 0.4  # a verdict is in force everywhere within a second
_RETRY_EVERY = 75  # rounds until a bundle that was refused is tried again: its files may have come meanwhile
_ATTEMPTS = 5


class SharedBundles:
    """Lists, activates and rolls back for every process that shares the store. One event loop owns it."""

    def __init__(self, store: StateStore, registry: BundleRegistry, clock: Clock, audit: AuditSink) -> None:
        """`audit` gets a record of each canary that is rolled back here; calls have theirs elsewhere."""
        self._store = store
        self._audit = audit
        self._registry = registry
        self._clock = clock
        # What serves until somebody chooses.
        self._configured = registry.configured
        self._configured_digest = self._pinned(registry.configured, registry.bundle)
        self._seen = BundleChoice()
        self._is_behind = False  # something of the choice in force is refused here
        self.problem = ""  # why the serving bundle is not the chosen one
        self._refused_canaries: Mapping[str, str] = {}  # by cluster, why
        self._lock = FailTogether()

    async def list(self) -> Sequence[BundleStatus]:
        """Every bundle that this process finds, verified again, with its state here."""
        return await asyncio.to_thread(self._registry.list)

    async def activate(self, name: str, cluster: str = "", caller: str = "") -> BundleStatus:
        """Lets a bundle answer, here at once and on other replicas soon. `cluster` "" stands for all clusters without a
        bundle of their own. `name` "" ends the cluster's own bundle. Ends the cluster's canary.

        Raises NotFoundError, InvalidRequestError for a bundle that is refused here (nothing changes then anywhere),
        StateUnavailableError.
        """
        async with self._lock:
            return await self._answers(cluster, name, ChangeKind.ACTIVATED, caller)

    async def rollback(self, cluster: str = "", caller: str = "") -> BundleStatus:
        """Activates the previous bundle; for a cluster that may be the bundle of all clusters. Raises NotFoundError if
        there was none, and the errors of activate."""
        async with self._lock:
            choice = await self._store.bundles()
            if cluster:
                own = choice.actives.get(cluster)
                if own is None:
                    raise NotFoundError(f"no bundle was activated for {cluster!r} alone", {"cluster": cluster})
                return await self._answers(cluster, own.previous, ChangeKind.ROLLED_BACK, caller)
            if not choice.previous:
                raise NotFoundError("no bundle was active before this one")
            return await self._answers("", choice.previous, ChangeKind.ROLLED_BACK, caller)

    async def promote(
        self, cluster: str = "", name: str = "", caller: str = "", *, allow_ungated: bool = False
    ) -> BundleStatus:
        """Lets the canary answer all jobs of its cluster, and ends the canary. `cluster` "" stands for all clusters
        without a canary of their own.

        Raises NotFoundError without a canary. Raises InvalidRequestError if the canary is not `name`, or if it did not
        pass the gate there; `allow_ungated` overrides the gate. Raises the errors of activate.
        """
        async with self._lock:
            choice = await self._store.bundles()
            canary = choice.canaries.get(cluster)
            if canary is None:
                where = f"for {cluster!r} alone" if cluster else "for all clusters"
                raise NotFoundError(f"there is no canary {where}", {"cluster": cluster})
            if name and name != canary.bundle:
                raise InvalidRequestError(f"the canary is {canary.bundle!r}, not {name!r}", "name")
            bundle = await self._unaltered(canary.bundle, canary.digest)
            clusters = {cluster} if cluster else {*await self._store.clusters()} - choice.actives.keys()
            missing = why_ungated(bundle.manifest.gate, clusters)
            if missing and not allow_ungated:
                raise InvalidRequestError(f"the bundle {canary.bundle!r} {missing}. {UNGATED_REMEDY}", "allow_ungated")
            return await self._answers(cluster, canary.bundle, ChangeKind.PROMOTED, caller, missing)

    async def set_canary(
        self, name: str, cluster: str, rule: Arms, caller: str = ""
    ) -> tuple[BundleStatus, CanaryChoice]:
        """Lets a bundle answer the share of a cluster's jobs, or for "" of all without a canary of their own, that
        `rule` gives to it. A canary that goes on keeps its salt, and so the jobs that it has; a new one draws its own.

        Raises as activate does, and InvalidRequestError for a bundle that answers all jobs there or places none.
        """
        async with self._lock:
            choice = await self._store.bundles()
            bundle = await self._unaltered(name, choice.digest_of(name))
            if self._registry.bundle_of(cluster).digest == bundle.digest:
                raise InvalidRequestError(f"the bundle {name!r} answers all jobs there: name another", "name")
            serving = self._registry.serving(bundle)
            if not serving.policies.learned.by_name:
                raise InvalidRequestError(f"the bundle {name!r} has no net that places jobs: name another", "name")
            chosen = self._canary_choice(bundle, rule, choice.canaries.get(cluster))
            change = self._change(
                ChangeKind.CANARY_SET, cluster, caller, bundle=bundle.name, digest=bundle.digest, share=rule.share
            )
            await self._publish(lambda found: found.with_canary(cluster, chosen), change)
            self._show_trials(self._seen, {**self._registry.canaries, cluster: _canary(serving, chosen)})
            return self._registry.status(bundle), chosen

    async def end_canary(self, cluster: str = "", caller: str = "") -> None:
        """Ends a canary, if there is one: the incumbent answers all jobs again. Raises StateUnavailableError."""
        async with self._lock:
            await self._end_canary(cluster, ChangeKind.CANARY_ENDED, caller=caller)

    async def roll_back_canary(self, cluster: str, reason: str, salt: str) -> None:
        """Ends the canary with this salt on a guard's verdict; a later one goes on. Raises StateUnavailableError."""
        async with self._lock:
            canary = (await self._store.bundles()).canaries.get(cluster)
            if canary is not None and canary.salt != salt:
                return
            await self._end_canary(cluster, ChangeKind.CANARY_ROLLED_BACK, reason)

    async def set_kill_switch(self, policy: str, cluster: str = "", caller: str = "") -> None:
        """Lets a heuristic answer in place of every learned policy of a cluster, or of all without a kill switch of
        their own; "" ends that. Raises InvalidRequestError for a policy that is no heuristic."""
        async with self._lock:
            policies = self._registry.policies_of(cluster)
            check_policy_exists(policy, policies.placement.keys() - policies.learned.by_name.keys(), "policy")
            kind = ChangeKind.KILLED if policy else ChangeKind.KILL_ENDED
            change = self._change(kind, cluster, caller, policy=policy)
            await self._publish(lambda found: found.with_kill(cluster, policy), change)
            self._registry.kills = self._seen.kills

    async def history(self, cluster: str, count: int) -> Sequence[BundleChange]:
        """The latest changes, newest first: those that concern a cluster, or for "" all."""
        changes = await self._store.bundle_history()
        return [each for each in changes if not cluster or each.cluster in (cluster, "")][:count]

    async def set_shadow(self, name: str, cluster: str = "", policy: str = "", caller: str = "") -> BundleStatus | None:
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
            kind = ChangeKind.SHADOW_ENDED if chosen == ShadowChoice() else ChangeKind.SHADOW_SET
            change = self._change(kind, cluster, caller, bundle=name, digest=chosen.digest, policy=policy)
            await self._publish(lambda choice: choice.with_shadow(cluster, chosen), change)
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

    @property
    def canaries(self) -> Mapping[str, CanaryChoice]:
        """The canaries that were chosen, by cluster; "" for all others."""
        return self._seen.canaries

    @property
    def kills(self) -> Mapping[str, str]:
        """The heuristics in place of learned policies, by cluster; "" for all others."""
        return self._seen.kills

    async def forget(self, cluster: str) -> None:
        """Ends every choice for a cluster that was deleted. Raises StateUnavailableError."""
        async with self._lock:
            choice = await self._store.bundles()
            if any(cluster in each for each in (choice.shadows, choice.actives, choice.canaries, choice.kills)):
                await self._publish(lambda found: _without(found, cluster))
                await self._adopt(self._seen)

    async def refresh(self, is_retrying: bool = False) -> None:
        """Takes up a choice made elsewhere. Raises StateUnavailableError."""
        async with self._lock:
            choice = await self._store.bundles()
            if choice.seq != self._seen.seq or (is_retrying and self._is_behind):
                await self._adopt(choice)
                for cluster, reason in self._refused_canaries.items():
                    await self._end_canary(cluster, ChangeKind.CANARY_ROLLED_BACK, reason)

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

    async def _answers(self, cluster: str, name: str, kind: ChangeKind, caller: str, reason: str = "") -> BundleStatus:
        """Lets a bundle answer for a cluster; "" stands for all clusters without a bundle of their own. `name` "" gives
        the cluster the bundle of all."""
        before = self._registry.bundle_of(cluster).name
        if not name:
            change = self._change(kind, cluster, caller, previous=before)
            await self._publish(lambda choice: choice.with_active(cluster, "", "").with_canary(cluster, None), change)
            self._registry.serve({other: own for other, own in self._registry.own.items() if other != cluster})
            self._show_trials(self._seen, self._registry.canaries)
            return self._registry.status(self._registry.bundle)
        bundle = await self._unaltered(name, (await self._store.bundles()).digest_of(name))
        digest = self._pinned(name, bundle)
        change = self._change(kind, cluster, caller, bundle=name, digest=bundle.digest, previous=before, reason=reason)
        if cluster:
            serving = self._registry.serving(bundle)
            await self._publish(
                lambda choice: choice.with_active(cluster, name, digest).with_canary(cluster, None), change
            )
            self._registry.serve({**self._registry.own, cluster: serving})
        else:
            self._registry.activate(bundle)
            await self._publish(lambda choice: self._activated(choice, name, digest).with_canary("", None), change)
        self._show_trials(self._seen, self._registry.canaries)
        return self._registry.status(bundle)

    async def _end_canary(self, cluster: str, kind: ChangeKind, reason: str = "", caller: str = "") -> None:
        canary = (await self._store.bundles()).canaries.get(cluster)
        if canary is None:
            return
        log.warning("the canary ends", bundle=canary.bundle, cluster=cluster, reason=reason or "asked for")
        change = self._change(
            kind,
            cluster,
            caller,
            bundle=canary.bundle,
            digest=canary.digest,
            previous=self._registry.bundle_of(cluster).name,
            share=canary.share,
            reason=reason,
        )
        await self._publish(lambda choice: choice.with_canary(cluster, None), change)
        self._show_trials(self._seen, self._registry.canaries)
        if kind is ChangeKind.CANARY_ROLLED_BACK:
            self._audit.add(rolled_back(change))

    def _canary_choice(self, bundle: Bundle, rule: Arms, before: CanaryChoice | None) -> CanaryChoice:
        """The canary as stored. `before` is the one that it replaces or continues."""
        goes_on = before is not None and (before.bundle, before.digest, before.unit, before.period_s) == (
            bundle.name,
            bundle.digest,
            rule.unit,
            rule.period_s,
        )
        salt = before.salt if before is not None and goes_on else secrets.token_hex(8)
        start_time_s = before.start_time_s if before is not None and goes_on else self._clock.now_s()
        given = (rule.share, salt, rule.unit.value, rule.period_s, rule.washout_s)
        return CanaryChoice(bundle.name, bundle.digest, *given, start_time_s=start_time_s)

    def _change(
        self,
        kind: ChangeKind,
        cluster: str,
        caller: str = "",
        *,
        bundle: str = "",
        digest: str = "",
        previous: str = "",
        share: float = 0.0,
        policy: str = "",
        reason: str = "",
    ) -> BundleChange:
        now_s = self._clock.now_s()
        return BundleChange(now_s, cluster, kind, bundle, digest, previous, share, policy, caller, reason)

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

    async def _publish(
        self, chosen: Callable[[BundleChoice], BundleChoice], change: BundleChange | None = None
    ) -> None:
        """Stores the choice in force here; a choice that cannot be stored is undone. Raises PlacewiseError."""
        try:
            for _ in range(_ATTEMPTS):
                choice = chosen(await self._store.bundles())
                if await self._store.choose_bundles(choice, change):
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
        self._refused_canaries = await self._use_canaries(choice)
        self._registry.kills = choice.kills
        are_all_here = await self._use_shadows(choice, {})
        self._is_behind = bool(self.problem) or not are_all_here

    async def _use_canaries(self, choice: BundleChoice) -> Mapping[str, str]:
        """Puts the canaries into force; why those are refused that cannot be used here. No answer waits."""
        ready, refused = dict[str, Canary](), dict[str, str]()
        for cluster, chosen in choice.canaries.items():
            canary = self._registry.canaries.get(cluster)
            serving = canary.serving if canary is not None else None
            try:
                if serving is None or serving.bundle.digest != chosen.digest:
                    serving = self._registry.serving(await self._unaltered(chosen.bundle, chosen.digest))
                ready[cluster] = _canary(serving, chosen)
            except (NotFoundError, InvalidRequestError) as error:
                refused[cluster] = f"the bundle cannot be used: {error.message}"
        self._show_trials(choice, ready)
        return refused

    def _show_trials(self, choice: BundleChoice, canaries: Mapping[str, Canary]) -> None:
        """Puts those of the canaries into force that the choice has."""
        self._registry.canaries = {cluster: each for cluster, each in canaries.items() if cluster in choice.canaries}

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


def _canary(serving: Serving, chosen: CanaryChoice) -> Canary:
    rule = Arms(chosen.salt, chosen.share, Unit(chosen.unit), chosen.period_s, chosen.washout_s)
    return Canary(serving, rule)


def _without(choice: BundleChoice, cluster: str) -> BundleChoice:
    """The choice for everybody else."""
    kept = choice.with_shadow(cluster, ShadowChoice()).with_active(cluster, "", "")
    return kept.with_canary(cluster, None).with_kill(cluster, "")


def _refused(name: str, error: PlacewiseError) -> str:
    log.error("a bundle that was chosen is refused here; the last good one serves", reason=error.message)
    return f"the bundle {name!r} was chosen and is refused here: {error.message}"


def _checked(shadow: Shadow, policies: PolicySet) -> Shadow:
    """The same. Raises InvalidRequestError for a policy that does not exist, or that its own bundle has no net for."""
    check_policy_exists(shadow.policy, {*policies.placement, *policies.of_other_calls}, "policy")
    resting = {*policies.learned.by_name, *policies.admission, *policies.partition, *COMPLETED}
    if shadow.bundle is not None and shadow.policy and shadow.policy not in resting:
        raise InvalidRequestError(
            f"the bundle {shadow.bundle.name!r} has no net for {shadow.policy!r}: leave the bundle out", "policy"
        )
    return shadow
