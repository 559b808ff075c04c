"""Nets are opened and checked once per process: for the shipped bundle's this is most of the start of an engine."""

import json
from collections.abc import Callable
from functools import cache
from typing import Any

from placewise_models import bundle


@cache
def opened(load: Callable[..., Any], files: tuple[bytes, ...], report: str) -> Any:
    return load(*files, json.loads(report))


class _NetsOnce(bundle._Nets):
    """Equal bytes give the same runtime, which never changes. A net that is refused is refused again."""

    def load(self, load: Callable[..., bundle.Net], report: str, *files: str) -> bundle.Net | None:
        def known(*contents: Any) -> bundle.Net:
            *nets, document = contents
            net: bundle.Net = opened(load, tuple(nets), json.dumps(document, sort_keys=True))
            return net

        return super().load(known, report, *files)


def open_once() -> None:
    """Also for what is imported already."""
    bundle._Nets = _NetsOnce  # type: ignore[misc]
