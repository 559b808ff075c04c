"""The Kubernetes API in memory (`FakeKube`) over HTTP, in a thread of its own, for adapters that run as processes."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from aiohttp import web
from tests.fakes.schedulers.kubernetes_api import FakeKube

from placewise_kubernetes.kube.client import OPENED, KubeError

T = TypeVar("T")
_COLLECTIONS = {"pods", "nodes", "jobs", "podgroups"}


class ServedKube:
    """A running API; `written` has every path that was posted to, as it came over the wire."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.kube = FakeKube()
        self.written: list[str] = []
        self.port = 0
        self._loop = loop

    @property
    def kubeconfig(self) -> Mapping[str, Any]:
        return {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": "u", "user": {"token": "the-adapter's"}}],
        }

    def do(self, action: Callable[[FakeKube], T]) -> T:
        """Runs `action` on the API's loop, and waits for it."""

        async def run() -> T:
            return action(self.kube)

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except KubeError as error:
            return web.json_response({"reason": error.reason, "message": str(error)}, status=error.status)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path
        if request.method == "GET" and path.rsplit("/", 1)[1] in _COLLECTIONS and "/namespaces/" not in path:
            return await (self._watch(request) if request.query.get("watch") else self._list(path))
        if request.method == "GET":
            return web.json_response(await self.kube.get(path))
        body = json.loads(await request.read())
        if request.method == "POST":
            self.written.append(request.raw_path)
            return web.json_response(await self.kube.create(path, body), status=201)
        return web.json_response(await self.kube.patch(path, body))

    async def _list(self, path: str) -> web.Response:
        items, version = await self.kube.list_all(path)
        return web.json_response({"items": items, "metadata": {"resourceVersion": version}})

    async def _watch(self, request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        async for kind, item in self.kube.watch(request.path, request.query["resourceVersion"]):
            if kind != OPENED:
                await response.write(json.dumps({"type": kind, "object": item}).encode() + b"\n")
        return response


@contextmanager
def served_kube() -> Iterator[ServedKube]:
    """An API on a free loopback port while the block runs."""
    found: list[tuple[ServedKube, asyncio.AbstractEventLoop, asyncio.Event]] = []
    is_up = threading.Event()

    async def serve() -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        served = ServedKube(loop)
        runner = web.ServerRunner(web.Server(served.answer, access_log=None))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        served.port = runner.addresses[0][1]
        found.append((served, loop, stop))
        is_up.set()
        await stop.wait()  # open connections are cancelled with the loop's tasks

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert is_up.wait(30)
    served, loop, stop = found[0]
    try:
        yield served
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
