"""`iawp-paper` reads the paper's inputs alone: the matrix of Table 2 with the speedup, and the subtasks of a job."""

from dataclasses import fields, replace
from typing import Any

import pytest
from tests.fakes.place_cases import view_of

from placewise_core.domain.cluster import Gpu, Node
from placewise_core.domain.decision import JobDecision
from placewise_core.domain.job import ElasticRange, Job, JobId, KeepTogether, NodeId, Priority, Resources, Subtask
from placewise_core.subtasks.iawp import subtask_schedulers
from placewise_core.subtasks.metrics import METRICS

# Of a job: its subtasks, when it came, and what holds its GPUs.
READ = {"id", "architecture", "groups", "subtasks", "submit_time_s", "gpu_sharing", "shape"}
OTHERWISE: dict[str, Any] = {
    "model": "VGG16",
    "total_epochs": 3.0,
    "batch_size": 8,
    "dataset_size": 5,
    "iterations": 7.0,
    "priority": Priority.URGENT,
    "queue": "other",
    "single_gpu_s": 5.0,
    "params_millions": 4.0,
    "elastic": ElasticRange(1, 2),
    "attained_gpu_s": 5e4,
    "user": "somebody",
    "keep_together": KeepTogether.NODE,
    "exclusive_network": True,
}


def test_the_columns_are_those_of_the_paper_and_no_others() -> None:
    of_the_paper = {"cpu", "host_memory", "sm", "l1", "l2", "texture", "dram", "load_throughput", "store_throughput"}
    assert set(METRICS) == of_the_paper | {"speedup"}


@pytest.mark.parametrize("name", sorted({field.name for field in fields(Job)} - READ))
def test_nothing_is_read_of_a_job_but_its_subtasks(name: str) -> None:
    """A field of Job that is new has to be put on one of the two lists."""
    assert name in OTHERWISE, f"does iawp-paper read {name}?"
    host = Node(NodeId("n"), Resources(2, 1, 64, 16, 10), (Gpu(0, "P4", 16, 0.0, 0.0),), max_jobs_per_gpu=4)
    subtasks = tuple(Subtask(f"s{i}", "k", has_gpu_version=True, profile={"speedup": float(i + 1)}) for i in range(4))
    job = Job(JobId("j"), subtasks=subtasks)
    other = replace(job, **{name: OTHERWISE[name]})
    scheduler = subtask_schedulers()["iawp-paper"]
    plain, changed = (scheduler.assign([each], "n", view_of([host]), 0.0, seed=0) for each in (job, other))
    assert plain == changed
    assert plain[0].assignments


def test_metrics_that_the_paper_does_not_have_change_nothing() -> None:
    def assigned(**more: float) -> list[JobDecision]:
        host = Node(NodeId("n"), Resources(2, 1, 64, 16, 10), (Gpu(0, "P4", 16, 0.0, 0.0),), max_jobs_per_gpu=4)
        profiles = [{"speedup": i + 1.0, **{name: i * value for name, value in more.items()}} for i in range(4)]
        subtasks = tuple(
            Subtask(f"s{i}", "k", has_gpu_version=True, profile=profile) for i, profile in enumerate(profiles)
        )
        return subtask_schedulers()["iawp-paper"].assign(
            [Job(JobId("j"), subtasks=subtasks)], "n", view_of([host]), 0.0, seed=0
        )

    plain = assigned()
    assert plain[0].assignments
    assert assigned(core_s=9.0, gpu_watts=0.5) == plain
    assert assigned(speedup=-1.0) != plain
