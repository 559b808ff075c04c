"""Which bundle answers in this process and which one shadows. A bundle that fails verification never gets in."""

import enum
from collections.abc import Callable
from pathlib import Path

import structlog

from placewise_core.errors import InvalidRequestError, NotFoundError
from placewise_core.frozen import frozen
from placewise_service.model.bundle import MANIFEST, Bundle, BundleError, load

log = structlog.get_logger(__name__)


class BundleState(enum.StrEnum):
    AVAILABLE = "AVAILABLE"
    ACTIVE = "ACTIVE"
    SHADOW = "SHADOW"
    REFUSED = "REFUSED"


@frozen
class BundleStatus:
    """A bundle as listed; `bundle` is None and `refusal` says why where it cannot be used."""

    name: str
    state: BundleState
    bundle: Bundle | None = None
    refusal: str = ""


class BundleRegistry:
    """Bundles are the subdirectories of `root`. `list` and `verified` read files and block; `activate` and `set_shadow`
    only swap, and belong on the event loop, so that no request sees half of a bundle.

    `on_activate` builds what serves from a bundle; if it raises BundleError the old bundle keeps serving.
    """

    def __init__(self, root: Path, active: str, on_activate: Callable[[Bundle], None] = lambda bundle: None) -> None:
        self._root = root
        self._on_activate = on_activate
        self._active = load(root / active)
        self._shadow: Bundle | None = None

    @property
    def active(self) -> str:
        """Name of the bundle that answers."""
        return self._active.manifest.name

    @property
    def bundle(self) -> Bundle:
        return self._active

    @property
    def shadow(self) -> Bundle | None:
        return self._shadow

    def list(self) -> tuple[BundleStatus, ...]:
        """Every bundle under the root, by name, verified anew."""
        directories = sorted(path for path in self._root.iterdir() if (path / MANIFEST).is_file())
        return tuple(self._listed(path) for path in directories)

    def verified(self, name: str) -> Bundle:
        """Loads a bundle by name. Raises NotFoundError or, for a bundle that is refused, InvalidRequestError."""
        path = self._root / name
        if path.parent != self._root or not (path / MANIFEST).is_file():
            raise NotFoundError(f"no bundle {name!r}", {"bundle": name})
        try:
            return load(path)
        except BundleError as error:
            log.warning("bundle refused", bundle=name, reason=str(error))
            raise InvalidRequestError(str(error), "name") from error

    def activate(self, bundle: Bundle) -> BundleStatus:
        """Lets a verified bundle answer. Raises InvalidRequestError if nothing can be built from it."""
        try:
            self._on_activate(bundle)
        except BundleError as error:
            raise InvalidRequestError(str(error), "name") from error
        self._active = bundle
        log.info("bundle active", bundle=bundle.name)
        return self._status(bundle)

    def set_shadow(self, bundle: Bundle | None) -> BundleStatus | None:
        """Lets a verified bundle decide and log without answering; None ends that."""
        self._shadow = bundle
        return self._status(bundle) if bundle is not None else None

    def _listed(self, path: Path) -> BundleStatus:
        try:
            return self._status(load(path))
        except BundleError as error:
            return BundleStatus(path.name, BundleState.REFUSED, refusal=str(error))

    def _status(self, bundle: Bundle) -> BundleStatus:
        if bundle.directory == self._active.directory:
            return BundleStatus(bundle.name, BundleState.ACTIVE, bundle)
        is_shadow = self._shadow is not None and bundle.directory == self._shadow.directory
        return BundleStatus(bundle.name, BundleState.SHADOW if is_shadow else BundleState.AVAILABLE, bundle)
