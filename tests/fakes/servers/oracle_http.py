"""The oracle behind the service's own face for calls over HTTP/1.1, on a free loopback port."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from google.protobuf.message import Message
from tests.fakes.servers.oracle import SmallService

from placewise_client import PlacewiseError
from placewise_core.basics.clock import SystemClock
from placewise_core.domain import errors
from placewise_service.api.calls.gateway import Call, Gateway
from placewise_service.api.calls.rpcs import Rpc
from placewise_service.api.faces.rest_server import RestFace
from placewise_service.api.identity.auth import Credentials, Open
from placewise_service.settings import LimitSettings, ServerSettings
from placewise_service.telemetry import Telemetry

_ERRORS = {error.grpc_code: error for error in errors.PlacewiseError.__subclasses__()}


class OracleGateway(Gateway):
    """Asks the oracle instead of an engine."""

    def __init__(self, oracle: SmallService) -> None:
        engine: Any = None
        super().__init__(engine, SystemClock(), LimitSettings(), Open(), Telemetry())
        self.needs_credentials = True  # so that tokens come through and are noted
        self.oracle = oracle

    def enter(
        self, rpc: Rpc, credentials: Credentials, deadline_s: float, trace: Mapping[str, str] | None = None
    ) -> Call:
        """As `Gateway.enter`."""
        return _OracleCall(self, rpc, credentials, deadline_s, trace)


class _OracleCall(Call):
    async def answer(self, message: Any) -> Message:
        gateway = self.gateway
        assert isinstance(gateway, OracleGateway)
        name = re.sub("(?<!^)(?=[A-Z])", "_", self.rpc.name).lower()
        token = self.credentials.token
        metadata = {} if token is None else {"authorization": f"Bearer {token}"}
        try:
            return await gateway.oracle.answer(name, message, metadata)  # type: ignore[no-any-return]
        except PlacewiseError as error:
            raise _served(error) from None


class OracleHttpServer:
    """`stop` and `start` keep the port."""

    def __init__(self, oracle: SmallService | None = None) -> None:
        self.oracle = oracle or SmallService()
        self.port = 0
        self._face: RestFace | None = None

    @property
    def target(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    http_target = target

    async def start(self) -> OracleHttpServer:
        self._face = RestFace(OracleGateway(self.oracle), ServerSettings(rest_port=self.port))
        self.port = self._face.port
        await self._face.start()
        return self

    async def stop(self) -> None:
        if self._face is not None:
            await self._face.stop()
            self._face = None


def _served(error: PlacewiseError) -> errors.PlacewiseError:
    """The service's error that reaches a client as `error`."""
    failure = _ERRORS.get(error.code.value[0], errors.PlacewiseError)(error.message)
    for name, value in (
        ("metadata", error.metadata),
        ("reason", error.reason),
        ("retry_after_s", error.retry_delay_s),
    ):
        setattr(failure, name, value)
    return failure
