"""Decides which requests of a browser are answered: a browser sends any page's requests to any address it can reach."""

import re
from collections.abc import Mapping
from functools import lru_cache

from placewise_core.domain.errors import PermissionDeniedError
from placewise_service.api.identity.auth import Method, Principal
from placewise_service.settings import LOOPBACK

Hosts = frozenset[str] | None
_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+?)\.?(?::([0-9]{1,5}))?", re.ASCII)
_PORTS = {"http": "80", "https": "443"}
_BY_TOKEN = frozenset({Method.TOKEN, Method.JWT})
_WILDCARDS = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - compared with, not bound


def allowed_hosts(bound: str, named: frozenset[str], certified: frozenset[str]) -> frozenset[str]:
    """Names by which a service may be asked without a token: this machine's own, the address that it is bound to, those
    `named` by the operator, and those that its certificate proves to be its own."""
    return LOOPBACK | named | certified | (frozenset({bound.lower()}) - _WILDCARDS)


def refuse_foreign_hosts(headers: Mapping[str, str], hosts: Hosts, caller: Principal | None = None) -> None:
    """Raises PermissionDeniedError for a request by another name than `hosts` (None: any will do).

    A page whose name was pointed here afterwards is of the same origin to its browser; only the name gives it away.
    No page has a caller's token; its certificate a browser shows for every page.
    """
    if hosts is None or (caller is not None and caller.method in _BY_TOKEN):
        return
    host, _ = _parted(headers.get("host", ""))
    if host in hosts or f"*.{host.partition('.')[2]}" in hosts:
        return
    raise PermissionDeniedError(
        "without a token, ask this service by localhost, 127.0.0.1, [::1] or a name of PLACEWISE_SERVER__ALLOWED_HOSTS"
    )


def refuse_foreign_pages(headers: Mapping[str, str]) -> None:
    """Raises PermissionDeniedError for a request that another site's page makes."""
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise PermissionDeniedError("requests from pages of other sites are refused")
    origin = headers.get("origin")
    if origin is not None and not _is_ours(origin, headers.get("host", "")):
        raise PermissionDeniedError("requests from pages of other sites are refused: Origin and Host differ")


def _is_ours(origin: str, host: str) -> bool:
    scheme, _, authority = origin.lower().partition("://")
    asked, ours = _parted(authority), _parted(host)
    default = _PORTS.get(scheme)
    return default is not None and asked[0] == ours[0] != "" and (asked[1] or default) == (ours[1] or default)


@lru_cache(maxsize=256)  # callers ask by the same few names again and again
def _parted(authority: str) -> tuple[str, str]:
    """Host (an IPv6 address without brackets) and port; both empty for a malformed authority."""
    found = _AUTHORITY.fullmatch(authority.lower())
    return ("", "") if found is None else (found[1].strip("[]"), found[2] or "")
