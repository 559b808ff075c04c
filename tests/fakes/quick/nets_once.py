"""Nets are opened and checked once per process, documents and the shipped bundle's files read once: this is most of the
start of an engine."""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from placewise_models import bundle
from placewise_models.folder import shipped_bundle

_SHIPPED = shipped_bundle().resolve()
_verified = bundle._verified
_verified_once = cache(_verified)
_document = cache(bundle._document)
_of_id: dict[int, Mapping[str, Any]] = {}


@cache
def opened(load: Callable[..., Any], files: tuple[bytes, ...], report: int) -> Any:
    return load(*files, _of_id[report])


def verified(directory: Path, file: str, sha256: str) -> bytes:
    """No test writes into the shipped bundle."""
    return (_verified_once if directory == _SHIPPED else _verified)(directory, file, sha256)


def document_once(path: Path, content: bytes) -> Mapping[str, Any]:
    """Equal bytes give the same document. Its path is for messages alone."""
    document = _document(Path(path.parent.name, path.name), content)
    return _of_id.setdefault(id(document), document)


class _NetsOnce(bundle._Nets):
    """Equal bytes give the same runtime, which never changes. A net that is refused is refused again."""

    def load(self, load: Callable[..., bundle.Net], report: str, *files: str) -> bundle.Net | None:
        def known(*contents: Any) -> bundle.Net:
            *nets, document = contents
            net: bundle.Net = opened(load, tuple(nets), id(document))
            return net

        return super().load(known, report, *files)


def open_once() -> None:
    """Also for modules imported already."""
    bundle._Nets = _NetsOnce  # type: ignore[misc]
    bundle._document = document_once
    bundle._verified = verified
