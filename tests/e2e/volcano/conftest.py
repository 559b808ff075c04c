"""The suite on Volcano records which release it ran on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.e2e.volcano.volcano_assets import AssetsUnavailableError, find, version


@pytest.fixture(scope="session", autouse=True)
def host_version(record_testsuite_property: Callable[[str, object], None]) -> None:
    try:
        folder = find()
    except AssetsUnavailableError:
        return
    record_testsuite_property("version", f"Volcano {version(folder)}")
