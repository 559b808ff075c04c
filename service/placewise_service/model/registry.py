"""Which bundle answers, which one shadows, and the last good one. A bundle that fails verification never gets in."""

import enum
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from placewise_core.errors import InvalidRequestError, NotFoundError
from placewise_service.model.bundle import MANIFEST, Bundle, BundleError, load

log = structlog.get_logger(__name__)


class BundleState(enum.StrEnum):
    AVAILABLE = "AVAILABLE"
    ACTIVE = "ACTIVE"
    SHADOW = "SHADOW"
    REFUSED = "REFUSED"


@dataclass(frozen=True, slots=True)
class BundleStatus:
    """A bundle as listed; `bundle` is None and `refusal` says why where it cannot be used."""

    name: str
    state: BundleState
    bundle: Bundle | None = None
    refusal: str = ""


class BundleRegistry:
    """Bundles are the subdirectories of `root`; the swap is one assignment, so no request sees half of one.

    `on_activate` builds what serves from a bundle; if it raises BundleError the old bundle keeps serving.
    """

    def __init__(self, root: Path, active: str, on_activate: Callable[[Bundle], None] = lambda bundle: None) -> None:
        self._root = root
        self._on_activate = on_activate
        self._active = load(root / active)
        self._previous: Bundle | None = None
        self._shadow: Bundle | None = None

    @property
    def active(self) -> str:
        """Name of the bundle that answers."""
        return self._active.name

    @property
    def bundle(self) -> Bundle:
        return self._active

    @property
    def shadow(self) -> Bundle | None:
        return self._shadow

    def list(self) -> tuple[BundleStatus, ...]:
        """Every bundle under the root, by name, verified anew."""
        directories = sorted(path for path in self._root.iterdir() if (path / MANIFEST).is_file())
        return tuple(self._status(path) for path in directories)

    def activate(self, name: str) -> BundleStatus:
        """Verifies and swaps. Raises NotFoundError or, for a bundle that is refused, InvalidRequestError."""
        bundle = self._loaded(name)
        self._swap(bundle)
        return self._status(bundle.directory)

    def rollback(self) -> BundleStatus:
        """Back to the bundle that served before. Raises NotFoundError if there was none."""
        if self._previous is None:
            raise NotFoundError("no bundle was active before this one")
        self._swap(self._previous)
        return self._status(self._active.directory)

    def set_shadow(self, name: str) -> BundleStatus | None:
        """Lets a bundle decide and log without answering; "" ends that."""
        self._shadow = self._loaded(name) if name else None
        return self._status(self._shadow.directory) if self._shadow is not None else None

    def _swap(self, bundle: Bundle) -> None:
        try:
            self._on_activate(bundle)
        except BundleError as error:
            raise InvalidRequestError(str(error), "name") from error
        if bundle.name != self._active.name:
            self._previous = self._active
        self._active = bundle
        log.info("bundle active", bundle=bundle.name)

    def _loaded(self, name: str) -> Bundle:
        path = self._root / name
        if path.parent != self._root or not (path / MANIFEST).is_file():
            raise NotFoundError(f"no bundle {name!r}", {"bundle": name})
        try:
            return load(path)
        except BundleError as error:
            log.warning("bundle refused", bundle=name, reason=str(error))
            raise InvalidRequestError(str(error), "name") from error

    def _status(self, path: Path) -> BundleStatus:
        try:
            bundle = load(path)
        except BundleError as error:
            return BundleStatus(path.name, BundleState.REFUSED, refusal=str(error))
        if path == self._active.directory:
            return BundleStatus(bundle.name, BundleState.ACTIVE, bundle)
        is_shadow = self._shadow is not None and path == self._shadow.directory
        return BundleStatus(bundle.name, BundleState.SHADOW if is_shadow else BundleState.AVAILABLE, bundle)
