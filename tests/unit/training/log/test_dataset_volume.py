"""The memory of a dataset does not grow with the log."""

from pathlib import Path

import pytest
from tests.fakes.logs import dataset_volume


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_200_000_rows_are_read_in_the_memory_of_100_000(tmp_path: Path) -> None:
    found = {}
    for rows in (100_000, 200_000):
        directory = tmp_path / str(rows)
        dataset_volume.make(directory, rows)
        found[rows] = dataset_volume.read(directory)
        assert found[rows]["rows"] == rows
    assert found[200_000]["peak_mib"] <= 1.1 * found[100_000]["peak_mib"]
