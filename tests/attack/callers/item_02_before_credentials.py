"""A service's work for callers without a token: headers, bodies and sockets, alone and as a flood. And for one with a
token, whose body has more objects than any question."""

import contextlib
import http.client
import json
import select
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import quantiles

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.attack.attack import Attack, Figures
from tests.attack.flood import FACES, KINDS, attack, json_of
from tests.attack.source import Process, Service, Source

from placewise_service.bench.processes import free_port

TITLE = "Before credentials"
_TOKENS = {"owner": {"scopes": ["decide", "report", "read"]}}
_MIB = 1 << 20
_BODY_BYTES = 4 << 20
_CHUNK = b"X-Filler: " + b"a" * 1012 + b"\r\n"
_IDLE, _FILES = 300, 256
_PROCESSES, _PHASES, _PHASE_S, _PLACES_PER_S = 8, 6, 3.0, 60.0
# By each of the eight processes; the heavier an attack, the fewer of it.
_RATES = {"calls": 20.0, "bodies": 2.0, "headers": 5.0, "sockets": 20.0}
_CALL_S = 60.0
_PATIENCE_S = 10.0  # with a phase of three seconds; calls not made by then have failed
_CONNECTIONS, _STREAMS, _HELD_S = 12, 512, 8.0
_MOST_OF_A_CONNECTION = 8
_WATCH = "/grpc.health.v1.Health/Watch"
_HANDSHAKES_S = 20.0  # sockets that say nothing on the gRPC port are ended after ten seconds


def _service(source: Source, prefix: tuple[str, ...] = ()) -> contextlib.AbstractContextManager[Service]:
    return source.service(tokens=_TOKENS, prefix=prefix)


# -- One stranger ------------------------------------------------------------------------------------------------------


def _measure_headers(kind: str, source: Source) -> Figures:
    """Sends up to 200 MiB of headers that never end."""
    begin = {"many": b"GET / HTTP/1.1\r\n", "one": b"GET / HTTP/1.1\r\nX-A: ", "url": b"GET /"}[kind]
    block = _CHUNK * 1024 if kind == "many" else b"a" * _MIB
    with _service(source) as service, socket.create_connection(("127.0.0.1", service.rest_port)) as connection:
        before_mib, sent_mib = service.resident_mib(), 0
        with contextlib.suppress(OSError):
            connection.sendall(begin)
            for _ in range(200):
                connection.sendall(block)
                sent_mib += 1
        grown_mib = service.resident_mib() - before_mib
    return {"taken_mib": sent_mib, "grown_mib": round(grown_mib)}


def _headers_hold(figures: Figures) -> bool:
    return figures["taken_mib"] <= 16 and figures["grown_mib"] <= 16  # the sockets' own buffers take some


def _measure_bodies(face: str, source: Source) -> Figures:
    """Four bodies of 4 MiB at once, of as many objects as fit, without a token."""
    content = attack(face, "bodies")
    with _service(source) as service:
        port = service.grpc_port if face == "grpc" else service.rest_port
        before_mib, before_s = service.resident_mib(), service.processor_s()
        service.forget_peak()
        threads = [threading.Thread(target=_send, args=(port, content), daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_CALL_S)
        return {
            "processor_s": round(service.processor_s() - before_s, 2),
            "grown_mib": round(service.peak_mib() - before_mib),
        }


def _send(port: int, content: bytes) -> None:
    """Sends all, and returns at the first answer after that, or as soon as the other side has closed: the rest might
    stay unsent for a minute, while an idle service is charged for it."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setblocking(False)
        left = memoryview(content)
        while True:
            readable, writable, _ = select.select([connection], [connection] if left else [], [], _CALL_S)
            if readable and (not connection.recv(_MIB) or not left):
                return
            if not readable and not writable:
                return
            if writable:
                left = left[connection.send(left) :]


def _bodies_hold(figures: Figures) -> bool:
    return figures["processor_s"] <= 1.0 and figures["grown_mib"] <= 40


def _measure_owners_body(path: str, source: Source) -> Figures:
    """One JSON body of 4 MiB, of as many objects as fit, by a caller who may ask."""
    with _service(source) as service:
        headers = {"Authorization": f"Bearer {service.tokens['owner']}", "Content-Type": "application/json"}
        before_mib, before_s = service.resident_mib(), service.processor_s()
        service.forget_peak()
        connection = http.client.HTTPConnection("127.0.0.1", service.rest_port, timeout=_CALL_S)
        connection.request("POST", path, json_of(_BODY_BYTES), headers)
        status = connection.getresponse().status
        connection.close()
        return {
            "status": status,
            "processor_s": round(service.processor_s() - before_s, 2),
            "grown_mib": round(service.peak_mib() - before_mib),
        }


def _owners_body_holds(figures: Figures) -> bool:
    return figures["status"] == 400 and _bodies_hold(figures)


def _measure_sockets(face: str, source: Source) -> Figures:
    """300 sockets that say nothing, against a process of 256 descriptors: does each face still answer?"""
    with _service(source, ("prlimit", f"--nofile={_FILES}:{_FILES}")) as service, contextlib.ExitStack() as stack:
        port = service.grpc_port if face == "grpc" else service.rest_port
        for _ in range(_IDLE):
            with contextlib.suppress(OSError):
                stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=1.0))
        time.sleep(1.0)
        answers = {"rest": _rest_answers(service), "grpc": _grpc_answers(service)}
        return {**answers, "descriptors": service.descriptors()}


def _rest_answers(service: Service) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", service.rest_port, timeout=10.0)
    try:
        connection.request("GET", "/healthz")
        return "answers" if connection.getresponse().status == 200 else "fails"
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__
    finally:
        connection.close()


def _grpc_answers(service: Service) -> str:
    with grpc.insecure_channel(service.target) as channel:
        try:
            health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=_HANDSHAKES_S, wait_for_ready=True
            )
        except grpc.RpcError as error:
            return str(error.code().name)  # type: ignore[attr-defined]
    return "answers"


def _sockets_hold(figures: Figures) -> bool:
    return figures["rest"] == "answers" and figures["grpc"] == "answers"


def _measure_open_calls(source: Source) -> Figures:
    """Health watches, as many as the connections have streams; those that are open a moment after they began."""
    with _service(source) as service, contextlib.ExitStack() as stack:
        before_mib, watches = service.resident_mib(), []
        service.forget_peak()
        for _ in range(_CONNECTIONS):
            options = [("grpc.use_local_subchannel_pool", 1)]
            watch = stack.enter_context(grpc.insecure_channel(service.target, options)).unary_stream(_WATCH)
            watches += [watch(b"") for _ in range(_STREAMS)]
        time.sleep(_HELD_S)
        return {
            "held": sum(each.is_active() for each in watches),
            "grown_mib": round(service.peak_mib() - before_mib),
            "grpc": _grpc_answers(service),
        }


def _open_calls_hold(figures: Figures) -> bool:
    held, grown_mib = float(figures["held"]), float(figures["grown_mib"])
    return held <= _MOST_OF_A_CONNECTION * _CONNECTIONS and grown_mib <= 100 and figures["grpc"] == "answers"


# -- A flood -----------------------------------------------------------------------------------------------------------


def _measure_flood(face: str, kind: str, source: Source) -> Figures:
    """An owner's Places while strangers flood a bare server, and while the same ones flood the service, by turns."""
    seconds: dict[str, list[float]] = {"bare": [], "service": []}
    with _service(source) as service, tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        owner = _Owner(service)
        owner.ask(100)  # warm
        before_mib = service.resident_mib()
        service.forget_peak()
        bare_port = free_port()
        with source_of_strangers(source, directory, "bare", "-", bare_port, 0.0):
            for _ in range(_PHASES):
                victim_port = service.grpc_port if face == "grpc" else service.rest_port
                for victim, port in (("bare", bare_port), ("service", victim_port)):
                    with contextlib.ExitStack() as stack:
                        for _ in range(_PROCESSES):
                            stack.enter_context(source_of_strangers(source, directory, face, kind, port, _RATES[kind]))
                        time.sleep(1.5)  # until they are under way
                        seconds[victim] += owner.ask(int(_PHASE_S * _PLACES_PER_S))
        grown_mib = service.peak_mib() - before_mib
    p99 = {name: 1000.0 * quantiles(found, n=100)[98] for name, found in seconds.items()}
    return {
        "bare_p99_ms": round(p99["bare"], 2),
        "service_p99_ms": round(p99["service"], 2),
        "ratio": round(p99["service"] / p99["bare"], 2),
        "grown_mib": round(grown_mib),
        "failed": owner.failed,
    }


@contextlib.contextmanager
def source_of_strangers(
    source: Source, directory: Path, face: str, kind: str, port: int, rate: float
) -> Iterator[Process]:
    """One process of `tests.attack.flood`, always today's: an earlier tree has none."""
    today = Source(Path(__file__).parent.parent.parent.parent, "now")
    words = ["-m", "tests.attack.flood", face, kind, str(port), str(rate)]
    with today.process(words, directory) as process:
        yield process


class _Owner:
    """Asks Place over one kept connection, so many times a second."""

    def __init__(self, service: Service) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", service.rest_port, timeout=_CALL_S)
        self._headers = {
            "Authorization": f"Bearer {service.tokens['owner']}", "Content-Type": "application/json"
        }  # fmt: skip
        self._asked = 0
        self.failed = 0
        capacity = {"cpuCores": 64, "gpus": 8, "memoryGib": 512}
        nodes = [{"id": f"n{i}", "capacity": capacity} for i in range(32)]
        assert self._call("PUT", "/v1/clusters/prod/nodes", {"nodes": nodes}) == 200

    def ask(self, times: int) -> list[float]:
        """Seconds that each call took. Calls are due at fixed times; one that comes late is followed at once."""
        found = []
        due_s = time.monotonic()
        end_s = due_s + _PATIENCE_S
        for done in range(times):
            if time.monotonic() > end_s:
                self.failed += times - done
                break
            due_s += 1.0 / _PLACES_PER_S
            time.sleep(max(0.0, due_s - time.monotonic()))
            self._asked += 1
            groups = [{"role": "WORKER", "count": 1, "demand": {"cpuCores": 0.01}}]
            question = {"jobs": [{"id": f"j{self._asked}", "groups": groups}]}
            began_s = time.monotonic()
            status = self._call("POST", "/v1/clusters/prod/jobs:place", question)
            found.append(time.monotonic() - began_s)
            self.failed += status != 200
        return found

    def _call(self, method: str, path: str, body: object) -> int:
        try:
            self._connection.request(method, path, json.dumps(body), self._headers)
            answer = self._connection.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):
            self._connection.close()
            return 0
        return answer.status


def _flood_holds(figures: Figures) -> bool:
    return figures["ratio"] <= 2.0 and figures["grown_mib"] <= 100 and figures["failed"] == 0


def _floods() -> Iterator[Attack]:
    for face in FACES:
        for kind in KINDS:
            yield Attack(
                f"flood of {kind} over {face}",
                f"While eight processes without a token flood {face} with {kind}, an authorised Place's p99 is within "
                "twice its p99 while they flood a bare server that answers 401 and closes; memory grows by 100 MiB at "
                "most.",
                "tests/contract/faces/test_api_entry.py::test_who_may_not_ask_is_refused_before_the_message",
                partial(_measure_flood, face, kind),
                _flood_holds,
                is_quick=False,
            )


ATTACKS = (
    *(
        Attack(
            f"endless headers: {kind}",
            promise,
            "tests/contract/faces/test_api_http_limits.py::test_a_head_without_an_end_is_cut_off",
            partial(_measure_headers, kind),
            _headers_hold,
        )
        for kind, promise in (
            ("many", "Headers end at 64 KiB: 200 MiB of them are not taken in."),
            ("one", "One header that does not end is cut off."),
            ("url", "A URL ends at 8 KiB."),
        )
    ),
    *(
        Attack(
            f"bodies of strangers over {face}",
            f"A message over {face} is not read before its caller is known: four of 4 MiB cost next to nothing.",
            "tests/contract/faces/test_api_entry.py::test_who_may_not_ask_is_refused_before_the_message",
            partial(_measure_bodies, face),
            _bodies_hold,
        )
        for face in FACES
    ),
    *(
        Attack(
            f"an owner's body over {face}",
            f"A JSON body of 4 MiB over {face} by a caller who may ask is refused by the number of its objects, before "
            "any of them is built.",
            "tests/contract/faces/test_api_http_limits.py::test_a_body_of_more_objects_than_the_default_limit_is_refused_and_counted",
            partial(_measure_owners_body, path),
            _owners_body_holds,
        )
        for face, path in (("REST", "/v1/clusters/prod/jobs:place"), ("Connect", "/placewise.v1.DecisionService/Place"))
    ),
    *(
        Attack(
            f"silent sockets on {face}",
            f"300 sockets that say nothing on {face} take the descriptors of neither face.",
            f"tests/contract/faces/test_api_{test}",
            partial(_measure_sockets, face),
            _sockets_hold,
        )
        for face, test in (
            ("http", "http_limits.py::test_who_waits_longest_without_a_question_makes_room_for_who_has_one"),
            ("grpc", "grpc_limits.py::test_connections_are_bounded_and_those_that_say_nothing_end"),
        )
    ),
    Attack(
        "health watches of strangers",
        "A connection holds eight of the calls that need no credentials: of 6,144 health watches over twelve "
        "connections all others are refused.",
        "tests/contract/faces/test_api_grpc_limits.py::test_a_connection_holds_few_calls_without_credentials",
        _measure_open_calls,
        _open_calls_hold,
    ),
    *_floods(),
)
