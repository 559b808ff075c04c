"""The tokens file while the service runs: what revokes, what keeps the last good tokens, what refuses everybody; and
the commands that change it."""

import fcntl
import getpass
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tests.fakes.callers.identity import by_tokens
from tests.fakes.servers.faces import faces

from placewise_core.basics.clock import ManualClock
from placewise_core.domain.errors import StateUnavailableError, UnauthenticatedError
from placewise_service.api.identity.auth import AccessScope, Credentials
from placewise_service.api.identity.identity import Identity
from placewise_service.api.identity.token_changes import create_token, revoke_token
from placewise_service.api.identity.tokens import TokenFile
from placewise_service.api.identity.watched import CredentialsFileError
from placewise_service.cli import invoke
from placewise_service.telemetry import Telemetry

KEEP_S = 60.0


class OneToken:
    """A tokens file with one token, as a service reads it."""

    def __init__(self, folder: Path, on_stale: Callable[[str, float], None] | None = None) -> None:
        self.path = folder / "tokens.yaml"
        self.token = create_token(self.path, "slurm", [AccessScope.READ])
        self.clock = ManualClock()
        self.stale: dict[str, float] = {}
        tokens = TokenFile(self.path, self.clock, KEEP_S, on_stale or self.stale.__setitem__)
        self.identity = Identity(self.clock, tokens)

    def ask(self, token: str = "") -> str:
        """The caller's name, a moment later."""
        self.clock.advance(2.0)
        return self.identity.authenticate(Credentials(token or self.token)).name


@pytest.fixture
def kept(tmp_path: Path) -> OneToken:
    return OneToken(tmp_path)


def empty(path: Path) -> None:
    path.write_text("")


def comment(path: Path) -> None:
    path.write_text("# tokens:\n")


def no_list(path: Path) -> None:
    path.write_text("{}")


def half(path: Path) -> None:
    path.write_text(path.read_text()[:20])


def other_kind(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00")


def delete(path: Path) -> None:
    path.unlink()


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


BREAKS = [empty, comment, no_list, half, other_kind, delete, folder]


@pytest.mark.parametrize("spoil", BREAKS, ids=lambda spoil: spoil.__name__)
def test_a_file_that_cannot_be_used_keeps_the_last_tokens_for_a_while_and_then_refuses_all(
    kept: OneToken, spoil: Callable[[Path], object]
) -> None:
    assert kept.ask() == "slurm"
    content = kept.path.read_bytes()
    spoil(kept.path)
    assert kept.ask() == "slurm"
    assert kept.stale["tokens file"] > 0
    assert kept.identity.problem() == ""
    with pytest.raises(UnauthenticatedError):  # the last good ones, and no others
        kept.ask("pw_wrong")
    kept.clock.advance(KEEP_S)
    for token in (kept.token, "pw_wrong"):
        with pytest.raises(StateUnavailableError):
            kept.ask(token)
    assert "tokens file" in kept.identity.problem()
    assert kept.stale["tokens file"] >= KEEP_S
    if kept.path.is_dir():
        kept.path.rmdir()
    kept.path.write_bytes(content)
    assert kept.ask() == "slurm"
    assert kept.identity.problem() == ""
    assert kept.stale["tokens file"] == 0


@pytest.mark.parametrize("spoil", BREAKS, ids=lambda spoil: spoil.__name__)
def test_such_a_file_is_a_reason_not_to_start(tmp_path: Path, spoil: Callable[[Path], object]) -> None:
    path = tmp_path / "tokens.yaml"
    create_token(path, "slurm", [AccessScope.READ])
    spoil(path)
    with pytest.raises(CredentialsFileError, match=r"tokens\.yaml"):
        by_tokens(path)


def test_an_empty_list_revokes_all_at_once(kept: OneToken) -> None:
    kept.path.write_text("tokens: []\n")
    with pytest.raises(UnauthenticatedError):
        kept.ask()
    assert kept.identity.problem() == ""
    assert by_tokens(kept.path).problem() == ""


def test_a_failed_read_is_repeated_though_nothing_of_the_file_changes(
    kept: OneToken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner who is corrected, or a directory above that is opened, may leave no trace in the file's dates."""
    opened = Path.open

    def refused(path: Path, *args: object, **more: object) -> object:
        if path == kept.path:
            raise PermissionError(13, "Permission denied")
        return opened(path, *args, **more)  # type: ignore[call-overload]

    new = create_token(kept.path, "new", [AccessScope.READ])
    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(UnauthenticatedError):
        kept.ask(new)
    monkeypatch.undo()
    assert kept.ask(new) == "new"


def test_a_change_of_mode_is_a_reason_to_read_again(kept: OneToken) -> None:
    """Size and date of the content stay: only the inode's own date tells."""
    status = kept.path.stat()
    text = kept.path.read_text().replace("name: slurm", "name: other")
    kept.path.write_text(text)
    os.utime(kept.path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert kept.path.stat().st_size == status.st_size
    assert kept.ask() == "other"


def test_readiness_and_metrics_tell_of_it(tmp_path: Path) -> None:
    """Of the file that nobody asked about meanwhile, too."""
    kept = OneToken(tmp_path)
    kept.path.unlink()
    kept.clock.advance(2.0)
    assert kept.identity.problem() == ""
    kept.clock.advance(KEEP_S)
    assert kept.identity.problem() != ""
    assert kept.stale["tokens file"] >= KEEP_S


async def test_readyz_is_red_and_says_why(tmp_path: Path) -> None:
    kept = OneToken(tmp_path)
    async with faces(authenticator=kept.identity) as running:
        assert (await running.http.get("/readyz")).status_code == 200
        kept.path.unlink()
        kept.clock.advance(2.0)
        assert (await running.http.get("/readyz")).status_code == 200
        kept.clock.advance(KEEP_S)
        answer = await running.http.get("/readyz")
        assert answer.status_code == 503
        assert "tokens file" in answer.json()["problem"]
        call = await running.http.get("/v1/clusters/prod", headers={"authorization": f"Bearer {kept.token}"})
        assert (call.status_code, call.json()["reason"]) == (503, "STATE_UNAVAILABLE")


async def test_metrics_tell_of_it_as_long_as_it_lasts_and_then_of_nothing_else(tmp_path: Path) -> None:
    telemetry = Telemetry()
    kept = OneToken(tmp_path, telemetry.credentials_stale)
    async with faces(authenticator=kept.identity, telemetry=telemetry) as running:

        async def scrape(token: str) -> tuple[int, list[str]]:
            answer = await running.http.get("/metrics", headers={"authorization": f"Bearer {token}"} if token else {})
            return answer.status_code, [line for line in answer.text.splitlines() if not line.startswith("#")]

        kept.path.unlink()
        kept.clock.advance(2.0)
        status, lines = await scrape(kept.token)
        assert status == 200
        assert 'placewise_credentials_stale_seconds{file="tokens file"} 1.0' in lines
        assert len(lines) > 10
        kept.clock.advance(KEEP_S)
        for token in (kept.token, "pw_wrong"):
            assert await scrape(token) == (200, ['placewise_credentials_stale_seconds{file="tokens file"} 60.0'])
        assert (await scrape(""))[0] == 401


def test_changes_keep_the_file_its_mode_and_whatever_is_mounted_of_it(tmp_path: Path) -> None:
    path = tmp_path / "tokens.yaml"
    create_token(path, "a", [AccessScope.READ])
    path.chmod(0o640)
    before = path.stat()
    os.link(path, tmp_path / "mounted")  # as a container sees the one file that is mounted into it
    create_token(path, "b", [AccessScope.READ])
    revoke_token(path, "a")
    after = path.stat()
    assert (after.st_ino, after.st_mode, after.st_uid) == (before.st_ino, before.st_mode, before.st_uid)
    [row] = yaml.safe_load((tmp_path / "mounted").read_text())["tokens"]
    assert row["name"] == "b"


def test_a_revoked_token_is_refused_by_who_has_the_one_file_mounted(kept: OneToken, tmp_path: Path) -> None:
    os.link(kept.path, tmp_path / "mounted")
    mounted = by_tokens(tmp_path / "mounted", kept.clock)
    assert mounted.authenticate(Credentials(kept.token)).name == "slurm"
    revoke_token(kept.path, "slurm")
    kept.clock.advance(2.0)
    with pytest.raises(UnauthenticatedError):
        mounted.authenticate(Credentials(kept.token))


def test_a_file_that_is_being_changed_is_read_a_moment_later(kept: OneToken) -> None:
    with kept.path.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write("tokens: []")  # half of the content
        file.flush()
        assert kept.ask() == "slurm"
    with pytest.raises(CredentialsFileError):
        by_tokens(kept.path)


def test_a_change_that_fails_leaves_the_file_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokens.yaml"
    create_token(path, "a", [AccessScope.READ])
    before = path.read_bytes()

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(CredentialsFileError, match="No space left"):
        create_token(path, "b", [AccessScope.READ])
    assert path.read_bytes() == before


def test_commands_create_list_and_revoke(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "tokens.yaml")
    words = ["--scope", "read", "--cluster", "prod", "--mode", "640", "--group", str(os.getgid())]
    assert invoke(["token", "create", "a", "--file", file, *words]) == 0
    assert Path(file).stat().st_mode & 0o777 == 0o640
    assert invoke(["token", "create", "b", "--file", file, "--scope", "admin"]) == 0
    capsys.readouterr()
    assert invoke(["token", "list", "--file", file, "--json"]) == 0
    text = capsys.readouterr().out
    rows = json.loads(text)["tokens"]
    assert [(row["name"], row["scopes"], row["clusters"], row["is_expired"]) for row in rows] == [
        ("a", ["read"], ["prod"], False),
        ("b", ["admin"], None, False),
    ]
    assert "sha256" not in text
    assert invoke(["token", "list", "--file", file]) == 0
    assert "every one" in capsys.readouterr().out
    assert invoke(["token", "revoke", "a", "--file", file]) == 0
    assert invoke(["token", "revoke", "a", "--file", file]) == 4
    assert "no token named 'a'" in capsys.readouterr().err
    assert invoke(["token", "revoke", "b", "--file", file, "--json"]) == 0
    assert yaml.safe_load(Path(file).read_text()) == {"tokens": []}


@pytest.mark.parametrize("words", [["--mode", "rw"], ["--mode", "7777"], ["--group", "no-such-group"]])
def test_a_mode_or_group_that_is_none_is_refused(tmp_path: Path, words: list[str]) -> None:
    file = tmp_path / "tokens.yaml"
    assert invoke(["token", "create", "a", "--file", str(file), "--scope", "read", *words]) == 2
    assert not file.exists()


def test_a_broken_file_is_not_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tokens.yaml"
    path.write_text("tokens: [{name: left, sha256: zz, scopes: [read]}]")
    for words in (["create", "a", "--scope", "read"], ["revoke", "left"], ["list"]):
        assert invoke(["token", *words, "--file", str(path)]) == 4
        assert "tokens.yaml: tokens.0.sha256 (left):" in capsys.readouterr().err
    assert "left" in path.read_text()


def test_changes_of_tokens_are_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, audit = str(tmp_path / "tokens.yaml"), tmp_path / "audit"
    monkeypatch.setenv("PLACEWISE_AUDIT__FILE", str(audit))
    monkeypatch.setenv("SUDO_USER", "ann")
    assert invoke(["token", "create", "a\nb", "--file", file, "--scope", "read"]) == 0
    token = capsys.readouterr().out.strip()
    assert invoke(["token", "create", "a\nb", "--file", file, "--scope", "read"]) == 4
    assert invoke(["token", "revoke", "a\nb", "--file", file]) == 0
    rows = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [(row["call"], row["subject"], row["result"]) for row in rows] == [
        ("token create", "a\nb", "OK"),
        ("token create", "a\nb", "REFUSED"),
        ("token revoke", "a\nb", "OK"),
    ]
    assert {(row["caller"], row["method"]) for row in rows} == {(f"{getpass.getuser()} (sudo: ann)", "local")}
    assert token not in audit.read_text()


def test_without_an_audit_file_the_record_is_on_standard_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["token", "create", "--file", str(tmp_path / "t"), "--scope", "read"]
    monkeypatch.delenv("PLACEWISE_AUDIT__FILE", raising=False)
    assert invoke([*words, "a"]) == 0
    reported = capsys.readouterr()
    assert '"call":"token create"' in reported.err
    assert reported.out.startswith("pw_")
    monkeypatch.setenv("PLACEWISE_AUDIT__FILE", "off")
    assert invoke([*words, "b"]) == 0
    assert "token create" not in capsys.readouterr().err


def test_nothing_is_changed_that_cannot_be_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PLACEWISE_AUDIT__FILE", str(tmp_path / "no" / "audit"))
    assert invoke(["token", "create", "a", "--file", str(tmp_path / "t"), "--scope", "read"]) == 1
    assert "nothing was changed" in capsys.readouterr().err
    assert not (tmp_path / "t").exists()
