"""Every suite on Kubernetes records which release it ran on."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
from tests.e2e.kubernetes.kubernetes_binaries import BinariesUnavailableError, find


@pytest.fixture(scope="session", autouse=True)
def host_version(record_testsuite_property: Callable[[str, object], None]) -> None:
    try:
        command = [find() / "kube-apiserver", "--version"]
    except BinariesUnavailableError:
        return
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    record_testsuite_property("version", printed.strip())
