"""Audit records: lines that cannot be forged, written by a thread of their own, for any fate of the file."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from placewise_log.audit import AuditError, AuditFile, AuditRecord
from placewise_service import main
from placewise_service.audit import AuditLog
from placewise_service.settings import ServerSettings, Settings


class Counters:
    """The counters."""

    def __init__(self) -> None:
        self.unwritten = 0
        self.lost = 0

    def audit_unwritten(self, count: int) -> None:
        self.unwritten += count

    def audit_lost(self, count: int) -> None:
        self.lost += count


@pytest.fixture
def counters() -> Counters:
    return Counters()


@pytest.fixture
def pipe() -> Iterator[tuple[int, Path]]:
    """The reading end of a pipe, and a path to its writing end."""
    reader, writer = os.pipe()
    yield reader, Path(f"/proc/self/fd/{writer}")
    for end in (reader, writer):
        os.close(end)


def record(n: int = 0, **more: str) -> AuditRecord:
    return AuditRecord(1_800_000_000.5, "DeleteCluster", "OK", "ann", "token", "10.0.0.1:5", "prod", f"s{n}", **more)


def rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def opened(path: Path, counters: Counters, capacity: int = 1000) -> AuditLog:
    return AuditLog(str(path), counters, time.monotonic, capacity, retry_s=0.01)


def until(condition: Callable[[], object], what: str) -> None:
    """Waits for the thread; the test's own time limit ends it."""
    while not condition():
        time.sleep(0.002)


def test_a_record_says_all_of_it(tmp_path: Path, counters: Counters) -> None:
    log = opened(tmp_path / "audit", counters)
    log.add(record(request_id="r-1"))
    log.close()
    assert rows(tmp_path / "audit") == [
        {
            "record": "audit",
            "time": "2027-01-15T08:00:00.500000+00:00",
            "caller": "ann",
            "method": "token",
            "peer": "10.0.0.1:5",
            "call": "DeleteCluster",
            "cluster": "prod",
            "subject": "s0",
            "result": "OK",
            "request_id": "r-1",
        }
    ]
    assert (tmp_path / "audit").stat().st_mode & 0o007 == 0


@pytest.mark.parametrize("mark", [*'\n\x0b\x0c\x1c\x85\u2028\u2029\x00\ud800"', "\r\n"])
def test_no_name_ends_a_line(mark: str) -> None:
    forged = f'x{mark}{{"record":"audit","caller":"root"}}'
    line = AuditRecord(0.0, "Place", "OK", forged, "token", forged, forged, forged, forged).line()
    text = line.decode("ascii")
    assert text.splitlines() == [text.removesuffix("\n")]
    found = json.loads(text)
    assert [found[name] for name in ("caller", "cluster", "subject", "request_id", "peer")] == [forged] * 5


def test_what_the_service_did_by_itself_has_its_reason() -> None:
    line = AuditRecord(0.0, "canary guard", "OK", method="guard", subject="next", reason="no fit: 9 of 10").line()
    found = json.loads(line)
    assert (found["method"], found["caller"], found["reason"]) == ("guard", "", "no fit: 9 of 10")
    assert "reason" not in json.loads(AuditRecord(0.0, "Place", "OK").line())


def test_long_names_are_cut_so_that_a_pipe_takes_the_line_at_once() -> None:
    for text in ("n" * 10_000, "\x00" * 10_000, "\U0001f600" * 10_000):
        line = AuditRecord(0.0, "Place", "OK", text, "token", text, text, text, text, reason=text).line()
        assert len(line) <= 4096
        assert json.loads(line)["caller"]


def test_a_file_that_cannot_be_opened_is_a_reason_not_to_start(tmp_path: Path, counters: Counters) -> None:
    for path in (tmp_path, tmp_path / "no" / "audit", Path("/dev/null/audit")):
        with pytest.raises(AuditError, match=str(path)):
            opened(path, counters)


def test_a_file_that_is_moved_away_is_made_anew(tmp_path: Path, counters: Counters) -> None:
    path = tmp_path / "audit"
    log = opened(path, counters)
    log.add(record(1))
    until(lambda: path.read_bytes().count(b"\n") == 1, "written")
    path.rename(tmp_path / "audit.1")
    log.add(record(2))
    log.close()
    assert [row["subject"] for row in rows(tmp_path / "audit.1")] == ["s1"]
    assert [row["subject"] for row in rows(path)] == ["s2"]


def test_what_cannot_be_written_is_counted_told_and_written_later(tmp_path: Path, counters: Counters) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    path = folder / "audit"
    log = opened(path, counters)
    log.add(record(1))
    until(lambda: path.read_bytes().count(b"\n") == 1, "written")
    folder.rename(tmp_path / "gone")
    for n in (2, 3):
        log.add(record(n))
    until(log.problem, "failing")
    assert "No such file" in log.problem()
    until(lambda: counters.unwritten == 2, "counted once each")
    folder.mkdir()
    until(lambda: not log.problem(), "written again")
    log.close()
    assert [row["subject"] for row in rows(path)] == ["s2", "s3"]
    assert (counters.unwritten, counters.lost) == (2, 0)


def test_a_full_disk_is_told(counters: Counters) -> None:
    log = opened(Path("/dev/full"), counters)
    assert log.problem() == ""
    log.add(record())
    until(log.problem, "failing")
    assert "No space left" in log.problem()
    log.close()
    assert (counters.unwritten, counters.lost) == (1, 1)


def test_a_line_that_was_cut_off_is_ended_and_comes_again_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit"
    file = AuditFile(str(path))
    lines = [record(n).line() for n in range(3)]
    write = os.write

    def short(fd: int, data: bytes) -> int:
        return write(fd, data[: len(lines[0]) + 10])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", short)
        assert file.write(lines) == 1
    assert file.write(lines[1:]) == 2
    file.close()
    written = path.read_bytes().split(b"\n")
    assert [line + b"\n" for line in written if line.endswith(b"}")] == lines
    assert lines[1].startswith(written[1])


def test_beyond_its_capacity_records_are_lost_and_counted(pipe: tuple[int, Path], counters: Counters) -> None:
    """A pipe that nobody empties: the caller never waits."""
    reader, path = pipe
    log = opened(path, counters, capacity=50)
    sent = 0
    while not counters.lost:
        log.add(record(sent))
        sent += 1
    assert "nobody takes them" in log.problem()
    received = bytearray()
    emptied = threading.Thread(target=lambda: received.extend(read_all(reader, sent - counters.lost)))
    emptied.start()
    emptied.join()
    until(lambda: not log.problem(), "taken")
    log.close()
    assert received.count(b"\n") == sent - counters.lost
    assert counters.lost == 1


def read_all(reader: int, lines: int) -> bytes:
    data = bytearray()
    while data.count(b"\n") < lines:
        data += os.read(reader, 65536)
    return bytes(data)


def test_records_that_come_together_are_written_together(
    tmp_path: Path, counters: Counters, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    write = AuditFile.write
    monkeypatch.setattr(AuditFile, "write", lambda file, lines: written.append(len(lines)) or write(file, lines))
    log = opened(tmp_path / "audit", counters)
    for n in range(20):
        log.add(record(n))
        time.sleep(0.0002)
    log.close()
    assert len(rows(tmp_path / "audit")) == 20
    assert len(written) <= 4


@pytest.mark.process
def test_several_processes_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    children = []
    for worker in range(3):
        pid = os.fork()
        if pid == 0:
            file = AuditFile(str(path))
            for n in range(200):
                file.write([record(n, request_id=str(worker)).line()] * 5)
            os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
    assert len(rows(path)) == 3 * 200 * 5


def test_nothing_is_left_behind_at_the_end(tmp_path: Path, counters: Counters) -> None:
    log = opened(tmp_path / "audit", counters)
    for n in range(500):
        log.add(record(n))
    log.close()
    assert [row["subject"] for row in rows(tmp_path / "audit")] == [f"s{n}" for n in range(500)]
    assert (counters.unwritten, counters.lost) == (0, 0)


def test_who_serves_everybody_is_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main.signal, "signal", lambda *_: None)
    monkeypatch.setattr(main, "_redis_url", refuse)
    monkeypatch.setattr(main, "configure_logging", lambda settings: None)
    for settings, is_warned in (
        (Settings(server=ServerSettings(insecure=True, rest_host="10.0.0.7")), True),
        (Settings(), False),
    ):
        with capture_logs() as lines:
            assert main.serve(settings) == main.FAILED
        assert [line for line in lines if line["log_level"] == "warning"] == (
            [{"event": INSECURE, "hosts": ["10.0.0.7", "127.0.0.1"], "log_level": "warning"}] if is_warned else []
        )


INSECURE = "insecure: everybody who reaches the ports has all permissions"


def refuse(settings: Settings) -> None:
    raise OSError("not in this test")
