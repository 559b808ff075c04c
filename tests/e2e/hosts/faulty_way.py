"""A way to the service that spoils its answers about gangs, or stops at the moment one arrives."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from google.protobuf import json_format

from placewise.v1.decision_pb2 import PLACED, Admission, AdmitOrWaitResponse, JobDecision, PlaceResponse

SLOW_S = 1.5
# Of a connection, not of its messages.
_HOP = frozenset({"host", "connection", "content-length", "transfer-encoding", "date", "server"})


def _without_place(decision: JobDecision) -> None:
    del decision.assignments[:]
    decision.outcome = PLACED


def _to_unknown_host(decision: JobDecision) -> None:
    for task in decision.assignments:
        task.node = "n99"


_CHANGES: Mapping[str, Callable[[JobDecision], None]] = {
    "ADMIT without a place": _without_place,
    "unknown host": _to_unknown_host,
}
SPOILS = ("slow", "error 500", "cut JSON", *_CHANGES)
ADMIT_ALL = "ADMIT of all without a place"
"""A fault of AdmitOrWait beside SPOILS: gangs that wait are admitted, too."""


class _Answer:
    """One answer about gangs: of AdmitOrWait as JSON, or of a call by the Connect protocol."""

    def __init__(self, path: str, body: bytes) -> None:
        self._is_json = path.endswith("jobs:admitOrWait")
        self._message: AdmitOrWaitResponse | PlaceResponse
        if self._is_json:
            self._message = json_format.Parse(body, AdmitOrWaitResponse(), ignore_unknown_fields=True)
        else:
            kind = PlaceResponse if path.endswith("/Place") else AdmitOrWaitResponse
            self._message = kind.FromString(body)

    @staticmethod
    def is_at(path: str) -> bool:
        return path.endswith(("jobs:admitOrWait", "DecisionService/AdmitOrWait", "DecisionService/Place"))

    @property
    def decisions(self) -> list[JobDecision]:
        placed = self._message if isinstance(self._message, PlaceResponse) else self._message.placed
        return list(placed.decisions)

    def admit_all(self) -> None:
        if isinstance(self._message, AdmitOrWaitResponse):
            del self._message.placed.decisions[:]
            for admission in self._message.admissions:
                admission.verdict = Admission.ADMIT

    def bytes(self) -> bytes:
        return json_format.MessageToJson(self._message).encode() if self._is_json else self._message.SerializeToString()


class FaultyWay:
    """Listens on `port` of loopback and hands calls on to the service at the port given to `lead_to`.

    The service has always decided: answers are spoilt on their way.

    `fault` is one of SPOILS, ADMIT_ALL or "". `hits` counts spoilt answers by fault, and good ones under "".
    `placed` is called before a good answer that places a gang is handed on. `events` counts the events that are
    reported as JSON, by job and kind.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self._service = 0
        self.fault = ""
        self.hits: Counter[str] = Counter()
        self.events: Counter[tuple[str, str]] = Counter()
        self.placed: Callable[[], None] | None = None
        way = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._hand_on()

            do_POST = do_PUT = do_GET  # noqa: N815 - names that BaseHTTPRequestHandler calls

            def _hand_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                status, headers, answer = way.ask(self.command, self.path, body, self.headers)
                if self.path.endswith("jobs:reportEvents") and status == 200:
                    way.events.update((event["jobId"], event["kind"]) for event in json.loads(body)["events"])
                if status == 200 and _Answer.is_at(self.path):
                    status, answer = way.spoilt(self.path, answer)
                try:
                    self.send_response(status)
                    for name, value in headers.items():
                        self.send_header(name, value)
                    self.send_header("content-length", str(len(answer)))
                    self.end_headers()
                    self.wfile.write(answer)
                except OSError:
                    self.close_connection = True  # the caller did not wait

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """A caller that is killed leaves open connections."""

        self._server = Server(("127.0.0.1", port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def lead_to(self, port: int) -> None:
        self._service = port

    def ask(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and body of the service's answer; 503 if it has none."""
        connection = http.client.HTTPConnection("127.0.0.1", self._service, timeout=10)
        try:
            connection.request(method, path, body or None, _without_hop(headers))
            answer = connection.getresponse()
            return answer.status, _without_hop(answer.headers), answer.read()
        except OSError:
            return 503, {"content-type": "application/json"}, b"{}"
        finally:
            connection.close()

    def spoilt(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Status and body of a good answer as it arrives."""
        fault = self.fault
        self.hits[fault] += 1
        if fault == "error 500":
            return 500, b"{}"
        if fault == "cut JSON":
            return 200, body[: len(body) // 2]
        if fault == "slow":
            time.sleep(SLOW_S)
            return 200, body
        answer = _Answer(path, body)
        if fault == ADMIT_ALL:
            answer.admit_all()
            return 200, answer.bytes()
        if fault:
            for decision in answer.decisions:
                _CHANGES[fault](decision)
            return 200, answer.bytes()
        if self.placed is not None and any(decision.outcome == PLACED for decision in answer.decisions):
            self.placed()
        return 200, body

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _without_hop(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _HOP}
