"""Addresses, credentials and channel options: impossible ones are refused before a connection."""

from __future__ import annotations

import json
import ssl
import sys
from pathlib import Path

import pytest

from placewise_client import AsyncClient, Client, Target, TargetError, Tls


@pytest.mark.parametrize(
    "address", ["", "nohost", "host:", ":1", "host:port", "host:²", "host:65536", "a:1,,b:2", "ftp://a:1", "HTTP://a:1"]
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(TargetError):
        Target.of(address).check()


def test_one_name_is_left_to_grpc_and_several_are_resolved() -> None:
    assert Target.of("placewise.example:50051").uri() == "dns:///placewise.example:50051"
    assert Target.of("unix:/run/pw.sock").uri() == "unix:/run/pw.sock"
    assert Target.of(["127.0.0.1:1", "127.0.0.1:2"]).uri() == "ipv4:127.0.0.1:1,127.0.0.1:2"
    assert Target.of("[::1]:1,[::1]:2").uri() == "ipv6:[::1]:1,[::1]:2"


def test_a_token_does_not_leave_the_machine_in_plain_text() -> None:
    with pytest.raises(TargetError, match="plain text"):
        Target(("127.0.0.1:1", "10.0.0.7:1"), token="secret").check()
    Target(("127.0.0.1:1", "localhost:2", "unix:/x"), token="secret").check()
    Target(("10.0.0.7:1",), token="secret", allow_plaintext_token=True).check()
    Target(("10.0.0.7:1",), token="secret", tls=Tls()).check()


def test_a_token_is_asked_for_at_every_call() -> None:
    tokens = iter(["first", "second"])
    target = Target(("127.0.0.1:1",), token=lambda: next(tokens))
    assert target.metadata() == (("authorization", "Bearer first"),)
    assert target.metadata() == (("authorization", "Bearer second"),)


def test_a_token_is_sent_without_the_line_break_of_its_file() -> None:
    for token in ("secret\n", lambda: "secret\r\n"):
        assert Target(("127.0.0.1:1",), token=token).metadata() == (("authorization", "Bearer secret"),)


def test_half_a_client_certificate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="key"):
        Tls(chain=tmp_path / "chain.pem").credentials()


def test_channels_balance_and_keep_alive() -> None:
    options = dict(Target.of("127.0.0.1:1,127.0.0.1:2").options())
    assert json.loads(str(options["grpc.service_config"])) == {"loadBalancingConfig": [{"round_robin": {}}]}
    assert options["grpc.keepalive_time_ms"] == 30_000


@pytest.mark.parametrize(
    ("addresses", "words"),
    [
        ("http://", "host:port"),
        ("http://host", "host:port"),
        ("https://host/", "host:port"),
        ("http://host:8080/path", "host:port"),
        ("http://http://host:8080", "host:port"),
        ("http://host:8080,", "no address"),
        ("http://unix:/run/pw.sock", "give unix:/run/pw.sock "),
        ("https://unix:/run/pw.sock", "give unix:/run/pw.sock "),
        ("http://a:1,https://b:1", "several kinds"),
        ("http://a:1,b:1", "several kinds"),
        ("a:1,https://b:1", "several kinds"),
    ],
)
def test_an_http_address_that_is_none_is_refused(addresses: str, words: str) -> None:
    with pytest.raises(TargetError, match=words):
        Target.of(addresses).check()


def test_what_an_http_address_means() -> None:
    plain = Target.of("http://a:8080/,http://[::1]:8080")
    plain.check()
    assert plain.is_http
    assert plain.hosts() == ["a:8080", "[::1]:8080"]
    assert plain.tls_context() is None
    encrypted = Target.of("https://a:8443")
    encrypted.check()
    assert encrypted.is_http
    context = encrypted.tls_context()
    assert context is not None
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    by_grpc = Target.of("a:50051,unix:/run/pw.sock")
    by_grpc.check()
    assert not by_grpc.is_http
    assert by_grpc.hosts() == ["a:50051", "unix:/run/pw.sock"]


def test_certificates_want_https(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="needs https://"):
        Target(("http://a:8080",), tls=Tls()).check()
    Target(("https://a:8080",), tls=Tls()).check()
    with pytest.raises(TargetError, match="key"):
        Target(("https://a:8080",), tls=Tls(chain=tmp_path / "chain.pem")).tls_context()


def test_a_token_goes_to_another_machine_by_https_only() -> None:
    with pytest.raises(TargetError, match=r"10\.0\.0\.7:1 in plain text"):
        Target(("http://127.0.0.1:1", "http://10.0.0.7:1/"), token="secret").check()
    Target(("http://127.0.0.1:1", "http://localhost:2", "http://[::1]:3/"), token="secret").check()
    Target(("http://10.0.0.7:1",), token="secret", allow_plaintext_token=True).check()
    Target(("https://10.0.0.7:1",), token="secret").check()


def test_the_blocking_client_says_who_speaks_http() -> None:
    for address in ("http://127.0.0.1:1", "https://127.0.0.1:1"):
        with pytest.raises(TargetError, match="only AsyncClient speaks HTTP: give host:port"):
            Client(address)


async def test_a_client_is_not_built_for_what_is_refused() -> None:
    for address in ("http://", "http://a:1,b:1"):
        with pytest.raises(TargetError):
            AsyncClient(address)


@pytest.mark.parametrize("text", [None, "no certificate"])
def test_certificates_that_cannot_be_read_are_named(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    if text is not None:
        path.write_text(text)
    with pytest.raises(TargetError, match=r"ca\.pem"):
        Tls(root=path).context()
    if text is None:
        with pytest.raises(TargetError, match=r"ca\.pem"):
            Tls(root=path).credentials()


async def test_http_says_which_extra_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "placewise_client.connect", raising=False)
    monkeypatch.delitem(sys.modules, "placewise_client.http1", raising=False)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(TargetError, match=r"pip install 'placewise-client\[http\]'"):
        AsyncClient("http://127.0.0.1:8080")
