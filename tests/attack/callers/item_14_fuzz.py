"""Random requests to a started service, by gRPC, Connect (binary and JSON) and REST in turns."""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import quote

import aiohttp
import grpc
from google.protobuf import json_format
from tests.attack.attack import Attack, Figures
from tests.attack.source import Service, Source
from tests.fakes.callers.odd_messages import random_bytes, random_message

from placewise_service.api.calls.rpcs import RPCS, STREAM_PLACE, Rpc
from placewise_service.api.docs.routes import ROUTES, Route

TITLE = "Random requests"
_QUICK_CASES, _ALL_CASES = 3_000, 200_004
_SHARE_OF_EARLIER = 0.1  # of the cases, for a release that is only there to compare with
_CALLERS = 12
_CROWDED, _LATE, _MANGLED = 0.02, 0.02, 0.1  # shares of the cases
_SETTLED_AFTER = 0.2  # of the cases: the records of each cluster exist by then
_GROWTH_MIB = 100.0
_ROUTES = {route.rpc.name: route for route in ROUTES}
# Deleting the cluster, or sending every request to another bundle, would leave the rest of the cases little to meet.
_RARE = {
    "DeleteCluster": 0.02,
    "ActivateBundle": 0.1,
    "RollbackBundle": 0.1,
    "SetShadow": 0.1,
    "SetCanary": 0.1,
    "PromoteBundle": 0.1,
    "SetKillSwitch": 0.1,
}
_OUR_FAULT = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DATA_LOSS}
# The client's own words for a stream whose deadline passed before it was begun.
_EXPIRED_AT_START = "Internal error from Core"
_LEAKS = ("Traceback", "/service/", "site-packages", "0x7f")


@dataclass(slots=True)
class _FuzzResults:
    """Results of the cases. `faults` are server errors that no case asked for, with the first few described."""

    carriers: Counter[str] = field(default_factory=Counter)
    asked_timeouts: int = 0
    answered_well: int = 0
    faults: int = 0
    examples: list[str] = field(default_factory=list)

    def fault(self, text: str) -> None:
        self.faults += 1
        if len(self.examples) < 5:
            self.examples.append(text[:300])
            print(f"  fault: {text[:600]}", flush=True)


class _Fuzzer:
    def __init__(self, service: Service, run: _FuzzResults, seed: int) -> None:
        self._service, self._run, self._rng = service, run, random.Random(seed)

    async def cases(self, count: int, http: aiohttp.ClientSession, channel: grpc.aio.Channel) -> None:
        for _ in range(count):
            carrier = self._rng.choice(("grpc", "connect", "connect-json", "rest", "stream"))
            rpc = STREAM_PLACE if carrier == "stream" else self._rpc()
            timeout_ms = self._rng.choice((0.01, 1.0, 3.0)) if self._rng.random() < _LATE else None
            self._run.carriers[carrier] += 1
            if carrier in ("grpc", "stream"):
                await self._grpc(rpc, channel, timeout_ms, carrier == "stream")
            else:
                await self._http(carrier, rpc, http, timeout_ms)

    def _rpc(self) -> Rpc:
        while True:
            name = self._rng.choice(sorted(RPCS))
            if self._rng.random() < _RARE.get(name, 1.0):
                return RPCS[name]

    async def _grpc(self, rpc: Rpc, channel: grpc.aio.Channel, timeout_ms: float | None, is_stream: bool) -> None:
        raw = random_bytes(self._rng, rpc.request, _CROWDED)
        timeout_s = 60.0 if timeout_ms is None else timeout_ms / 1000.0
        try:
            if is_stream:
                answers = channel.stream_stream(rpc.path)(iter([raw]), timeout=timeout_s)
                async for _ in answers:
                    pass
            else:
                await channel.unary_unary(rpc.path)(raw, timeout=timeout_s)
            self._run.answered_well += 1
        except grpc.aio.AioRpcError as error:
            text = f"{rpc.name} by gRPC in {timeout_ms} ms: {error.code()} {error.details()} for {raw[:200]!r}"
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED or error.details() == _EXPIRED_AT_START:
                self._run.asked_timeouts += timeout_ms is not None
                if timeout_ms is None:
                    self._run.fault(text)
            elif error.code() in _OUR_FAULT or any(leak in (error.details() or "") for leak in _LEAKS):
                self._run.fault(text)
        except asyncio.CancelledError:  # as the client calls a call that the server gave up
            # So does gRPC itself, as a bare server shows, if a deadline of milliseconds passes on both sides.
            self._run.asked_timeouts += timeout_ms is not None
            if timeout_ms is None:
                self._run.fault(f"{rpc.name} by gRPC: cancelled for {raw[:200]!r}")

    async def _http(self, carrier: str, rpc: Rpc, http: aiohttp.ClientSession, timeout_ms: float | None) -> None:
        message = random_message(self._rng, rpc.request, _CROWDED)
        if carrier == "rest":
            method, path, body = self._rest(_ROUTES[rpc.name], message)
            header, kind = "Placewise-Timeout-Ms", "application/json"
        else:
            is_json = carrier == "connect-json"
            body = self._json(message) if is_json else message.SerializeToString()
            method, path, header = "POST", rpc.path, "Connect-Timeout-Ms"
            kind = "application/json" if is_json else "application/proto"
        headers = {"content-type": kind}
        if timeout_ms is not None:
            headers[header] = str(max(1, int(timeout_ms)))
        if body and self._rng.random() < _MANGLED:
            body = self._mangled(body)
        try:
            async with http.request(method, self._service.url + path, data=body or None, headers=headers) as response:
                text = (await response.read()).decode(errors="replace")
                status = response.status
        except aiohttp.ClientError as error:
            self._run.fault(f"{rpc.name} by {carrier}: {type(error).__name__} {error} for {body[:200]!r}")
            return
        if status < 400:
            self._run.answered_well += 1
        elif status == 504 and timeout_ms is not None:
            self._run.asked_timeouts += 1
        elif status >= 500 or any(leak in text for leak in _LEAKS):
            self._run.fault(f"{rpc.name} by {carrier}: {status} {text[:200]} for {body[:200]!r}")

    def _rest(self, route: Route, message: Any) -> tuple[str, str, bytes]:
        path = route.path
        for name in ("cluster", "decision_id", "name"):
            if f"{{{name}}}" in path:
                path = path.replace(f"{{{name}}}", quote(getattr(message, name), safe="") or "-")
                message.ClearField(name)
        if not route.body:
            return route.method, path, b""
        return route.method, path, self._json(message if route.body == "*" else getattr(message, route.body))

    def _json(self, message: Any) -> bytes:
        try:
            text = json_format.MessageToJson(
                message, indent=None, preserving_proto_field_name=self._rng.random() < 0.3, ensure_ascii=False
            )
        except (ValueError, json_format.Error):  # times beyond what JSON can write
            return b"{}"
        return text.encode(errors="surrogatepass")

    def _mangled(self, body: bytes) -> bytes:
        """The body with bytes changed, cut off, or with a value of another kind."""
        rng, raw = self._rng, bytearray(body)
        way = rng.randrange(4)
        if way == 0:
            for _ in range(rng.randint(1, 4)):
                raw[rng.randrange(len(raw))] = rng.randrange(256)
            return bytes(raw)
        if way == 1:
            return bytes(raw[: rng.randrange(len(raw))])
        if way == 2:
            return bytes(raw).replace(b":1", rng.choice((b":1e999", b":-0", b':"1"', b":null", b":[[[]]]", b":{}")), 1)
        return b"[" * rng.choice((1, 1_000, 100_000)) + bytes(raw)


async def _attacked(service: Service, cases: int) -> tuple[_FuzzResults, float]:
    """The run, and the service's resident MiB when a part of the cases was done."""
    run = _FuzzResults()
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=_CALLERS)) as http,
        grpc.aio.insecure_channel(service.target, [("grpc.max_receive_message_length", -1)]) as channel,
    ):
        fuzzers = [_Fuzzer(service, run, seed) for seed in range(_CALLERS)]
        first = int(cases * _SETTLED_AFTER) // _CALLERS
        await asyncio.gather(*(fuzzer.cases(first, http, channel) for fuzzer in fuzzers))
        settled_mib = service.resident_mib()
        service.forget_peak()
        await asyncio.gather(*(fuzzer.cases(cases // _CALLERS - first, http, channel) for fuzzer in fuzzers))
    return run, settled_mib


def _fuzz(most_cases: int, source: Source) -> Figures:
    cases = most_cases if source.name == "now" else int(_SHARE_OF_EARLIER * most_cases)
    with source.service() as service:
        run, settled_mib = asyncio.run(_attacked(service, cases))
        log = service.text()
        if "Traceback" in log:
            print(f"  traceback: {log[log.index('Traceback') :][:4000]}", flush=True)
        return {
            "cases": sum(run.carriers.values()),
            "answered": run.answered_well,
            "timeouts_asked_for": run.asked_timeouts,
            "server_errors": run.faults,
            "tracebacks": log.count("Traceback"),
            "unforeseen": log.count("unforeseen error"),
            "settled_mib": settled_mib,
            "growth_mib": service.peak_mib() - settled_mib,
            "is_running": int(service.is_running),
        }


def _is_clean(figures: Figures) -> bool:
    """Every part of the service was met (some were answered well, some in time, some not), and none broke."""
    is_met = int(figures["answered"]) > 0.2 * int(figures["cases"]) and int(figures["timeouts_asked_for"]) > 0
    faults = sum(int(figures[name]) for name in ("server_errors", "tracebacks", "unforeseen"))
    return is_met and faults == 0 and float(figures["growth_mib"]) <= _GROWTH_MIB and figures["is_running"] == 1


_PROMISE = (
    "Random requests by gRPC, Connect and REST, with counts about the limits, odd text and numbers at the edges, meet "
    "no server error but the timeout that they ask for, no traceback, and memory grows by at most 100 MiB."
)
_TEST = "tests/e2e/test_fuzz_faces.py::test_random_messages"

ATTACKS = (
    Attack("random requests, short", _PROMISE, _TEST, partial(_fuzz, _QUICK_CASES), _is_clean),
    Attack("random requests", _PROMISE, _TEST, partial(_fuzz, _ALL_CASES), _is_clean, is_quick=False),
)
