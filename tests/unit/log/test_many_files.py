"""Memory does not grow with the number of files of a log: a scan keeps no file's metadata."""

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from placewise_service.declog.derived import JOINED_SCHEMA

FILES, MOST_MIB = 240, 4.0

SCAN = """
import sys
from placewise_log.store import LogStore

def peak_mib():
    with open("/proc/self/status") as status:
        return int(status.read().partition("VmHWM:")[2].split()[0]) / 1024

def scan(where):
    return sum(batch.num_rows for batch in LogStore(where).batches("joined", ("job_id",)))

scan(sys.argv[1])
few = peak_mib()
print(scan(sys.argv[2]), peak_mib() - few)
"""


def written(folder: Path, files: int) -> Path:
    path = folder / "joined" / "date=2025-11-21"
    path.mkdir(parents=True)
    for i in range(files):
        rows = [{"decision_id": f"d{i}-{n}", "job_id": f"j{n}"} for n in range(20)]  # copies are refused
        pq.write_table(pa.Table.from_pylist(rows, schema=JOINED_SCHEMA), path / f"{i:04d}.parquet")
    return folder


@pytest.mark.slow
@pytest.mark.process
def test_a_log_of_many_files_takes_no_more_memory_than_one_of_few(tmp_path: Path) -> None:
    few, many = written(tmp_path / "few", 4), written(tmp_path / "many", FILES)
    done = subprocess.run(
        [sys.executable, "-c", SCAN, str(few), str(many)], check=True, stdout=subprocess.PIPE, text=True
    )
    rows, grown_mib = done.stdout.split()
    assert int(rows) == 20 * FILES
    assert float(grown_mib) < MOST_MIB
