"""The digest of a view: over all that policies read of it, and the same for a view that is rebuilt."""

from collections.abc import Callable

import pytest
from tests.fakes.cluster import make_job, make_node
from tests.fakes.declog import task_on

from placewise_core.domain.cluster import RunningJob, RunState
from placewise_core.domain.events import (
    Change,
    ClusterRecords,
    Event,
    JobsChanged,
    OverheadLearned,
    SubtaskForgotten,
    SubtaskProfiled,
)
from placewise_core.domain.job import CoRun, GpuSharing
from placewise_core.speed.co_runs import row_kind, rows_of
from placewise_core.view.view import ClusterView
from placewise_log.views import Snapshot

CO_RUNS = (CoRun("VGG16", 0.7, 0.8),)
ROWS = rows_of([("BERT", CO_RUNS)])


def view() -> ClusterView:
    return ClusterView(ClusterRecords("c", 1, "e", nodes=(make_node("n0"),)))


def sharing(name: str) -> RunningJob:
    job = make_job(name, gpu_sharing=GpuSharing(True, 3.0, CO_RUNS))
    return RunningJob(job, (task_on("n0", 0),), RunState.RUNNING)


CHANGES: dict[str, Callable[[], Change]] = {
    "overhead": lambda: OverheadLearned("sort", 2, 0.5),
    "another overhead": lambda: OverheadLearned("sort", 3, 0.75),
    "profile": lambda: SubtaskProfiled("decode", {"cpu_s": 2.0, "gpu_util": 0.5}),
    "another profile": lambda: SubtaskProfiled("decode", {"cpu_s": 3.0}),
    "co-run": lambda: SubtaskProfiled(row_kind("BERT"), ROWS[row_kind("BERT")]),
    "a job's co-run": lambda: JobsChanged((sharing("a"),)),
}


def apply(seen: ClusterView, change: Change) -> None:
    seen.apply(Event(seen.version + 1, "e", change))


@pytest.mark.parametrize("name", CHANGES)
def test_a_measurement_changes_the_digest(name: str) -> None:
    seen, other = view(), view()
    apply(seen, CHANGES[name]())
    other.version = seen.version
    for job in seen.jobs.values():  # the same but for its co-runs
        other.add_job(RunningJob(make_job(job.id, gpu_sharing=GpuSharing(True, 3.0)), job.assignments, job.state))
    assert seen.digest() != other.digest()


def test_a_view_of_a_snapshot_has_the_digest_of_the_view() -> None:
    seen = view()
    for change in CHANGES.values():
        apply(seen, change())
        shown = Snapshot.of("v", seen, 0.0, ()).shown()
        assert (shown.digest(), shown.estimates.digest, shown.co_runs.digest) == (
            seen.digest(),
            seen.estimates.digest,
            seen.co_runs.digest,
        )


def test_what_is_forgotten_leaves_the_digest() -> None:
    seen = view()
    for kind in ("profile", "another profile", "co-run", "a job's co-run"):
        apply(seen, CHANGES[kind]())
    for kind in ("decode", row_kind("BERT")):
        apply(seen, SubtaskForgotten(kind))
    seen.remove_job(sharing("a").id)
    assert (seen.estimates.digest, seen.co_runs.digest) == (0, 0)
