"""Every suite on YARN records which release it ran on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.e2e.yarn.yarn_artefacts import HADOOP


@pytest.fixture(scope="session", autouse=True)
def host_version(record_testsuite_property: Callable[[str, object], None]) -> None:
    for jar in HADOOP.glob("hadoop-yarn-api-*.jar"):
        record_testsuite_property("version", f"Hadoop {jar.stem.removeprefix('hadoop-yarn-api-')}")
