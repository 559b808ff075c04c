"""Watches the connections of the gRPC port: gRPC's library accepts, reads and ends them, and reports none.

That library limits the metadata only of clients that have acknowledged its settings, and keeps the bytes that others
sent until their connection ends. So we look at its sockets ourselves, many times a second: a peer without an authorised
call is cut off if it has sent more than such a call takes, or takes too long over the headers of its first one. Each
limit that fires is counted. Linux only; elsewhere nothing is watched. Nothing here reads or delays data.
"""

import asyncio
import contextlib
import os
import socket
import stat
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv6Address
from itertools import islice
from typing import Final

from placewise_service.settings import LimitSettings

Refused = Callable[[str, str], None]
"""Called with the limit, in a word, and the peer's address, for each refusal."""

ACKNOWLEDGED_S: Final = 2.0  # how long gRPC waits for its settings to be acknowledged
LENIENCE_S: Final = 1.0  # how much longer than we gRPC waits for a handshake
_FILES = "/proc/self/fd"
_PERIOD_S = 0.02
_UNSEEN_S = 0.5  # how long a connection may go unseen that came as another one left
_MOST_OF_THE_LOOP = 0.02  # that looking may take
_LATENESS_S = 0.5
_FAREWELL_S = 0.02  # for the answer to be sent
_RECEIVED_AT, _INFO_BYTES = 128, 136  # tcpi_bytes_received in struct tcp_info of linux/tcp.h
_FEWEST_BYTES = 33  # of an HTTP/2 client: its preface and its settings
_SETUP_BYTES, _TLS_BYTES = 512, 16 << 10  # most of a lawful client before its first call, and of its TLS handshake
_BYTES, _BYTES_PER_S = 256 << 10, 4 << 10  # health checks without credentials go on for ever, slowly
_METADATA_FACTOR = 16
_SPARE_CONNECTIONS = 8
_LOOKED_AT = 64  # connections for a silent one: each look costs some microseconds
_UNKNOWN_CALLERS = 64


def stranger_bytes(limits: LimitSettings) -> int:
    """Bytes that a peer may send before a call of it is authorised. Also gRPC's own limit on metadata, above ours.

    More than a lawful client sends before that: a TLS handshake, one HTTP/2 window (64 KiB) and many calls' metadata.
    """
    return max(_BYTES, _METADATA_FACTOR * limits.metadata_bytes)


def spare_connections(most: int) -> int:
    """Those that gRPC takes beyond `most`, so that it is we who end and count them."""
    return max(_SPARE_CONNECTIONS, most // 8)


@dataclass(slots=True)
class _Connection:
    peer: str  # as gRPC says it: ipv4:127.0.0.1:5000
    since_s: float
    unseen_s: float  # for so long before that it may have been here: a busy server looks late
    is_ended: bool = False
    has_called: bool = False  # the headers of a call have ended
    headers_since_s: float | None = None  # it has sent a part of its first call's headers


class GrpcConnections:
    """Those of one server. All methods belong to the event loop's thread."""

    def __init__(self, limits: LimitSettings, most: int, refused: Refused, *, is_secure: bool = False) -> None:
        self._limits = limits
        self._setup_bytes = _SETUP_BYTES + (_TLS_BYTES if is_secure else 0)
        self._most = most
        self._refused = refused
        self._bytes = stranger_bytes(limits)
        self._port = 0
        self._open: dict[int, _Connection] = {}  # by inode, which no socket has again soon
        self._others: set[int] = set()  # inodes of other sockets
        self._called_s: dict[str, float] = {}  # peer -> when it last began an authorised call
        self._descriptors: list[str] = []  # at the last look
        self._count = 0  # of them, where the system counts them
        self._folder = -1  # that lists them
        self._looked_s = 0.0
        self._known_s = 0.0  # when it was last known who is here: a look, or as many files open as at the last one
        self._has_strangers = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self, port: int) -> None:
        """Watches those who connect to the port."""
        self._port = port
        self._loop = asyncio.get_running_loop()
        self._known_s = self._loop.time()
        if sys.platform == "linux" and os.path.isdir(_FILES):
            self._folder = os.open(_FILES, os.O_RDONLY | os.O_DIRECTORY)
            self._sweep()

    def stop(self) -> None:
        """Watches no more. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1

    def note_call(self, peer: str) -> None:
        """The peer (as gRPC says it) has begun a call that is authorised."""
        self._called_s[peer] = self._loop.time()

    def admits(self, peer: str) -> bool:
        """False for a call whose connection has gone, or has brought too much before its first authorised call.

        gRPC has not yet made Python objects of the metadata. For a megabyte of it, that holds the loop for 10 ms.
        """
        if self._timer is None or peer in self._called_s or not _is_watched(peer):
            return True
        for inode, fd in self._look().items():
            connection = self._open[inode]
            if connection.peer == peer and not connection.is_ended:
                connection.has_called = True
                return self._check(inode, fd)
        return False

    def end_stranger(self, peer: str) -> None:
        """Soon cuts off a peer that broke a limit, unless it has had an authorised call."""
        if self._timer is not None:
            self._loop.call_later(_FAREWELL_S, self._end_peer, peer)

    def _end_peer(self, peer: str) -> None:
        if peer in self._called_s:
            return
        for inode, fd in self._look().items():
            if self._open[inode].peer == peer and not self._open[inode].is_ended:
                self._end(inode, fd)

    def _sweep(self) -> None:
        began_s = self._loop.time()
        if self._has_strangers or began_s > self._looked_s + _UNSEEN_S or self._has_changed():
            self._check_strangers()
        else:
            self._known_s = began_s
        now_s = self._loop.time()
        pause_s = max(_PERIOD_S, (now_s - began_s) / _MOST_OF_THE_LOOP)
        self._timer = self._loop.call_later(pause_s, self._sweep)

    def _has_changed(self) -> bool:
        """True if other files are open than at the last look. A system that counts them tells only of more or fewer."""
        count = self._open_files()
        return count != self._count if count else os.listdir(_FILES) != self._descriptors

    def _open_files(self) -> int:
        """How many files are open; 0 before Linux 6.2, which is the first to count them."""
        return os.fstat(self._folder).st_size

    def _check_strangers(self) -> None:
        strangers = {
            inode: fd
            for inode, fd in self._look().items()
            if self._open[inode].peer not in self._called_s and not self._open[inode].is_ended
        }
        for inode, fd in strangers.items():
            self._check(inode, fd)
        self._has_strangers = bool(strangers)

    def _look(self) -> dict[int, int]:
        """Notes who has come and who has gone; the descriptors of all that are here, by inode."""
        self._looked_s = now_s = self._loop.time()
        unseen_s, self._known_s = now_s - self._known_s, now_s
        self._descriptors, self._count = os.listdir(_FILES), self._open_files()
        sockets = _sockets(self._descriptors)
        for inode in sockets:
            if inode not in self._open and inode not in self._others:
                self._meet(inode, sockets, unseen_s)
        for inode in self._open.keys() - sockets.keys():
            self._on_gone(self._open.pop(inode), unseen_s)
        self._others &= sockets.keys()
        if len(self._called_s) > len(self._open) + _UNKNOWN_CALLERS:  # who came and went between two looks
            peers = {each.peer for each in self._open.values()}
            self._called_s = {peer: at_s for peer, at_s in self._called_s.items() if peer in peers}
        return {inode: sockets[inode] for inode in self._open}

    def _meet(self, inode: int, sockets: Mapping[int, int], unseen_s: float) -> None:
        peer, fd = "", sockets[inode]
        with _held(inode, fd) as held, contextlib.suppress(OSError):  # it listens, or its peer has left already
            here = held.getsockname()
            if isinstance(here, tuple) and here[1] == self._port:  # else, of a unix socket, a path
                peer = _peer(held.getpeername())
        if not peer:
            self._others.add(inode)
            return
        self._open[inode] = _Connection(peer, self._looked_s, unseen_s)
        if sum(not each.is_ended for each in self._open.values()) > self._most:
            leaving = self._oldest_without_call(sockets) or inode
            self._refused("connections", _address(self._open[leaving].peer))
            self._end(leaving, sockets[leaving])

    def _oldest_without_call(self, sockets: Mapping[int, int]) -> int:
        """Who makes room: the oldest that has sent nothing, or begun no call within the time for headers; 0 if all of
        the oldest have."""
        here = (inode for inode, each in self._open.items() if inode in sockets and not each.is_ended)
        for inode in islice(here, _LOOKED_AT):
            connection = self._open[inode]
            if connection.peer in self._called_s or connection.has_called:
                continue
            is_late = self._looked_s - connection.since_s > self._limits.header_s
            if is_late or self._received(inode, sockets[inode]) < _FEWEST_BYTES:
                return inode
        return 0

    def _check(self, inode: int, fd: int) -> bool:
        """Whether a stranger keeps to its limits; one that does not is cut off."""
        limit = self._broken(inode, fd)
        if limit:
            self._refused(limit, _address(self._open[inode].peer))
            self._end(inode, fd)
        return not limit

    def _broken(self, inode: int, fd: int) -> str:
        """The limit that a stranger is over, or nothing."""
        connection, now_s = self._open[inode], self._loop.time()
        age_s = now_s - connection.since_s
        received = self._received(inode, fd)
        if received > self._bytes + _BYTES_PER_S * age_s:
            return "header_bytes"
        if received < _FEWEST_BYTES and age_s > self._limits.handshake_s:
            return "handshake"
        if received > self._setup_bytes and not connection.has_called:
            if connection.headers_since_s is None:
                connection.headers_since_s = now_s
            if now_s - connection.headers_since_s > self._limits.header_s:
                return "header_time"
        return ""

    def _received(self, inode: int, fd: int) -> int:
        """Bytes from the peer; as many as the fewest that it sends, if the connection has gone."""
        with _held(inode, fd) as held, contextlib.suppress(OSError, struct.error):
            information = held.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
            return int(struct.unpack_from("=Q", information, _RECEIVED_AT)[0])
        return _FEWEST_BYTES

    def _end(self, inode: int, fd: int) -> None:
        self._open[inode].is_ended = True
        with _held(inode, fd) as held, contextlib.suppress(OSError):
            held.shutdown(socket.SHUT_RDWR)

    def _on_gone(self, connection: _Connection, unseen_s: float) -> None:
        """gRPC does not say why it ended a connection, which left in the last `unseen_s` seconds. Its age shows why."""
        called_s = self._called_s.pop(connection.peer, None)
        if connection.is_ended:
            return
        silent_s = self._looked_s - (connection.since_s if called_s is None else called_s)
        ages_s = (silent_s - unseen_s, silent_s + (connection.unseen_s if called_s is None else 0.0))
        limit = ""
        if _holds(ages_s, self._limits.idle_s, 2.0 * self._limits.idle_s):  # gRPC looks once in this time
            limit = "idle_time"
        elif called_s is None and _holds(ages_s, self._limits.handshake_s + LENIENCE_S):
            limit = "handshake"
        elif called_s is None and _holds(ages_s, ACKNOWLEDGED_S):
            limit = "settings_time"
        if limit:
            self._refused(limit, _address(connection.peer))


def _holds(ages_s: tuple[float, float], limit_s: float, most_s: float | None = None) -> bool:
    """Whether gRPC, which ends connections from `limit_s` to `most_s`, may have ended one of such an age."""
    return limit_s <= ages_s[1] + 2.0 * _PERIOD_S and ages_s[0] - _LATENESS_S <= (limit_s if most_s is None else most_s)


def _sockets(descriptors: list[str]) -> dict[int, int]:
    """Those of this process's descriptors that are sockets, by inode."""
    found = {}
    for name in descriptors:
        with contextlib.suppress(OSError):  # closed meanwhile
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                found[status.st_ino] = int(name)
    return found


@contextlib.contextmanager
def _held(inode: int, fd: int) -> Iterator[socket.socket]:
    """The connection by a descriptor of our own, since gRPC may close its descriptor at any time. The system may give
    that number to another file; then this yields a socket without a connection."""
    try:
        own = os.dup(fd)
    except OSError:
        own = -1
    if own >= 0 and os.fstat(own).st_ino != inode:
        os.close(own)
        own = -1
    if own < 0:
        with socket.socket() as none:
            yield none
        return
    with socket.socket(fileno=own) as held:
        yield held


def _peer(name: tuple[str | int, ...]) -> str:
    """As gRPC says it: a link-local address has the number of its zone."""
    host, port = str(name[0]), name[1]
    if ":" not in host:
        return f"ipv4:{host}:{port}"
    if name[3]:
        return f"ipv6:%5B{host}%25{name[3]}%5D:{port}"
    mapped = IPv6Address(host).ipv4_mapped
    return f"ipv6:%5B{host}%5D:{port}" if mapped is None else f"ipv4:{mapped}:{port}"


def _is_watched(peer: str) -> bool:
    """False for unix sockets."""
    return peer.startswith(("ipv4:", "ipv6:"))


def _address(peer: str) -> str:
    return peer.partition(":")[2]
