"""Traces: malformed input is refused by file, line and column; the mapping to models is seeded and complete."""

from pathlib import Path

import numpy as np
import pytest

from placewise_training.sim.traces import TraceError, TraceMapping, parse_trace, read_trace
from placewise_training.sim.truths import make_truth

HEADER = (
    "trace,job_id,submit_time_s,duration_s,num_gpus,gpu_fraction,vc,status,queue_s,gpu_type_req,cpu_req,mem_req_gib"
)


def row(job_id: str = "a", submit: str = "0", duration: str = "10", gpus: str = "1", fraction: str = "") -> str:
    return f"t,{job_id},{submit},{duration},{gpus},{fraction},vc1,,,,,"


@pytest.mark.parametrize(
    ("text", "line", "column", "problem"),
    [
        ("", 1, "job_id", "is missing"),
        ("job_id,submit_time_s,num_gpus\na,1,2\n", 1, "duration_s", "is missing"),
        (f"{HEADER}\n{row(submit='soon')}\n", 2, "submit_time_s", "not a number: 'soon'"),
        (f"{HEADER}\n{row()}\n{row('b', duration='nan')}\n", 3, "duration_s", "finite"),
        (f"{HEADER}\n{row()}\n{row('b', duration='inf')}\n", 3, "duration_s", "finite"),
        (f"{HEADER}\n{row(duration='0')}\n", 2, "duration_s", "more than 0"),
        (f"{HEADER}\n{row(duration='-3')}\n", 2, "duration_s", "at least 0"),
        (f"{HEADER}\n{row(gpus='1.5')}\n", 2, "num_gpus", "whole number"),
        (f"{HEADER}\n{row(gpus='0')}\n", 2, "num_gpus", "at least 1"),
        (f"{HEADER}\n{row(gpus='')}\n", 2, "num_gpus", "not a number"),
        (f"{HEADER}\n{row(fraction='1.5')}\n", 2, "gpu_fraction", "at most 1"),
        (f"{HEADER}\n{row('')}\n", 2, "job_id", "is empty"),
        (f"{HEADER}\n{row()}\n{row()}\n", 3, "job_id", "already used in line 2"),
        (f"{HEADER}\nt,a,0\n", 2, "duration_s", "3 fields, the header 12"),
        (f'{HEADER}\n"t,a,0,1\n', 2, "(row)", ""),
    ],
)
def test_malformed_traces_name_file_line_and_column(text: str, line: int, column: str, problem: str) -> None:
    with pytest.raises(TraceError) as caught:
        parse_trace(text, "jobs.csv")
    assert (caught.value.file, caught.value.line, caught.value.column) == ("jobs.csv", line, column)
    assert problem in str(caught.value)
    assert str(caught.value).startswith(f"jobs.csv, line {line}, column {column}: ")


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_bytes(b"\xff\xfe\x00bad")
    with pytest.raises(TraceError, match="not UTF-8"):
        read_trace(path)


@pytest.mark.parametrize(("name", "jobs"), [("philly", 3000), ("ms_itp", 1595)])
def test_shipped_cuts_read(name: str, jobs: int) -> None:
    rows = read_trace(name)
    assert len(rows) == jobs
    times = [r.submit_time_s for r in rows]
    assert times == sorted(times)


def test_jobs_come_in_order_of_submission_whatever_the_file_says() -> None:
    rows = parse_trace(f"{HEADER}\n{row('late', submit='9')}\n{row('early', submit='1')}\n", "x")
    assert [r.job_id for r in rows] == ["early", "late"]


def test_the_mapping_is_seeded_and_keeps_durations() -> None:
    rows = read_trace("philly")[:300]
    truth = make_truth("judge", 0)
    mapping = TraceMapping(has_classes=True)
    first, again, other = (list(mapping.generate(rows, truth, seed)) for seed in (0, 0, 1))
    assert [(j.job.model, j.samples) for j in first] == [(j.job.model, j.samples) for j in again]
    assert [j.job.model for j in first] != [j.job.model for j in other]
    assert first[0].submit_time_s == 0
    for made, trace in zip(first, rows, strict=True):
        assert made.ideal_s == trace.duration_s
        assert made.job.task_count == trace.gpus
        alone = truth.alone_rate(made, "P100", 8)
        assert made.samples / alone == pytest.approx(trace.duration_s, rel=1e-9)


def test_elastic_mapping_leaves_the_count_to_admission() -> None:
    rows = read_trace("ms_itp")[:50]
    jobs = list(TraceMapping(is_elastic=True).generate(rows, make_truth("judge", 0), 0))
    assert all(job.job.elastic is not None and not job.job.is_rigid for job in jobs)
    assert all(job.job.single_gpu_s > 0 for job in jobs)
    large = [(job, trace) for job, trace in zip(jobs, rows, strict=True) if trace.gpus > 1]
    assert large
    assert all(job.job.single_gpu_s > trace.duration_s for job, trace in large)


def test_fractions_of_a_gpu_stay_fractions() -> None:
    rows = parse_trace(f"{HEADER}\n{row(fraction='0.25')}\n", "x")
    (job,) = TraceMapping().generate(rows, make_truth("train", 0), 0)
    assert job.job.groups[0].demand.gpus == 0.25


def test_models_follow_the_stated_mix() -> None:
    rng = np.random.default_rng(0)
    names = [TraceMapping().model(64, rng) for _ in range(2000)]
    assert set(names) == {"bert", "gpt2", "resnet50", "transformer"}
    assert names.count("bert") / 2000 == pytest.approx(3 / 8, abs=0.04)
