"""The readable part of an append-only file."""

from pathlib import Path

import pytest

from placewise_service.cli import invoke
from placewise_service.commands.exits import Exit
from placewise_service.state.redis.aof import Soundness, damaged_in, files_of, soundness


def command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


SELECT, SET = command(b"SELECT", b"0"), command(b"SET", b"k", b"a\r\nb")
SCRIPT = command(b"MULTI") + SET + command(b"EXEC")
SNAPSHOT = b"REDIS0009\xfa\xff\x01" + b"\xff" + b"checksum"


@pytest.mark.parametrize(
    ("content", "sound"),
    [
        (b"", 0),
        (SELECT + SCRIPT, len(SELECT + SCRIPT)),
        (SELECT + SCRIPT + b"\x07junk", len(SELECT + SCRIPT)),
        (SELECT + SCRIPT + SET[:-1], len(SELECT + SCRIPT)),
        (SELECT + SCRIPT + command(b"MULTI") + SET, len(SELECT + SCRIPT)),
        (SELECT + b"junk" + SCRIPT, len(SELECT)),
        (b"*1\r\n$5\r\nnonsense that is no command\r\n", 0),
        (SNAPSHOT + SELECT + SET + b"junk", len(SNAPSHOT + SELECT + SET)),
        (SNAPSHOT, -1),
    ],
)
def test_the_end_of_what_can_be_read(tmp_path: Path, content: bytes, sound: int) -> None:
    file = tmp_path / "appendonly.aof"
    file.write_bytes(content)
    assert soundness(file) == Soundness(len(content), sound)


def manifested(directory: Path, contents: dict[str, bytes]) -> list[Path]:
    """The files of Redis 7: a snapshot, a file that was replaced, and those with the commands since."""
    folder = directory / "appendonlydir"
    folder.mkdir()
    (folder / "appendonly.aof.2.base.rdb").write_bytes(SNAPSHOT)
    (folder / "appendonly.aof.1.incr.aof").write_bytes(b"junk")
    rows = ["file appendonly.aof.2.base.rdb seq 2 type b", "file appendonly.aof.1.incr.aof seq 1 type h"]
    for i, (name, content) in enumerate(contents.items(), start=2):
        (folder / name).write_bytes(content)
        rows.append(f"file {name} seq {i} type i")
    (folder / "appendonly.aof.manifest").write_text("\n".join(rows) + "\n")
    return [folder / name for name in contents]


def test_the_files_of_redis_7_are_those_that_its_manifest_names(tmp_path: Path) -> None:
    assert files_of(tmp_path) == []
    (tmp_path / "appendonly.aof").write_bytes(SELECT)
    assert files_of(tmp_path) == [tmp_path / "appendonly.aof"]
    first, second = "appendonly.aof.2.incr.aof", "appendonly.aof.3.incr.aof"
    files = manifested(tmp_path, {first: SELECT + SET, second: SELECT + b"junk"})
    assert files_of(tmp_path) == files
    assert damaged_in(tmp_path) == files[1]
    files[1].write_bytes(SELECT)
    assert damaged_in(tmp_path) is None


def test_state_check_cuts_the_last_file_of_redis_7_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PLACEWISE_STATE_DIR", str(tmp_path))
    (tmp_path / "redis").mkdir()
    first, second = manifested(tmp_path / "redis", {"a.2.incr.aof": SELECT, "a.3.incr.aof": SELECT + SET + b"junk"})
    assert invoke(["state", "check", "--cut"]) == 0
    assert f"{second}: cut at byte {len(SELECT + SET)}" in capsys.readouterr().out
    assert second.read_bytes() == SELECT + SET
    first.write_bytes(SELECT + b"junk")
    assert invoke(["state", "check", "--cut"]) == Exit.FAILED
    assert f"{first} is damaged, and Redis wrote other files after it" in capsys.readouterr().err
    assert first.read_bytes() == SELECT + b"junk"
