"""A small client of the Kubernetes API: get, list, watch, create, patch. Never caches, never retries."""

from __future__ import annotations

import base64
import binascii
import ssl
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from msgspec import json
from yarl import URL

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
LIST_PAGE = 500
# A projected token is rotated before it ends; the file is read again this often.
TOKEN_REFRESH_S = 60.0
REQUEST_TIMEOUT_S = 10.0
# The apiserver ends a watch after this; a connection that died silently is noticed soon after.
WATCH_TIMEOUT_S = 240
GONE = 410
OPENED = "OPENED"


class KubeError(Exception):
    """The API refused; `status` is its HTTP status, `reason` its machine-readable word."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason


class KubeUnreachableError(Exception):
    """The API did not answer."""


@dataclass(frozen=True, slots=True)
class KubeAccess:
    """The API's address and our identity: a token, a file with a token that is rotated, or a client certificate."""

    server: str
    ca_path: str = ""
    token: str = field(default="", repr=False)
    token_path: str = ""
    certificate_path: str = ""
    key_path: str = ""
    is_verified: bool = True
    ca_pem: str = ""
    client_pem: str = field(default="", repr=False)
    """Certificate and key in one text, as a kubeconfig may carry them."""

    def tls(self) -> ssl.SSLContext | None:
        """TLS settings; None for plain HTTP."""
        if not self.server.startswith("https:"):
            return None
        context = ssl.create_default_context(cafile=self.ca_path or None, cadata=self.ca_pem or None)
        if self.certificate_path:
            context.load_cert_chain(self.certificate_path, self.key_path)
        elif self.client_pem:
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:  # readable by us alone; ssl reads files only
                file.write(self.client_pem)
                file.flush()
                context.load_cert_chain(file.name)
        if not self.is_verified:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def in_cluster_access(environ: Mapping[str, str]) -> KubeAccess:
    """Access by the pod's own service account.

    Raises:
        ValueError: this is no pod.
    """
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ValueError("not in a cluster: KUBERNETES_SERVICE_HOST is not set; give --kubeconfig")
    bracketed = f"[{host}]" if ":" in host else host
    return KubeAccess(
        server=f"https://{bracketed}:{port}",
        ca_path=str(SERVICE_ACCOUNT / "ca.crt"),
        token_path=str(SERVICE_ACCOUNT / "token"),
    )


def kubeconfig_access(path: Path, context: str = "") -> KubeAccess:
    """Access by a kubeconfig file with a token or a client certificate, in files or in the file itself.

    Raises:
        ValueError: the file does not say how to reach a cluster that way.
    """
    try:
        document = yaml.safe_load(path.read_text())
        chosen = _named(document, "contexts", context or document.get("current-context", ""))["context"]
        cluster = _named(document, "clusters", chosen["cluster"])["cluster"]
        user = _named(document, "users", chosen["user"])["user"] or {}
        server = cluster["server"].rstrip("/")
    except (yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a kubeconfig: {error!r}") from error
    ways = ("token", "tokenFile", "client-certificate", "client-certificate-data")
    if not any(user.get(key) for key in ways):
        raise ValueError(f"{path}: the user needs one of {', '.join(ways)}")
    client_pem = _embedded(user, "client-certificate-data") + _embedded(user, "client-key-data")
    return KubeAccess(
        server=server,
        ca_path=_beside(path, cluster, "certificate-authority"),
        token=user.get("token", ""),
        token_path=_beside(path, user, "tokenFile"),
        certificate_path="" if client_pem else _beside(path, user, "client-certificate"),
        key_path="" if client_pem else _beside(path, user, "client-key"),
        is_verified=not cluster.get("insecure-skip-tls-verify", False),
        ca_pem=_embedded(cluster, "certificate-authority-data"),
        client_pem=client_pem,
    )


def _named(document: Mapping[str, Any], section: str, name: str) -> dict[str, Any]:
    for item in document.get(section) or ():
        if item.get("name") == name:
            found: dict[str, Any] = item
            return found
    raise ValueError(f"kubeconfig has no {section} entry named {name!r}")


def _beside(path: Path, section: Mapping[str, Any], key: str) -> str:
    """A file that a kubeconfig names; relative to the kubeconfig, as kubectl takes it."""
    return str(path.parent / section[key]) if section.get(key) else ""


def _embedded(section: Mapping[str, Any], key: str) -> str:
    try:
        return base64.b64decode(section.get(key) or "", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, TypeError) as error:
        raise ValueError(f"kubeconfig: {key} cannot be read: {error}") from error


class KubeClient:
    """One connection pool to one apiserver; use as an async context manager."""

    def __init__(self, access: KubeAccess) -> None:
        self._access = access
        self._stack = AsyncExitStack()
        self._session: aiohttp.ClientSession | None = None
        self._token = access.token
        self._token_read_at_s = float("-inf")

    async def __aenter__(self) -> KubeClient:
        tls = self._access.tls()
        connector = aiohttp.TCPConnector(limit=64, ssl=tls if tls is not None else True)
        self._session = await self._stack.enter_async_context(
            aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),  # the API sets none: looking for them takes a tenth of a request
                timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S),
                read_bufsize=2**20,
            )
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def get(self, path: str, **params: str) -> dict[str, Any]:
        """One object.

        Raises:
            KubeError, KubeUnreachableError.
        """
        return await self._call("GET", path, params=params)

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """POSTs an object. Raises KubeError, KubeUnreachableError."""
        return await self._call("POST", path, body=body)

    async def patch(self, path: str, body: Mapping[str, Any], content_type: str = MERGE_PATCH) -> dict[str, Any]:
        """PATCHes an object. Raises KubeError, KubeUnreachableError."""
        return await self._call("PATCH", path, body=body, content_type=content_type)

    async def list_all(
        self, path: str, read: Callable[[dict[str, Any]], Any] = lambda item: item, **params: str
    ) -> tuple[list[Any], str]:
        """(what `read` makes of each item, resource version), page by page. Raises KubeError, KubeUnreachableError."""
        items: list[Any] = []
        query = {"limit": str(LIST_PAGE), **params}
        while True:
            page = await self._call("GET", path, params=query)
            items.extend(map(read, page.get("items") or ()))
            metadata = page.get("metadata") or {}
            if not metadata.get("continue"):
                return items, metadata.get("resourceVersion", "")
            query["continue"] = metadata["continue"]

    async def watch(self, path: str, version: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """(type, object) of every change after `version`, until the apiserver ends the watch; first (OPENED, {}).

        Raises:
            KubeError: with status 410 if the version is too old.
            KubeUnreachableError: the connection broke.
        """
        params = {
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_TIMEOUT_S),
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_TIMEOUT_S, sock_read=WATCH_TIMEOUT_S + 30)
        try:
            async with self._open().get(
                self._url(path), params=params, headers=self._headers(), timeout=timeout
            ) as response:
                await _check(response)
                yield OPENED, {}
                async for event in _lines(response):
                    yield _watch_event(event)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise KubeUnreachableError(f"watch {path}: {error!r}") from error

    async def _call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        headers = self._headers()
        data = None
        if body is not None:
            headers["Content-Type"] = content_type
            data = json.encode(body)
        url = self._url(path)
        try:
            async with self._open().request(method, url, params=params, data=data, headers=headers) as response:
                await _check(response)
                document: dict[str, Any] = json.decode(await response.read())
                return document
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise KubeUnreachableError(f"{method} {path}: {error!r}") from error

    def _url(self, path: str) -> URL:
        """As `paths` made it: nothing in it is unquoted or shortened on the way."""
        return URL(self._access.server + path, encoded=True)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("KubeClient is used outside its context")
        return self._session

    def _headers(self) -> dict[str, str]:
        now_s = time.monotonic()
        if self._access.token_path and now_s - self._token_read_at_s > TOKEN_REFRESH_S:
            self._token = Path(self._access.token_path).read_text().strip()
            self._token_read_at_s = now_s
        headers = {"Accept": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        return headers


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status < 400:
        return
    text = await response.text()
    try:
        status = json.decode(text)
        reason, message = status.get("reason", ""), status.get("message", "")
    except (ValueError, AttributeError):
        reason, message = "", text[:200]
    raise KubeError(response.status, reason, message)


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """JSON documents, one a line, of any length (the stream's own line reader has a limit)."""
    pending = b""
    async for chunk in response.content.iter_any():
        *complete, pending = (pending + chunk).split(b"\n")
        for line in complete:
            if line.strip():
                yield json.decode(line)


def _watch_event(event: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    if event["type"] == "ERROR":
        status = event["object"]
        raise KubeError(int(status.get("code", 0)), status.get("reason", ""), status.get("message", ""))
    return event["type"], event["object"]
