"""The readable part of an append-only file."""

from pathlib import Path

import pytest

from placewise_service.state.redis.aof import Soundness, soundness


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
