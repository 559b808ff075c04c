"""A way to the service that spoils its answers about gangs, or stops at the moment one arrives."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SLOW_S = 1.5


def _cut(answer: bytes) -> bytes:
    return answer[: len(answer) // 2]


def _without_place(answer: bytes) -> bytes:
    return _changed(answer, lambda decision: decision.update(assignments=[], outcome="PLACED"))


def _to_unknown_host(answer: bytes) -> bytes:
    def move(decision: dict[str, Any]) -> None:
        for task in decision.get("assignments", []):
            task["node"] = "n9"

    return _changed(answer, move)


def _changed(answer: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    content = json.loads(answer)
    for decision in content.get("placed", {}).get("decisions", []):
        change(decision)
    return json.dumps(content).encode()


def _late(answer: bytes) -> bytes:
    time.sleep(SLOW_S)
    return answer


SPOILS: dict[str, Callable[[bytes], bytes]] = {
    "slow": _late,
    "error 500": lambda answer: answer,
    "cut JSON": _cut,
    "ADMIT without a place": _without_place,
    "unknown host": _to_unknown_host,
}


class FaultyWay:
    """Listens on `port` of loopback and hands calls on to the service at the port that `lead_to` is told.

    The service has always decided: answers are spoilt on their way.

    `fault` is a key of SPOILS or "". `hits` counts spoilt answers by fault, and good ones under "". `placed` is called
    before a good answer that places a gang is handed on. `events` counts the reported events by job and kind.
    """

    def __init__(self, port: int) -> None:
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
                status, answer = way.ask(self.command, self.path, body)
                if self.path.endswith("jobs:reportEvents") and status == 200:
                    way.events.update((event["jobId"], event["kind"]) for event in json.loads(body)["events"])
                if self.path.endswith("jobs:admitOrWait") and status == 200:
                    status, answer = way.spoilt(answer)
                try:
                    self.send_response(status)
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
                """A ResourceManager that is killed leaves open connections."""

        self._server = Server(("127.0.0.1", port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def lead_to(self, port: int) -> None:
        self._service = port

    def ask(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Status and body of the service's answer; 503 if it has none."""
        connection = http.client.HTTPConnection("127.0.0.1", self._service, timeout=10)
        try:
            connection.request(method, path, body or None, {"content-type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        except OSError:
            return 503, b"{}"
        finally:
            connection.close()

    def spoilt(self, answer: bytes) -> tuple[int, bytes]:
        fault = self.fault
        if not fault:
            self._tell(answer)
        self.hits[fault] += 1
        return (500, b"{}") if fault == "error 500" else (200, SPOILS.get(fault, bytes)(answer))

    def _tell(self, answer: bytes) -> None:
        decisions = json.loads(answer).get("placed", {}).get("decisions", [])
        if self.placed is not None and any(decision.get("outcome") == "PLACED" for decision in decisions):
            self.placed()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
