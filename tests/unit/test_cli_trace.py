"""Traces: what is read, and how a malformed one is named."""

from pathlib import Path

import pytest

from placewise_service.commands.exits import BadInputError
from placewise_service.data import PHILLY_CUT
from placewise_service.replay.trace import TraceJob, read_trace

HEADER = "trace,job_id,submit_time_s,duration_s,num_gpus,vc\n"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_jobs_come_in_order_of_submission_with_their_queue(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER + "x,b,20,2.5e2,4,q1\nx,a,3.5,10,1,\n\n")
    assert read_trace(path) == [TraceJob("a", 3.5, 10.0, 1, "default"), TraceJob("b", 20.0, 250.0, 4, "q1")]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", "t.csv:1:1: no column 'job_id'"),
        (HEADER, "t.csv:1:1: no jobs"),
        ("job_id,submit_time_s,num_gpus\n", "t.csv:1:1: no column 'duration_s'"),
        (HEADER + "x,a,0,10,1,q\nx,b,soon,10,1,q\n", "t.csv:3:5: submit_time_s: 'soon' is not a number"),
        (HEADER + "x,a,0,nan,1,q\n", "t.csv:2:7: duration_s: nan is not a finite number"),
        (HEADER + "x,a,0,inf,1,q\n", "t.csv:2:7: duration_s"),
        (HEADER + "x,a,0,0,1,q\n", "t.csv:2:7: duration_s: a job of no length"),
        (HEADER + "x,a,-1,5,1,q\n", "t.csv:2:5: submit_time_s: -1 is not"),
        (HEADER + "x,a,0,5,0,q\n", "t.csv:2:9: num_gpus: 0 is not"),
        (HEADER + "x,a,0,5,1.5,q\n", "t.csv:2:9: num_gpus: 1.5 is not a whole number"),
        (HEADER + "x,,0,5,1,q\n", "t.csv:2:3: job_id: empty"),
        (HEADER + "x,a,0,5,1,q\nx,a,1,5,1,q\n", "t.csv:3:3: job_id: 'a' stands in the trace twice"),
        (HEADER + "x,a,0,5\n", "t.csv:2:9: 4 fields where the header has 6"),
        (HEADER + "x,a,0,5,1,q,more\n", "t.csv:2:13: 7 fields where the header has 6"),
    ],
)
def test_a_malformed_trace_is_named_with_file_line_and_column(tmp_path: Path, text: str, where: str) -> None:
    with pytest.raises(BadInputError) as caught:
        read_trace(write(tmp_path, text))
    assert where in str(caught.value)
    assert caught.value.code == 6


def test_a_file_of_bytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xff\xfe\x00binary")
    with pytest.raises(BadInputError):
        read_trace(path)


def test_the_shipped_cut_is_a_trace() -> None:
    jobs = read_trace(PHILLY_CUT)
    assert len(jobs) == 4068
    assert {job.gpus for job in jobs} == {1, 2, 4, 8, 16}
