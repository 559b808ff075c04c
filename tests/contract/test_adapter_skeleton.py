"""The adapter skeleton on the reference host: shows that the conformance suite can be kept."""

from __future__ import annotations

import pytest
from tests.contract.adapter_conformance import AdapterConformance
from tests.fakes.memory_host import MemoryHost


class TestMemoryHost(AdapterConformance):
    @pytest.fixture
    async def host(self) -> MemoryHost:
        return MemoryHost()
