"""Traces as workloads: the shipped cuts read; the mapping to models is seeded and complete."""

import numpy as np
import pytest

from placewise_core.domain.traces import parse_trace
from placewise_training.sim.traces import TraceMapping, read_jobs
from placewise_training.sim.truths import make_truth

HEADER = (
    "trace,job_id,submit_time_s,duration_s,num_gpus,gpu_fraction,vc,status,queue_s,gpu_type_req,cpu_req,mem_req_gib"
)


def row(job_id: str = "a", submit: str = "0", duration: str = "10", gpus: str = "1", fraction: str = "") -> str:
    return f"t,{job_id},{submit},{duration},{gpus},{fraction},vc1,,,,,"


@pytest.mark.parametrize(("name", "jobs"), [("philly", 3000), ("ms_itp", 1595)])
def test_shipped_cuts_read(name: str, jobs: int) -> None:
    rows = read_jobs(name)
    assert len(rows) == jobs
    times = [r.submit_s for r in rows]
    assert times == sorted(times)


def test_the_mapping_is_seeded_and_keeps_durations() -> None:
    rows = read_jobs("philly")[:300]
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
    rows = read_jobs("ms_itp")[:50]
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
