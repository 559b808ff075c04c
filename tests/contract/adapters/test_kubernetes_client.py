"""The API client and the watches, against a small HTTP server that behaves as a real apiserver does now and then."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.e2e.kubernetes.kubernetes_certificates import Authority
from tests.fakes.callers import tls
from tests.fakes.servers.http_server import ReadyServer

from placewise_client.adapter.sections import ConfigError
from placewise_kubernetes.config import ListenConfig
from placewise_kubernetes.faces.server import server_tls
from placewise_kubernetes.kube.client import (
    OPENED,
    KubeAccess,
    KubeClient,
    KubeError,
    KubeUnreachableError,
    in_cluster_access,
    kubeconfig_access,
)
from placewise_kubernetes.kube.watch import Reflector

PODS = "/api/v1/pods"


def item(name: str, version: int, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": str(version), **more}}


class FakeApi:
    """Lists in pages of two; each watch plays the next script: lines to send, then the connection ends."""

    def __init__(self) -> None:
        self.items = [item(f"p{n}", n) for n in range(5)]
        self.scripts: list[list[dict[str, Any]]] = []
        self.asked: list[Mapping[str, str]] = []
        self.tokens: list[str] = []
        self.version = 100
        self.more = asyncio.Event()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(dict(request.query))
        self.tokens.append(request.headers.get("Authorization", ""))
        if request.query.get("watch"):
            return await self._watch(request)
        first = int(request.query.get("continue", "0"))
        page = self.items[first : first + 2]
        metadata = {"resourceVersion": str(self.version)}
        if first + 2 < len(self.items):
            metadata["continue"] = str(first + 2)
        return web.json_response({"items": page, "metadata": metadata})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        if not self.scripts:
            self.more.set()
            await asyncio.Event().wait()
        for event in self.scripts.pop(0):
            await response.write(json.dumps(event).encode() + b"\n")
        return response


class Seen:
    """A sink that remembers, and how often the API had been asked when it read an object."""

    def __init__(self, api: FakeApi) -> None:
        self.printed: list[tuple[str, list[str]]] = []
        self.read_at: dict[str, int] = {}
        self._api = api

    def read(self, entry: Mapping[str, Any]) -> str:
        name: str = entry["metadata"]["name"]
        self.read_at[name] = len(self._api.asked)
        return name

    def replace(self, items: Iterable[str]) -> None:
        self.printed.append(("replace", list(items)))

    def change(self, entry: Mapping[str, Any]) -> None:
        self.printed.append(("change", [entry["metadata"]["name"]]))

    def remove(self, entry: Mapping[str, Any]) -> None:
        self.printed.append(("remove", [entry["metadata"]["name"]]))


@pytest.fixture
async def api() -> FakeApi:
    return FakeApi()


@pytest.fixture
async def url(api: FakeApi) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", PODS, api.answer)
    app.router.add_get("/refused", _refused)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


async def _refused(_: web.Request) -> web.Response:
    return web.json_response({"reason": "Forbidden", "message": "no"}, status=403)


@pytest.fixture
async def client(url: str) -> AsyncIterator[KubeClient]:
    async with KubeClient(KubeAccess(url)) as kube:
        yield kube


async def follow(client: KubeClient, api: FakeApi) -> Seen:
    """Runs a reflector until the server has nothing more to say."""
    seen = Seen(api)
    task = asyncio.ensure_future(Reflector(client, PODS, seen).run())
    await asyncio.wait_for(api.more.wait(), 10)
    task.cancel()
    return seen


async def test_lists_are_read_page_by_page(client: KubeClient) -> None:
    items, version = await client.list_all(PODS)
    assert ([entry["metadata"]["name"] for entry in items], version) == (["p0", "p1", "p2", "p3", "p4"], "100")


async def test_objects_are_read_before_the_next_page_is_asked_for(client: KubeClient, api: FakeApi) -> None:
    """All pages of a large cluster together fill gigabytes."""
    seen = await follow(client, api)
    assert seen.read_at == {"p0": 1, "p1": 1, "p2": 2, "p3": 2, "p4": 3}
    assert seen.printed == [("replace", ["p0", "p1", "p2", "p3", "p4"])]


async def test_a_watch_tells_changes_and_goes_on_from_the_last_one(client: KubeClient, api: FakeApi) -> None:
    api.scripts = [
        [
            {"type": "ADDED", "object": item("new", 101)},
            {"type": "BOOKMARK", "object": item("", 150)},
            {"type": "DELETED", "object": item("p1", 151)},
        ],
        [{"type": "MODIFIED", "object": item("p2", 152)}],
    ]
    seen = await follow(client, api)
    assert seen.printed[1:] == [("change", ["new"]), ("remove", ["p1"]), ("change", ["p2"])]
    versions = [asked["resourceVersion"] for asked in api.asked if "watch" in asked]
    assert versions == ["100", "151", "152"]


async def test_a_version_that_is_too_old_means_listing_again(client: KubeClient, api: FakeApi) -> None:
    gone = {"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old"}}
    api.scripts = [[{"type": "ADDED", "object": item("new", 101)}, gone]]
    seen = await follow(client, api)
    assert [verb for verb, _ in seen.printed] == ["replace", "change", "replace"]


async def test_lines_may_be_long_and_come_in_pieces(client: KubeClient, api: FakeApi) -> None:
    big = item("big", 101, annotations={"a": "x" * 300_000})
    api.scripts = [[{"type": "ADDED", "object": big}, {"type": "ADDED", "object": item("small", 102)}]]
    events = [event async for event in client.watch(PODS, "100")]
    assert events[0] == (OPENED, {})
    assert [entry["metadata"]["name"] for _, entry in events[1:]] == ["big", "small"]


async def test_a_path_is_sent_as_it_is() -> None:
    """The client shortens nothing and unquotes nothing: the apiserver sees `..` in a path."""
    paths: list[str] = []

    async def note(request: web.BaseRequest) -> web.Response:
        paths.append(request.raw_path)
        return web.json_response({})

    async with (
        ReadyServer(web.Server(note)) as server,
        KubeClient(KubeAccess(str(server.make_url("")).rstrip("/"))) as kube,
    ):
        await kube.get("/api/a/../b%2Fc/%2e%2e/d", limit="1")
        await kube.create("/api/a/../b", {})
    assert paths == ["/api/a/../b%2Fc/%2e%2e/d?limit=1", "/api/a/../b"]


async def test_refusals_are_typed(client: KubeClient) -> None:
    with pytest.raises(KubeError, match="403 Forbidden: no") as refused:
        await client.get("/refused")
    assert (refused.value.status, refused.value.reason) == (403, "Forbidden")


async def test_no_answer_is_typed(unused_tcp_port_url: str) -> None:
    async with KubeClient(KubeAccess(unused_tcp_port_url)) as kube:
        with pytest.raises(KubeUnreachableError):
            await kube.get(PODS)
        with pytest.raises(KubeUnreachableError):
            await anext(kube.watch(PODS, "1"))


@pytest.fixture
async def unused_tcp_port_url() -> str:
    server = TestServer(web.Application())
    await server.start_server()
    address = str(server.make_url("")).rstrip("/")
    await server.close()
    return address


async def test_a_rotated_token_is_read_again(
    url: str, api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "token"
    path.write_text("first\n")
    now_s = [1000.0]
    monkeypatch.setattr("placewise_kubernetes.kube.client.time.monotonic", lambda: now_s[0])
    async with KubeClient(KubeAccess(url, token_path=str(path))) as kube:
        await kube.get(PODS)
        path.write_text("second\n")
        await kube.get(PODS)
        now_s[0] += 61
        await kube.get(PODS)
    assert api.tokens == ["Bearer first", "Bearer first", "Bearer second"]


def kubeconfig(tmp_path: Path, user: dict[str, str], **cluster: Any) -> Path:
    path = tmp_path / "config"
    document = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": "https://api:6443/", **cluster}}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


def test_kubeconfig(tmp_path: Path) -> None:
    access = kubeconfig_access(kubeconfig(tmp_path, {"token": "hush"}, **{"certificate-authority": "/ca"}))
    assert (access.server, access.token, access.ca_path) == ("https://api:6443", "hush", "/ca")
    assert "hush" not in repr(access)  # a token never reaches a log
    with pytest.raises(ValueError, match="token"):
        kubeconfig_access(kubeconfig(tmp_path, {"exec": "aws"}))
    with pytest.raises(ValueError, match="contexts entry named 'other'"):
        kubeconfig_access(kubeconfig(tmp_path, {"token": "t"}), "other")


def test_a_kubeconfig_names_its_files_beside_itself(tmp_path: Path) -> None:
    access = kubeconfig_access(kubeconfig(tmp_path, {"tokenFile": "token"}, **{"certificate-authority": "pki/ca"}))
    assert (access.token_path, access.ca_path) == (str(tmp_path / "token"), str(tmp_path / "pki" / "ca"))


async def test_a_kubeconfig_may_carry_its_certificates(tmp_path: Path) -> None:
    """As kubeadm writes them."""
    authority = tls.Authority("cluster")
    chain, key = authority.write(tmp_path, "localhost")
    listening = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=authority.pem.decode())
    listening.verify_mode = ssl.CERT_REQUIRED
    listening.load_cert_chain(chain, key)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{"kind": "Pod"}')
        await writer.drain()
        writer.close()

    certificate, private = (base64.b64encode(part).decode() for part in authority.issue("admin"))
    user = {"client-certificate-data": certificate, "client-key-data": private}
    ca = {"certificate-authority-data": base64.b64encode(authority.pem).decode()}
    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=listening)
    async with server:
        url = f"https://localhost:{server.sockets[0].getsockname()[1]}"
        access = kubeconfig_access(kubeconfig(tmp_path, user, **ca, server=url))
        assert "PRIVATE" not in repr(access)
        async with KubeClient(access) as kube:
            assert (await kube.get(PODS))["kind"] == "Pod"


@pytest.mark.parametrize("text", ["[", "- a", "contexts: 5", "current-context: c\ncontexts: [{name: c}]"])
def test_what_is_no_kubeconfig_is_said(text: str, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(ValueError, match="kubeconfig"):
        kubeconfig_access(tmp_path / "config")


def test_embedded_text_that_is_none_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="client-key-data"):
        kubeconfig_access(kubeconfig(tmp_path, {"client-certificate-data": "", "client-key-data": "%", "token": "t"}))


def test_in_cluster_access() -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    assert in_cluster_access(environ).server == "https://[fd00::1]:6443"
    with pytest.raises(ValueError, match="--kubeconfig"):
        in_cluster_access({})


async def test_callers_must_show_a_certificate_where_one_is_asked_for(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("server")
    listen = ListenConfig(certificate_path=str(certificate), key_path=str(key), client_ca_path=str(authority.ca_path))
    app = web.Application()
    app.router.add_get("/healthz", _ok)
    server = TestServer(app, scheme="https")
    await server.start_server(ssl=server_tls(listen))
    address = server.make_url("/healthz")
    caller = ssl.create_default_context(cafile=str(authority.ca_path))
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientError):
            await session.get(address, ssl=caller)
        caller.load_cert_chain(*authority.issue("scheduler"))
        async with session.get(address, ssl=caller) as response:
            assert response.status == 200
    await server.close()


def test_a_missing_authority_of_callers_is_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("server")
    listen = ListenConfig(certificate_path=str(certificate), key_path=str(key), client_ca_path="/no/ca.crt")
    with pytest.raises(ConfigError, match=r"client_ca_path: /no/ca\.crt"):
        server_tls(listen)


async def _ok(_: web.Request) -> web.Response:
    return web.Response()
