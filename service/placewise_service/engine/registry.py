"""Which bundles answer in this process and which ones shadow. A bundle that fails verification never gets in."""

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import structlog

from placewise_core.basics.frozen import frozen
from placewise_core.domain.errors import InvalidRequestError, NotFoundError
from placewise_core.policies.trial.arms import Arms
from placewise_models.bundle import MANIFEST, Bundle, BundleError, load
from placewise_models.folder import bundle_folder, is_alias, root_of
from placewise_models.public_key import PublicKey
from placewise_service.engine.shadows import PolicySet, Shadows

log = structlog.get_logger(__name__)


class BundleState(enum.StrEnum):
    AVAILABLE = "AVAILABLE"
    ACTIVE = "ACTIVE"
    SHADOW = "SHADOW"
    REFUSED = "REFUSED"
    CANARY = "CANARY"


@frozen
class BundleStatus:
    """A bundle as listed. `refusal` says why its files cannot be used; `bundle` is None unless it serves nevertheless,
    as it was loaded."""

    name: str
    state: BundleState
    bundle: Bundle | None = None
    refusal: str = ""


@frozen
class Serving:
    """A bundle that answers for single clusters, and its policies."""

    bundle: Bundle
    policies: PolicySet


@frozen
class Canary:
    """A bundle that answers a share of the jobs, and the rule by which a job is one of them."""

    serving: Serving
    rule: Arms


class BundleRegistry:
    """Bundles are the subdirectories of `root`, and those of `further` whose names `root` lacks; aliases lead to them.
    `list` and `verified` read files and block; `activate` only swaps, as `shadows` do, and belongs on the event loop,
    so that no request sees half of a bundle.

    With `keys`, one of them must have signed a bundle. `on_activate` builds what serves from a bundle; if it
    raises BundleError the old bundle keeps serving. Raises BundleError where `configured`, a name or an alias, cannot
    serve at first.
    """

    def __init__(
        self,
        root: Path,
        configured: str,
        shadows: Shadows,
        keys: Sequence[PublicKey] = (),
        on_activate: Callable[[Bundle], None] = lambda bundle: None,
        further: Path | None = None,
    ) -> None:
        self.configured = configured
        self.shadows = shadows
        self.own: Mapping[str, Serving] = {}  # by cluster; empty as a rule: then one bundle answers for all
        self.canaries: Mapping[str, Canary] = {}  # by cluster, "" for all others; empty as a rule
        self.kills: Mapping[str, str] = {}  # heuristics in place of learned policies, likewise
        self._roots = (root,) if further is None else (root, further)
        self._keys = tuple(keys)
        self._on_activate = on_activate
        if not root.is_dir():  # else a mistyped one would go unnoticed, as `default` is in the further one
            raise BundleError(f"{root} is no folder of bundles")
        try:
            self._active = load(self._folder(configured), self._keys)
        except ValueError as error:
            raise BundleError(str(error)) from error

    @property
    def active(self) -> str:
        """Name of the bundle that answers."""
        return self._active.name

    @property
    def bundle(self) -> Bundle:
        return self._active

    def bundle_of(self, cluster: str) -> Bundle:
        """The bundle that answers for a cluster."""
        own = self.own.get(cluster)
        return self._active if own is None else own.bundle

    def policies_of(self, cluster: str) -> PolicySet:
        """Its policies."""
        own = self.own.get(cluster)
        return self.shadows.active if own is None else own.policies

    def canary_of(self, cluster: str) -> Canary | None:
        """The bundle that answers a share of the cluster's jobs; None for none."""
        return self.canaries.get(cluster) or self.canaries.get("")

    def kill_of(self, cluster: str) -> str:
        """The heuristic that answers in place of the cluster's learned policies; "" for none."""
        return self.kills.get(cluster) or self.kills.get("", "")

    def serving(self, bundle: Bundle) -> Serving:
        """A verified bundle, ready to answer for a cluster. Raises InvalidRequestError if nothing can be built from
        it."""
        built = (*self.own.values(), *(canary.serving for canary in self.canaries.values()))
        kept = (own for own in built if own.bundle.directory == bundle.directory)
        try:
            return next(kept, None) or Serving(bundle, self.shadows.built(bundle))
        except BundleError as error:
            raise InvalidRequestError(str(error), "name") from error

    def serve(self, own: Mapping[str, Serving]) -> None:
        """Lets these bundles answer for these clusters, and the active one for all others."""
        for cluster, serving in own.items():
            if self.own.get(cluster) is not serving:
                log.info("bundle active", bundle=serving.bundle.name, digest=serving.bundle.digest, cluster=cluster)
        self.own = dict(own)

    def list(self) -> tuple[BundleStatus, ...]:
        """Every bundle under the roots, by name, verified again."""
        paths = (path for root in reversed(self._roots) for path in root.iterdir())
        found = {path.name: path for path in paths if not path.is_symlink() and (path / MANIFEST).is_file()}
        return tuple(self._listed(path) for _, path in sorted(found.items()))

    def is_alias(self, name: str) -> bool:
        return is_alias(root_of(self._roots, name), name)

    def serves(self, name: str, digest: str) -> bool:
        """Whether the bundle that answers is the one of this name or alias, with this digest ("" for any)."""
        try:
            folder = self._folder(name)
        except ValueError:
            return False
        return folder.name == self._active.name and digest in ("", self._active.digest)

    def verified(self, name: str) -> Bundle:
        """Loads a bundle by name or alias. Raises NotFoundError or, for a bundle that is refused,
        InvalidRequestError."""
        try:
            path = self._folder(name)
            if (path / MANIFEST).exists():
                return load(path, self._keys)
        except ValueError as error:
            log.warning("bundle refused", bundle=name, reason=str(error))
            raise InvalidRequestError(str(error), "name") from error
        raise NotFoundError(f"no bundle {name!r}", {"bundle": name})

    def _folder(self, name: str) -> Path:
        """Raises ValueError as bundle_folder does."""
        return bundle_folder(root_of(self._roots, name), name)

    def activate(self, bundle: Bundle) -> BundleStatus:
        """Lets a verified bundle answer. Raises InvalidRequestError if nothing can be built from it."""
        try:
            self._on_activate(bundle)
        except BundleError as error:
            raise InvalidRequestError(str(error), "name") from error
        self._active = bundle
        log.info("bundle active", bundle=bundle.name, digest=bundle.digest, signed_by=bundle.signed_by)
        return self.status(bundle)

    @property
    def _in_force(self) -> Sequence[Bundle]:
        return (self._active, *(own.bundle for own in self.own.values()))

    @property
    def _on_trial(self) -> Sequence[Bundle]:
        return [canary.serving.bundle for canary in self.canaries.values()]

    def _listed(self, path: Path) -> BundleStatus:
        in_use = (*self._in_force, *self._on_trial, *self.shadows.bundles)
        serving = next((bundle for bundle in in_use if bundle.directory == path.resolve()), None)
        try:
            found = load(path, self._keys)
        except BundleError as error:
            status = self.status(serving) if serving else BundleStatus(path.name, BundleState.REFUSED)
            return replace(status, refusal=str(error))
        if serving and found.digest != serving.digest:
            return replace(self.status(serving), refusal="its files were altered since it was loaded")
        return self.status(found)

    def status(self, bundle: Bundle) -> BundleStatus:
        """A verified bundle as listed."""
        if any(bundle.directory == other.directory for other in self._in_force):
            return BundleStatus(bundle.name, BundleState.ACTIVE, bundle)
        if any(bundle.directory == other.directory for other in self._on_trial):
            return BundleStatus(bundle.name, BundleState.CANARY, bundle)
        is_shadow = any(bundle.directory == other.directory for other in self.shadows.bundles)
        return BundleStatus(bundle.name, BundleState.SHADOW if is_shadow else BundleState.AVAILABLE, bundle)
