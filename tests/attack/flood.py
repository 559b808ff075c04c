"""`python -m tests.attack.flood FACE KIND PORT RATE`: floods a port at a fixed rate and low priority, until ended.

`python -m tests.attack.flood bare - PORT 0` is the server that a flooded service is compared with: one that answers 401
to the first bytes it hears, and closes. Sockets only: the flood should cost the machine little beside its cost to its
victim.
"""

import asyncio
import contextlib
import os
import socket
import struct
import sys
import time
from collections import deque

FACES = ("rest", "connect", "grpc")
KINDS = ("calls", "bodies", "headers", "sockets")
_PATHS = {"rest": "/v1/clusters/prod/jobs:place", "connect": "/placewise.v1.DecisionService/Place"}
_BODY_BYTES = 4 << 20
_HEADER_BYTES = 1 << 20
_MOST_HELD = 40  # sockets that one process keeps open without a word
_PATIENCE_S = 2.0
_LEAST_PRIORITY = 19
_FRAME_BYTES = 16_384
_END_HEADERS, _END_STREAM = 4, 1


def attack(face: str, kind: str) -> bytes:
    """All bytes of one attack, without a token; none where sockets are the attack."""
    if kind == "sockets":
        return b""
    return _http2(kind) if face == "grpc" else _http1(face, kind)


def _http1(face: str, kind: str) -> bytes:
    body = json_of(_BODY_BYTES) if kind == "bodies" else json_of(100)
    lines = [f"POST {_PATHS[face]} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    if kind == "headers":
        lines += [f"X-{i}: {'a' * 1000}" for i in range(_HEADER_BYTES // 1000)]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


def json_of(size: int) -> bytes:
    """A question of as many empty jobs as fit."""
    return b'{"jobs":[' + b"{}," * ((size - 14) // 3) + b"{}]}"


def _http2(kind: str) -> bytes:
    message = b"\x1a\x00" * (_BODY_BYTES // 2 if kind == "bodies" else 50)  # empty jobs
    return grpc_call(_HEADER_BYTES // 100 if kind == "headers" else 0, message)


def grpc_call(fields: int, message: bytes = b"") -> bytes:
    """A connection's first call, with so many fields of metadata of 100 bytes each; the settings go unacknowledged."""
    headers = [(":method", "POST"), (":scheme", "http"), (":path", _PATHS["connect"]), (":authority", "localhost"),
               ("te", "trailers"), ("content-type", "application/grpc")]  # fmt: skip
    headers += [(f"x-{i}", "a" * 100) for i in range(fields)]
    block = b"".join(b"\x00" + _text(name) + _text(value) for name, value in headers)  # literals, never indexed
    content = b"\x00" + struct.pack(">I", len(message)) + message
    frames = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", _frame(4, 0, 0, b"")]
    frames += _split(1, 9, block, _END_HEADERS)
    frames += _split(0, 0, content, _END_STREAM)
    return b"".join(frames)


def _text(text: str) -> bytes:
    """In HPACK, for fewer than 127 bytes."""
    return bytes([len(text)]) + text.encode()


def _split(first: int, then: int, data: bytes, last_flag: int) -> list[bytes]:
    parts = [data[at : at + _FRAME_BYTES] for at in range(0, len(data), _FRAME_BYTES)]
    last = len(parts) - 1
    return [_frame(first if i == 0 else then, last_flag * (i == last), 1, part) for i, part in enumerate(parts)]


def _frame(kind: int, flags: int, stream: int, data: bytes) -> bytes:
    return struct.pack(">I", len(data))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + data


def flood(face: str, kind: str, port: int, rate: float) -> None:
    """Attacks `rate` times a second for ever; it skips attacks if it is late."""
    content = attack(face, kind)
    held: deque[socket.socket] = deque(maxlen=_MOST_HELD)
    due_s = time.monotonic()
    while True:
        due_s = max(due_s + 1.0 / rate, time.monotonic())
        time.sleep(max(0.0, due_s - time.monotonic()))
        with contextlib.suppress(OSError):
            connection = socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE_S)
            if not content:
                held.append(connection)
                continue
            with connection:
                with contextlib.suppress(OSError):
                    connection.sendall(content)
                connection.recv(1 << 16)


async def bare(port: int) -> None:
    """Answers 401 and closes."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            if await reader.read(1 << 16):
                writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    chosen, what, at, each_s = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    if chosen == "bare":
        asyncio.run(bare(at))
    else:
        os.nice(_LEAST_PRIORITY)
        flood(chosen, what, at, each_s)
