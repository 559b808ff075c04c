"""doctor, token and the options of serve: their findings, files and settings."""

import datetime
import json
import os
import shutil
import socket
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.fakes.callers.tls import EXPIRED, LATER, Authority

from placewise.v1.cluster_pb2 import ReportNodesRequest
from placewise_service import cli
from placewise_service.cli import invoke
from placewise_service.commands.local import doctor_checks
from placewise_service.commands.local import serve as serve_command
from placewise_service.files import why_unreadable
from placewise_service.main import Preparation
from placewise_service.settings import Settings
from placewise_service.state.redis.embedded import EmbeddedRedis

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings that touch neither the working directory nor the usual ports."""
    monkeypatch.setenv("PLACEWISE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("PLACEWISE_SERVER__GRPC_PORT", "0")
    monkeypatch.setenv("PLACEWISE_SERVER__REST_PORT", "0")


def findings(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    answer = json.loads(capsys.readouterr().out)
    return {finding["check"]: finding["verdict"] for finding in answer["findings"]}


def test_a_fresh_machine_is_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["doctor", "--json"]) == 0
    assert set(findings(capsys).values()) == {"ok"}


def test_a_running_redis_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with EmbeddedRedis(tmp_path / "state"):
        assert invoke(["doctor"]) == 0
    assert "reached, 6.2" in capsys.readouterr().out


def test_a_misspelt_setting_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACEWISE_SERVER__GRPC_PROT", "1")
    assert invoke(["doctor"]) == 5
    assert "PLACEWISE_SERVER__GRPC_PORT" in capsys.readouterr().out


def test_a_directory_of_bundles_may_be_empty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLACEWISE_BUNDLE_DIR", str(tmp_path))
    invoke(["doctor", "--json"])
    assert findings(capsys)["bundle"] == "ok"


@pytest.mark.parametrize(
    ("name", "value", "check"),
    [
        ("PLACEWISE_REDIS_URL", "redis://127.0.0.1:1/0", "Redis"),
        ("PLACEWISE_REDIS__COMMAND", "/no/such/redis-server", "Redis"),
        ("PLACEWISE_BUNDLE_DIR", "/no/such/bundles", "bundle"),
        ("PLACEWISE_AUTH__TOKENS_FILE", "/no/such/tokens.yaml", "tokens"),
        ("PLACEWISE_STATE_DIR", "/dev/null/state", "state directory"),
        ("PLACEWISE_PLACE__POLICY", "consolidat", "policies"),
        ("PLACEWISE_PLACE__FALLBACK_POLICY", "search", "policies"),
        ("PLACEWISE_ADMIT__POLICY", "proteos", "policies"),
    ],
)
def test_what_would_not_work_is_found(
    name: str, value: str, check: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert invoke(["doctor", "--json"]) == 5
    assert findings(capsys)[check] == "failed"


def test_a_taken_port_is_found(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("PLACEWISE_SERVER__GRPC_PORT", str(taken.getsockname()[1]))
        assert invoke(["doctor", "--json"]) == 5
    assert findings(capsys)["gRPC port"] == "failed"


@pytest.mark.parametrize(
    ("end", "code", "verdict", "printed"),
    [
        (LATER, 0, "ok", "more days"),
        (datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=3.5), 0, "warning", "expires in 3 days"),
        (EXPIRED, 5, "failed", "certificate has expired"),
    ],
)
def test_a_certificate_about_to_expire_is_found(
    end: datetime.datetime,
    code: int,
    verdict: str,
    printed: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cert, key = Authority("site").write(tmp_path, "placewise", end)
    key.chmod(0o600)
    monkeypatch.setenv("PLACEWISE_TLS__CERT_FILE", str(cert))
    monkeypatch.setenv("PLACEWISE_TLS__KEY_FILE", str(key))
    assert invoke(["doctor", "--json"]) == code
    found = {finding["check"]: finding for finding in json.loads(capsys.readouterr().out)["findings"]}["TLS"]
    assert found["verdict"] == verdict
    assert printed in found["detail"]


def finding(check: str, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """Verdict and words of one check."""
    invoke(["doctor", "--json"])
    (found,) = (f for f in json.loads(capsys.readouterr().out)["findings"] if f["check"] == check)
    return found["verdict"], found["detail"]


def test_a_mistyped_policy_is_named_with_the_nearest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLACEWISE_PLACE__POLICY", "consolidat")
    verdict, printed = finding("policies", capsys)
    assert verdict == "failed"
    assert "PLACEWISE_PLACE__POLICY" in printed
    assert "did you mean 'consolidate'?" in printed


@pytest.mark.parametrize(("policy", "before"), [("fifo", "fifo-strict"), ("proteus", "proteus-paper"), ("qos", "")])
def test_a_policy_whose_order_changed_is_named(
    policy: str, before: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert finding("policies", capsys)[0] == "ok", "nobody chose the default"
    monkeypatch.setenv("PLACEWISE_ADMIT__POLICY", policy)
    verdict, printed = finding("policies", capsys)
    assert (verdict, before in printed) == ("warning" if before else "ok", True)


@pytest.mark.parametrize(
    ("damage", "culprit", "printed"),
    [
        (lambda cert, key, other: key.write_bytes(other.read_bytes()), "key", "is not the key of the certificate"),
        (lambda cert, key, other: cert.write_text("nonsense"), "cert", "holds no certificate in PEM"),
        (lambda cert, key, other: key.write_text("nonsense"), "key", "holds no private key in PEM"),
        (lambda cert, key, other: key.unlink(), "key", "No such file"),
    ],
)
def test_the_file_that_spoils_tls_is_named(
    damage: Callable[[Path, Path, Path], object],
    culprit: str,
    printed: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cert, key = Authority("site").write(tmp_path, "placewise", LATER)
    (tmp_path / "other").mkdir()
    _, other = Authority("elsewhere").write(tmp_path / "other", "placewise", LATER)
    damage(cert, key, other)
    monkeypatch.setenv("PLACEWISE_TLS__CERT_FILE", str(cert))
    monkeypatch.setenv("PLACEWISE_TLS__KEY_FILE", str(key))
    verdict, detail = finding("TLS", capsys)
    assert verdict == "failed"
    assert detail.startswith(str({"cert": cert, "key": key}[culprit]))
    assert printed in detail
    assert "_ssl.c" not in detail


@pytest.mark.parametrize(
    ("damage", "printed"),
    [
        (lambda ca: ca.write_text("nonsense"), "holds no certificate in PEM"),
        (lambda ca: ca.unlink(), "No such file"),
    ],
)
def test_a_client_ca_that_cannot_be_used_is_named(
    damage: Callable[[Path], object],
    printed: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    authority = Authority("site")
    cert, key = authority.write(tmp_path, "placewise", LATER)
    key.chmod(0o600)
    ca, callers = tmp_path / "ca.pem", tmp_path / "certificates.yaml"
    ca.write_bytes(authority.pem)
    callers.write_text("certificates: [{name: slurm, subject: 'cn:slurm', scopes: [read]}]")
    callers.chmod(0o644)
    tls = {"TLS__CERT_FILE": cert, "TLS__KEY_FILE": key, "TLS__CLIENT_CA_FILE": ca}
    configure({**tls, "AUTH__CERTIFICATES_FILE": callers}, monkeypatch)
    assert findings_of(capsys, "TLS", "tokens") == {
        "TLS": ("ok", "certificate and key belong together"),
        "tokens": ("ok", "none; certificates and keys of other credentials can be used"),
    }
    callers.chmod(0o646)  # who may change it may name himself
    assert finding("tokens", capsys) == ("warning", f"other users can change {callers}: run chmod 644 {callers}")
    damage(ca)
    verdict, detail = finding("TLS", capsys)
    assert (verdict, detail.startswith(f"{ca}: "), printed in detail) == ("failed", True, True)


NONSENSE = {
    "CERTIFICATES_FILE": ("certificates: [{subject: 'cn:slurm'}]", "certificates.0.name: Field required"),
    "JWKS_FILE": ('{"keys": []}', "holds no RSA, P-256 or Ed25519 key"),
    "TOKENS_FILE": ("", "is empty: write `tokens: []`"),
}


@pytest.mark.parametrize("kind", NONSENSE)
@pytest.mark.parametrize("fault", ["missing", "nonsense", "forbidden"])
def test_a_file_of_credentials_that_cannot_be_used_is_named(
    kind: str, fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    content, wrong = NONSENSE[kind]
    path = tmp_path / "credentials"
    if fault != "missing":
        path.write_text(content)
        path.chmod(0o640)
    if fault == "forbidden":
        forbid(path, monkeypatch)
    settings: dict[str, Path | str] = {f"AUTH__{kind}": path}
    if kind == "JWKS_FILE":
        settings |= {"AUTH__JWT_ISSUER": "i", "AUTH__JWT_AUDIENCE": "a"}
    if kind == "CERTIFICATES_FILE":  # is of no use without TLS and a CA
        cert, key = Authority("site").write(tmp_path, "placewise", LATER)
        settings |= {"TLS__CERT_FILE": cert, "TLS__KEY_FILE": key, "TLS__CLIENT_CA_FILE": cert}
    configure(settings, monkeypatch)
    verdict, detail = finding("tokens", capsys)
    assert (verdict, detail.startswith(f"{path}: ")) == ("failed", True), detail
    if fault == "forbidden":
        assert f"this process runs as uid {os.geteuid()}, the file belongs to uid {path.stat().st_uid}" in detail
        assert "with mode 0640" in detail
    else:
        assert {"missing": "No such file", "nonsense": wrong}[fault] in detail


def configure(settings: Mapping[str, Path | str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(f"PLACEWISE_{name}", str(value))


def forbid(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a user who may not read the file: nothing is forbidden to root, who may run this."""
    usual = Path.open

    def refused(self: Path, *words: Any, **named: Any) -> Any:
        if self == path:
            raise PermissionError(13, "Permission denied")
        return usual(self, *words, **named)

    monkeypatch.setattr(Path, "open", refused)


def findings_of(capsys: pytest.CaptureFixture[str], *checks: str) -> dict[str, tuple[str, str]]:
    """Verdict of some checks, and the words up to a comma."""
    invoke(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out)["findings"]
    return {f["check"]: (f["verdict"], f["detail"].partition(",")[0]) for f in found if f["check"] in checks}


def test_a_file_that_the_service_may_not_read_says_whose_it_is(tmp_path: Path) -> None:
    path = tmp_path / "tokens.yaml"
    path.write_text("tokens: []")
    path.chmod(0o600)
    printed = why_unreadable(path, PermissionError(13, "Permission denied"))
    assert printed.startswith(f"{path}: Permission denied; this process runs as uid ")
    assert f"belongs to uid {path.stat().st_uid} with mode 0600" in printed
    assert why_unreadable(path, FileNotFoundError(2, "No such file")) == f"{path}: No such file"


def test_an_endpoint_for_traces_that_does_not_answer_is_a_warning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        for endpoint in (f"http://{address}", address):
            monkeypatch.setenv("PLACEWISE_OTEL__ENDPOINT", endpoint)
            assert finding("traces", capsys) == ("ok", f"{address} can be reached")
    verdict, printed = finding("traces", capsys)
    assert verdict == "warning"
    assert f"PLACEWISE_OTEL__ENDPOINT: nobody answers at {address}" in printed


@pytest.mark.parametrize(("free_mib", "verdict"), [(4096, "ok"), (512, "warning"), (16, "failed")])
def test_little_room_on_the_disk_is_found(
    free_mib: int, verdict: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")._replace(free=free_mib << 20)
    monkeypatch.setattr(doctor_checks.shutil, "disk_usage", lambda path: usage)
    printed = finding("state directory", capsys)
    assert (printed[0], f"{free_mib} MiB are free" in printed[1]) == (verdict, True)


def test_a_service_that_does_not_answer_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["doctor", "--target", "127.0.0.1:1", "--json"]) == 5
    assert findings(capsys)["service"] == "failed"


def test_a_token_is_shown_once_and_stored_hashed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tokens.yaml"
    words = ["token", "create", "slurm", "--file", str(file), "--scope", "decide", "--scope", "report", "-c", "lab"]
    assert invoke([*words, "--json"]) == 0
    token = json.loads(capsys.readouterr().out)["token"]
    (entry,) = yaml.safe_load(file.read_text())["tokens"]
    assert (entry["name"], entry["scopes"], entry["clusters"]) == ("slurm", ["decide", "report"], ["lab"])
    assert token not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert invoke(words) == 4  # the name is taken
    assert invoke(["token", "create", "x", "--file", str(file), "--scope", "everything"]) == 2


def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Settings, Sequence[Preparation]]]:
    """Takes the place of the service; returns the arguments of its start."""
    seen: list[tuple[Settings, Sequence[Preparation]]] = []

    def fake_serve(settings: Settings, preparations: Sequence[Preparation]) -> int:
        seen.append((settings, preparations))
        return 0

    monkeypatch.setattr(serve_command.main, "serve", fake_serve)
    return seen


def test_a_demo_brings_its_cluster_and_asks_for_no_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = served(monkeypatch)
    assert invoke(["serve", "--demo"]) == 0
    ((_, (preparation,)),) = seen
    request = ReportNodesRequest.FromString(preparation.request)
    assert (preparation.rpc, request.cluster, len(request.nodes)) == ("ReportNodes", "demo", 18)
    assert invoke(["serve", "--demo", "--tokens-file", str(tmp_path / "tokens.yaml")]) == 2
    assert len(seen) == 1


def test_options_of_serve_become_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = served(monkeypatch)
    words = [
        "serve",
        "--host",
        "0.0.0.0",
        "--insecure",
        "--grpc-port",
        "1234",
        "--workers",
        "3",
        "--log-format",
        "text",
    ]
    assert invoke(words) == 0
    ((settings, preparations),) = seen
    assert preparations == ()
    assert (settings.server.grpc_host, settings.server.rest_host) == ("0.0.0.0", "0.0.0.0")
    assert (settings.server.grpc_port, settings.server.workers, settings.log.format) == (1234, 3, "text")
    assert settings.state_dir == tmp_path / "state"


def test_serve_refuses_an_open_address(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["serve", "--host", "0.0.0.0"]) == 2
    assert "--insecure" in capsys.readouterr().err


def test_plugins_add_commands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Point:
        """An entry point of another package."""

        def __init__(self, name: str, loaded: Any) -> None:
            self.name = name
            self._loaded = loaded

        def load(self) -> Any:
            if isinstance(self._loaded, ImportError):
                raise self._loaded
            return self._loaded

    def simulate(nodes: int = 3) -> None:
        """Simulate something."""
        print(f"{nodes} nodes")

    points = [Point("simulate", simulate), Point("train", ImportError("no torch", name="torch"))]
    monkeypatch.setattr(
        cli, "entry_points", lambda group, name=None: [p for p in points if name in (None, p.name)] if group else []
    )
    assert invoke(["simulate", "--nodes", "5"]) == 0
    assert capsys.readouterr().out == "5 nodes\n"
    for words in (["train"], ["train", "reward", "--log", "/logs"], ["train", "--help"]):
        assert invoke(words) == (0 if "--help" in words else 1)
        reported = capsys.readouterr()
        assert "torch" in reported.out + reported.err
    assert invoke(["--help"]) == 0
    assert "Simulate something" in capsys.readouterr().out


def test_the_log_of_a_directory_that_no_service_used_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["log", "tail", "-c", "lab"]) == 3
    assert "no service has ever run" in capsys.readouterr().err
