"""Traces: the jobs of a file, and how a malformed one is reported: file, line, character and column."""

from pathlib import Path

import pytest

from placewise_core.domain.traces import TraceError, TraceJob, at_rate, parse_trace, read_trace
from placewise_service.commands.exits import Exit, exit_code
from placewise_service.data import PHILLY_CUT

HEADER = "trace,job_id,submit_time_s,duration_s,num_gpus,vc\n"
FRACTIONS = "job_id,submit_time_s,duration_s,num_gpus,gpu_fraction\n"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_jobs_come_in_order_of_submission_with_their_queue(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER + "x,b,20,2.5e2,4,q1\nx,a,3.5,10,1,\n\n")
    jobs = [TraceJob("a", 3.5, 10.0, 1, queue="default"), TraceJob("b", 20.0, 250.0, 4, queue="q1")]
    assert read_trace(path, "default") == jobs


def test_jobs_at_another_rate_come_so_often_in_the_mean_with_gaps_in_proportion() -> None:
    jobs = parse_trace("job_id,submit_time_s,duration_s,num_gpus\na,100,7,1\nb,200,8,1\nc,500,9,2\n", "x")
    (first, second, third) = at_rate(jobs, 60.0)
    assert [job.submit_s for job in (first, second, third)] == pytest.approx([0.0, 30.0, 120.0])  # two gaps of 60 s
    assert [(job.id, job.duration_s) for job in (first, third)] == [("a", 7.0), ("c", 9.0)]
    assert at_rate(jobs[:1], 60.0) == jobs[:1]


def test_jobs_of_one_moment_stay_in_the_order_of_the_file() -> None:
    jobs = parse_trace(FRACTIONS + "b,5,1,1,\na,5,1,1,0.5\n", "x")
    assert [(job.id, job.gpu_fraction, job.queue) for job in jobs] == [("b", 0.0, ""), ("a", 0.5, "")]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", "t.csv:1:1: job_id: no column 'job_id'"),
        (HEADER, "t.csv:1:1: no jobs"),
        ("job_id,submit_time_s,num_gpus\n", "t.csv:1:1: duration_s: no column 'duration_s'"),
        (HEADER + "x,a,0,10,1,q\nx,b,soon,10,1,q\n", "t.csv:3:5: submit_time_s: 'soon' is not a number"),
        (HEADER + "x,a,0,nan,1,q\n", "t.csv:2:7: duration_s: nan is not a finite number"),
        (HEADER + "x,a,0,inf,1,q\n", "t.csv:2:7: duration_s"),
        (HEADER + "x,a,0,0,1,q\n", "t.csv:2:7: duration_s: must be more than 0"),
        (HEADER + "x,a,-1,5,1,q\n", "t.csv:2:5: submit_time_s: -1 is not"),
        (HEADER + "x,a,0,5,0,q\n", "t.csv:2:9: num_gpus: 0 is not"),
        (HEADER + "x,a,0,5,1.5,q\n", "t.csv:2:9: num_gpus: 1.5 is not a whole number"),
        (HEADER + "x,,0,5,1,q\n", "t.csv:2:3: job_id: is empty"),
        (HEADER + "x,a,0,5,1,q\nx,a,1,5,1,q\n", "t.csv:3:3: job_id: 'a' was already used in line 2"),
        (FRACTIONS + "a,0,5,1,1.5\n", "t.csv:2:9: gpu_fraction: must be at most 1, not 1.5"),
        (FRACTIONS + 'a,0,5,1,"1\n', "t.csv:2:1: "),
        (HEADER + "x,a,0,5,,q\n", "t.csv:2:9: num_gpus: '' is not a number"),
        (HEADER + "x,a,0,5\n", "t.csv:2:9: num_gpus: the row has 4 fields, the header 6"),
        (HEADER + "x,a,0,5,1,q,more\n", "t.csv:2:11: vc: the row has 7 fields, the header 6"),
    ],
)
def test_a_malformed_trace_is_named_with_file_line_and_column(tmp_path: Path, text: str, where: str) -> None:
    with pytest.raises(TraceError) as caught:
        read_trace(write(tmp_path, text))
    assert where in str(caught.value)
    assert f":{caught.value.line}:{caught.value.position}:" in str(caught.value)
    assert exit_code(caught.value) == Exit.BAD_INPUT


def test_a_file_of_bytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xff\xfe\x00binary")
    with pytest.raises(TraceError, match="not UTF-8"):
        read_trace(path)


def test_the_shipped_cut_is_a_trace() -> None:
    jobs = read_trace(PHILLY_CUT)
    assert len(jobs) == 4068
    assert {job.gpus for job in jobs} == {1, 2, 4, 8, 16}
