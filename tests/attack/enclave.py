"""Runs programs in a network namespace with nothing but loopback, and notes whom they call. Standard library only.

    unshare --net --mount python enclave.py '{"programs": {"service": {"argv": […], "marker": "ready"}}, "watch_s": 12}'

Each program has a resolver of its own, so that it is known who made a look-up. At 192.0.2.1:6820, which is not
loopback, somebody listens and keeps the bytes that arrive. Prints one JSON object: the bytes heard there, and of each
program its look-ups, its exit code (null: it ran until the end of the watch), and the end of its output.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

# RFC 5737: addresses for documents, which are nobody's.
FOREIGN, FOREIGN_PORT = "192.0.2.1", 6820
_MARKER_S, _END_S = 90.0, 10.0


def main() -> None:
    plan = json.loads(sys.argv[1])
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["ip", "address", "add", f"{FOREIGN}/32", "dev", "lo"], check=True)
    heard: list[str] = []
    threading.Thread(target=_listen, args=(heard,), daemon=True).start()
    folder = Path(tempfile.mkdtemp(prefix="placewise-enclave-"))
    programs = {
        name: _Program(name, number, program, folder)
        for number, (name, program) in enumerate(plan["programs"].items(), start=2)
    }
    for program in programs.values():
        program.await_marker()
    time.sleep(plan["watch_s"])
    print(json.dumps({"heard": heard, "programs": {name: each.end() for name, each in programs.items()}}))


class _Program:
    """One program, its resolver at 127.0.0.<number>, and a view of the file system in which resolv.conf names it."""

    def __init__(self, name: str, number: int, program: dict[str, Any], folder: Path) -> None:
        self.lookups: list[str] = []
        self._marker = program.get("marker", "")
        self._log = folder / f"{name}.log"
        address, resolv = f"127.0.0.{number}", folder / f"{name}.resolv"
        resolv.write_text(f"nameserver {address}\noptions timeout:1 attempts:1\n")
        listening = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        listening.bind((address, 53))
        threading.Thread(target=self._resolve, args=(listening,), daemon=True).start()
        words = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/resolv.conf && exec "$@"', str(resolv)]
        with self._log.open("wb") as output:
            self._popen = subprocess.Popen(
                [*words, *program["argv"]], stdout=output, stderr=output, start_new_session=True
            )

    def _resolve(self, listening: socket.socket) -> None:
        """Notes each question and answers that there is no such name."""
        while True:
            question, asker = listening.recvfrom(4096)
            self.lookups.append(_name(question))
            listening.sendto(question[:2] + b"\x81\x83" + question[4:6] + b"\0\0\0\0\0\0" + question[12:], asker)

    def await_marker(self) -> None:
        deadline_s = time.monotonic() + _MARKER_S
        while self._marker and self._marker not in self._text() and time.monotonic() < deadline_s:
            if self._popen.poll() is not None:
                return
            time.sleep(0.05)

    def end(self) -> dict[str, Any]:
        code = self._popen.poll()
        if code is None:
            self._popen.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(_END_S)
        with contextlib.suppress(ProcessLookupError):  # the program, and those that it started
            os.killpg(self._popen.pid, signal.SIGKILL)
        is_begun = self._marker in self._text()
        return {"lookups": self.lookups, "code": code, "is_begun": is_begun, "text": self._text()[-1500:]}

    def _text(self) -> str:
        return self._log.read_text(errors="replace")


def _name(question: bytes) -> str:
    labels, at = [], 12
    while at < len(question) and (length := question[at]):
        labels.append(question[at + 1 : at + 1 + length].decode("ascii", "replace"))
        at += 1 + length
    return ".".join(labels)


def _listen(heard: list[str]) -> None:
    """Reads until it hangs up."""
    listening = socket.create_server((FOREIGN, FOREIGN_PORT))
    while True:
        connection, _ = listening.accept()
        connection.settimeout(2.0)
        with contextlib.suppress(OSError):
            heard.append(connection.recv(65536).decode("latin-1"))
        connection.close()


if __name__ == "__main__":
    os.environ["PYTHONUNBUFFERED"] = "1"
    main()
