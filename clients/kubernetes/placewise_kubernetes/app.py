"""Puts the adapter together and runs it: watches, loop, server. One process, one event loop."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from placewise_client.adapter.lease import Lease
from placewise_client.adapter.loop import AdapterLoop
from placewise_client.aio import AsyncClient
from placewise_client.target import Target, Tls
from placewise_kubernetes.config import LOOPBACK, KubernetesConfig, ListenConfig, ServiceConfig
from placewise_kubernetes.faces.extender import Extender
from placewise_kubernetes.faces.server import Face, server_tls
from placewise_kubernetes.faces.volcano import VolcanoExtender
from placewise_kubernetes.host import KubernetesHost
from placewise_kubernetes.kube.client import KubeAccess, KubeClient
from placewise_kubernetes.kube.lease import KubeLease
from placewise_kubernetes.kube.nodes import NodeReader
from placewise_kubernetes.running import RunningAsker
from placewise_kubernetes.shares import ShareAsker

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Adapter:
    """A running adapter."""

    host: KubernetesHost
    loop: AdapterLoop
    port: int


def service_target(config: ServiceConfig) -> Target:
    """Address and credentials of the decision service."""
    tls = None
    if config.ca_path:
        chain, key = config.certificate_path, config.key_path
        tls = Tls(Path(config.ca_path), Path(chain) if chain else None, Path(key) if key else None)
    token = (lambda: Path(config.token_path).read_text().strip()) if config.token_path else None
    return Target(config.targets, tls, token, config.allow_plaintext_token)


@asynccontextmanager
async def running(config: KubernetesConfig, access: KubeAccess) -> AsyncIterator[Adapter]:
    """Runs the adapter for as long as the context is open.

    Raises:
        ExceptionGroup: a part of it ended by an error; the context's body is cancelled then.
    """
    async with AsyncExitStack() as stack:
        kube = await stack.enter_async_context(KubeClient(access))
        client = await stack.enter_async_context(AsyncClient(service_target(config.service)))
        reader = NodeReader(config.rules.gpu_resources, config.tolerated_taints, config.gates.is_enabled)
        # A dry run leaves every gang to its scheduler at once.
        wait_s = 0.0 if config.settings.is_dry_run else config.gates.scale_up_after_s
        gates = dataclasses.replace(config.gates, scale_up_after_s=wait_s)
        host = KubernetesHost(kube, config.rules, reader, gates=gates, ask_shares=ShareAsker(client, config.settings))
        host.pods.reported.ask = RunningAsker(client, config.settings)
        loop = AdapterLoop(host, client, config.settings)
        extender = Extender(
            host,
            config.fail_open_s,
            is_open_failing=config.settings.release_after_s == 0,
            is_reservation_protected=config.is_reservation_protected,
            is_caller_known=config.listen.is_bind_served and bool(config.listen.client_ca_path),
        )
        identity = f"{socket.gethostname()}:{config.listen.port}"  # the same after a restart, so that it need not wait
        lease = KubeLease(kube, config.lease, identity) if config.lease else None
        volcano = VolcanoExtender(host, config.enqueue_budget_s)
        face = Face(extender, volcano, loop.metrics, host.is_synced, lambda: lease is None or lease.is_held)
        port = await _listen(stack, face, config.listen)
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        parts = [tasks.create_task(host.run()), tasks.create_task(_decide(loop, lease))]
        log.info("listening on %s:%d", config.listen.host, port)
        try:
            yield Adapter(host, loop, port)
        finally:
            for part in parts:
                part.cancel()
            await loop.reporter.flush()
            await host.writer.drain()
            if lease is not None:
                await lease.release()


async def _decide(loop: AdapterLoop, lease: Lease | None) -> None:
    """Runs the loop, with a lease only while it is held. Raises LeaseLostError."""
    if lease is None:
        await loop.run()
        return
    await lease.acquire()
    await lease.lead(loop.run())


async def _listen(stack: AsyncExitStack, face: Face, listen: ListenConfig) -> int:
    if not listen.client_ca_path and listen.host not in LOOPBACK:
        log.warning("anybody who reaches port %d may call: guard the port, or set listen.client_ca_path", listen.port)
    if listen.health_port:
        await _serve(stack, face.health_server(), listen.host, listen.health_port, None)
    return await _serve(stack, face.server(listen), listen.host, listen.port, server_tls(listen))


async def _serve(stack: AsyncExitStack, server: web.Server, host: str, port: int, tls: ssl.SSLContext | None) -> int:
    runner = web.ServerRunner(server)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, host, port, ssl_context=tls).start()
    bound: int = runner.addresses[0][1]
    return bound
