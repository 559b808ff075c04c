"""A low-level aiohttp server, as the Kubernetes adapter makes one, on a free port for aiohttp's test client."""

from __future__ import annotations

from typing import Any

from aiohttp import web
from aiohttp.test_utils import BaseTestServer


class ReadyServer(BaseTestServer):
    """Serves `server` as it is."""

    def __init__(self, server: web.Server) -> None:
        super().__init__()
        self._served = server

    async def _make_runner(self, **options: Any) -> web.BaseRunner:
        return web.ServerRunner(self._served)
