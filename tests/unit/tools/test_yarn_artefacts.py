"""A machine on which YARN cannot be tested says so, and runs no test."""

import os
import subprocess
from pathlib import Path

import pytest
from tests.e2e.yarn import yarn_artefacts

ROOT = Path(__file__).parents[3]


def test_a_machine_without_a_jdk_or_maven_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None if name in ("javac", "mvn") else f"/usr/bin/{name}")
    assert yarn_artefacts.main() == yarn_artefacts.CANNOT
    assert capsys.readouterr().out == "YARN cannot be tested here: not installed: javac, mvn\n"


@pytest.mark.process
@pytest.mark.parametrize(("is_required", "code"), [(False, 0), (True, 2)])
def test_make_says_skipped_with_the_reason(tmp_path: Path, *, is_required: bool, code: int) -> None:
    """No test runs then. Where schedulers are required, it is an error."""
    for name, script in {
        "python": f'case "$*" in *yarn_artefacts) echo "no JDK"; exit {yarn_artefacts.CANNOT};; esac',
        "pytest": "echo a test ran",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("MAKE", "PLACEWISE_TEST"))}
    if is_required:
        environment["PLACEWISE_TEST_REQUIRE_SCHEDULERS"] = "1"
    make = ["make", "-s", "-o", "install", "e2e-yarn", f"BIN={tmp_path}"]
    done = subprocess.run(make, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    assert ("SKIPPED: no JDK" in done.stdout) is not is_required
    assert "a test ran" not in done.stdout
