"""Addresses, credentials and channel options: what cannot work is refused before anything is dialled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from placewise_client import Target, TargetError, Tls


@pytest.mark.parametrize("address", ["", "nohost", "host:", ":1", "host:port", "a:1,,b:2"])
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


def test_half_a_client_certificate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="key"):
        Tls(chain=tmp_path / "chain.pem").credentials()


def test_channels_balance_and_keep_alive() -> None:
    options = dict(Target.of("127.0.0.1:1,127.0.0.1:2").options())
    assert json.loads(str(options["grpc.service_config"])) == {"loadBalancingConfig": [{"round_robin": {}}]}
    assert options["grpc.keepalive_time_ms"] == 30_000
