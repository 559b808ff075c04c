"""A way from the adapter to the API server that ends before one chosen write, as if the adapter had died there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import aiohttp
from aiohttp import web
from tests.e2e.kubernetes.kubernetes_cluster import ControlPlane

WRITES = ("POST", "PATCH", "PUT", "DELETE")
# Of a connection, not of its messages.
HOP = frozenset({"host", "connection", "content-length", "transfer-encoding", "date", "server"})


class ApiWay:
    """Hands every call on, watches too.

    `cut_before` says of a write, by method and path, whether the way ends before it; then `died` is called, and nothing
    passes until `open`. Writes pass one by one while it is set, so that those before are done.
    """

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        server = web.Server(self._answer, access_log=None, handler_cancellation=True)
        self._runner = web.ServerRunner(server, shutdown_timeout=0.1)
        self._session: aiohttp.ClientSession | None = None
        self._writing = asyncio.Lock()
        self._is_cut = False
        self._died: Callable[[], Coroutine[Any, Any, None]] | None = None
        self._cut_before: Callable[[str, str], bool] | None = None
        self.cuts = asyncio.Event()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> ApiWay:
        timeout = aiohttp.ClientTimeout(total=None)
        connector = aiohttp.TCPConnector(limit=0, ssl=self._plane.tls())
        self._session = aiohttp.ClientSession(timeout=timeout, connector=connector, auto_decompress=False)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
        if self._session is not None:
            await self._session.close()

    def cut(self, before: Callable[[str, str], bool], died: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Ends the way before the first write of which this is true."""
        self.cuts.clear()
        self._cut_before, self._died = before, died

    def open(self) -> None:
        self._cut_before, self._is_cut = None, False

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method in WRITES and self._cut_before is not None:
            async with self._writing:
                if self._is_cut or (self._cut_before is not None and self._cut_before(request.method, request.path)):
                    self._end()
                    return web.Response(status=503)
                return await self._hand_on(request)
        if self._is_cut:
            return web.Response(status=503)
        return await self._hand_on(request)

    def _end(self) -> None:
        """The death is a task of its own: it ends this very call."""
        if not self._is_cut and self._died is not None:
            self._is_cut = True
            self._dying = asyncio.create_task(self._died())
            self._dying.add_done_callback(lambda _: self.cuts.set())

    async def _hand_on(self, request: web.BaseRequest) -> web.StreamResponse:
        assert self._session is not None
        body = await request.read()
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP}
        async with self._session.request(
            request.method, self._plane.url + request.path_qs, data=body or None, headers=headers
        ) as answer:
            passed = {name: value for name, value in answer.headers.items() if name.lower() not in HOP}
            response = web.StreamResponse(status=answer.status, headers=passed)
            with suppress(ConnectionError, aiohttp.ClientError):  # the adapter was killed
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
            return response
