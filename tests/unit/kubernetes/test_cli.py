"""The adapter's command line: errors that keep it from starting, and their messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from placewise_kubernetes.cli import CANNOT_START, main


def test_check_needs_no_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("cluster: prod\n")
    assert main(["--config", str(path), "--check"]) == 0
    assert "'prod' is good" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("cluster: [", "config.yaml"),
        ("clusters: prod", "cluster: give the name"),
        ("cluster: prod\nlisten: {host: 0.0.0.0}", "certificate_path"),
        ("cluster: prod\nlisten: {client_ca_path: ca.crt}", "client_ca_path needs certificate_path"),
        ("cluster: prod\nlisten: {volcano_body_bytes: 0}", "volcano_body_bytes"),
        ("cluster: prod\nlisten: {is_bind_served: 1}", "is_bind_served"),
        ("cluster: prod\nlease: placewise/../secrets", "NAMESPACE/NAME"),
        ("cluster: prod\nservice: {targets: []}", "address"),
        ("cluster: prod\nservice: {targets: [placewise]}", "placewise"),
        ("cluster: prod\nservice: {targets: ['http://pw:8080'], token_path: token}", "allow_plaintext_token"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(
    text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    assert main(["--config", str(path), "--check"]) == CANNOT_START
    assert says in capsys.readouterr().err


def test_a_token_goes_without_tls_where_it_is_said(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    service = "{targets: ['http://pw:8080'], token_path: token, allow_plaintext_token: true}"
    path.write_text(f"cluster: prod\nservice: {service}\n")
    assert main(["--config", str(path), "--check"]) == 0


def test_outside_a_cluster_a_kubeconfig_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    path = tmp_path / "config.yaml"
    path.write_text("cluster: prod\n")
    assert main(["--config", str(path)]) == CANNOT_START
    assert "--kubeconfig" in capsys.readouterr().err
