"""README's calls and answers: read, asked of a service as `make run` starts it, and rewritten (`make readme`)."""

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from placewise_service.bench.processes import free_port

README = Path(__file__).parents[2] / "README.md"
_CALL = re.compile(r"```sh\n(?P<call>curl .*?)```\n```json\n(?P<answer>.*?)```", re.DOTALL)
_WIDTH = 120  # of README's lines


def calls() -> list[tuple[str, Any]]:
    """Each curl command of README, and the answer it promises."""
    return [(found["call"], json.loads(found["answer"])) for found in _CALL.finditer(README.read_text())]


@contextlib.contextmanager
def demo_service() -> Iterator[int]:
    """The service as `make run` starts it, on free ports and a state of its own: its REST port, once it is ready."""
    port = free_port()
    command = [sys.executable, "-m", "placewise_service.cli", "serve", "--demo"]
    command += ["--grpc-port", str(free_port()), "--rest-port", str(port)]
    with tempfile.TemporaryDirectory() as state:
        environment = {**os.environ, "PLACEWISE_STATE_DIR": state}
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _await_ready(port)
            yield port
        finally:
            process.terminate()
            process.wait(30)


def _await_ready(port: int) -> None:
    for _ in range(600):
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5):
            return
        time.sleep(0.05)
    raise TimeoutError("not ready within 30 s")


def asked(call: str, port: int) -> Any:
    """The answer of a service on this port to a curl command of README."""
    command = call.replace("localhost:8080", f"127.0.0.1:{port}")
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=30, check=True)
    return json.loads(done.stdout)


def laid_out(value: Any, indent: int = 0) -> str:
    """JSON with as much on a line as fits; a value that does not fit is split."""
    flat = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list) or not value or indent + len(flat) < _WIDTH:
        return flat
    inner = indent + 2
    if isinstance(value, dict):
        items = [f"{json.dumps(name)}: {laid_out(member, inner)}" for name, member in value.items()]
        return f"{{\n{_filled(items, inner)}\n{' ' * indent}}}"
    return f"[\n{_filled([laid_out(member, inner) for member in value], inner)}\n{' ' * indent}]"


def _filled(items: Sequence[str], indent: int) -> str:
    lines: list[str] = []
    for position, item in enumerate(items):
        word = item + ("," if position < len(items) - 1 else "")
        fits = lines and "\n" not in lines[-1] + word and len(lines[-1]) + 1 + len(word) <= _WIDTH
        if fits:
            lines[-1] += f" {word}"
        else:
            lines.append(" " * indent + word)
    return "\n".join(lines)


def rewrite() -> None:
    """Replaces the answers in README by those of a fresh service."""
    with demo_service() as port:
        text = _CALL.sub(
            lambda found: f"```sh\n{found['call']}```\n```json\n{laid_out(asked(found['call'], port))}\n```",
            README.read_text(),
        )
    README.write_text(text)


if __name__ == "__main__":
    rewrite()
