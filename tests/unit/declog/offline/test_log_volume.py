"""The memory of a join does not grow with the log."""

from pathlib import Path

import pytest
from tests.fakes import log_volume

MOST_MIB = 1024


@pytest.mark.process
@pytest.mark.timeout(900)
def test_200_000_decisions_are_joined_in_the_memory_of_100_000(tmp_path: Path) -> None:
    found = {}
    for decisions in (100_000, 200_000):
        directory = tmp_path / str(decisions)
        log_volume.make(directory, decisions)
        found[decisions] = log_volume.join(directory)
        assert found[decisions]["counts"] == {"OBSERVED": decisions}
    assert found[200_000]["peak_mib"] <= MOST_MIB
    assert found[200_000]["peak_mib"] <= 1.1 * found[100_000]["peak_mib"]
