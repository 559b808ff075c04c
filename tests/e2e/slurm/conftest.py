"""Every suite on Slurm records which release it ran on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.e2e.slurm.slurm_release import Release


@pytest.fixture(scope="session", autouse=True)
def host_version(record_testsuite_property: Callable[[str, object], None]) -> None:
    record_testsuite_property("version", f"Slurm {Release.chosen().version or 'is not installed'}")
