"""The SDK's keep-alive and the service's patience go together: an idle client is never cut off for its pings."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from placewise_client import Target, TargetError
from placewise_client.target import MIN_KEEPALIVE_S
from placewise_service.api.faces import grpc_server
from placewise_service.settings import LimitSettings

PATIENCE = "grpc.http2.min_ping_interval_without_data_ms"
# Both sides at a tenth of their time; gRPC pings no more than once a second, and cuts off at the third ping too early.
FACTOR = 10
IDLE_S = 6.0


def client_options(keepalive_s: float) -> dict[str, Any]:
    return dict(Target.of("127.0.0.1:1").options()) | {"grpc.keepalive_time_ms": int(1000 * keepalive_s / FACTOR)}


def server_options() -> dict[str, Any]:
    options = dict(grpc_server._options(LimitSettings(), 100, shares_port=False))
    return options | {PATIENCE: options[PATIENCE] // FACTOR}


def test_the_service_waits_for_less_than_the_shortest_pause_between_pings() -> None:
    assert 2 * server_options()[PATIENCE] * FACTOR <= 1000 * MIN_KEEPALIVE_S
    assert server_options()["grpc.keepalive_permit_without_calls"] == 1
    with pytest.raises(TargetError, match="keepalive_s"):
        Target(("127.0.0.1:1",), keepalive_s=5.0).check()


async def states_while_idle(options: dict[str, Any], keepalive_s: float) -> list[grpc.ChannelConnectivity]:
    """What becomes of a connection without calls, on which only pings go."""
    server = grpc.aio.server(options=list(options.items()))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    # 0: this client never stops to ping, as one with much to say would not.
    pinging = client_options(keepalive_s) | {"grpc.http2.max_pings_without_data": 0}
    states = []
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", list(pinging.items())) as channel:
        await channel.channel_ready()
        state = channel.get_state()
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(_follow(channel, state, states))
            await asyncio.sleep(IDLE_S)
            watch.cancel()
    await server.stop(None)
    return states


async def _follow(
    channel: grpc.aio.Channel, state: grpc.ChannelConnectivity, states: list[grpc.ChannelConnectivity]
) -> None:
    while True:
        await channel.wait_for_state_change(state)
        state = channel.get_state()
        states.append(state)


async def test_an_idle_client_is_never_cut_off() -> None:
    """Beside it, the same client of a server with gRPC's own patience, which does cut it off: the test can fail."""
    ours, strict = await asyncio.gather(
        states_while_idle(server_options(), MIN_KEEPALIVE_S), states_while_idle({}, MIN_KEEPALIVE_S)
    )
    assert ours == []
    assert strict != []
