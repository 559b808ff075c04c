"""The digest of a view: over all that policies read of it, and the same for a view that is rebuilt."""

import random
import weakref
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.fakes.cluster import make_job, make_node
from tests.fakes.declog import task_on
from tests.fakes.quick.examples import examples

from placewise_core.domain.cluster import (
    ClusterSettings,
    HeadReservation,
    Node,
    NodeState,
    NodeTelemetry,
    QueueState,
    RunningJob,
    RunState,
)
from placewise_core.domain.events import (
    Change,
    ClockMoved,
    ClusterRecords,
    Event,
    JobsChanged,
    JobsEnded,
    NodesReported,
    OverheadLearned,
    QueueAdvanced,
    SettingsChanged,
    SubtaskForgotten,
    SubtaskProfiled,
)
from placewise_core.domain.job import CoRun, GpuSharing, JobId
from placewise_core.speed.co_runs import row_kind, rows_of
from placewise_core.speed.learned.disturbance import Group
from placewise_core.speed.learned.durations import kinds_of
from placewise_core.speed.learned.throughputs import Row
from placewise_core.view import digest
from placewise_core.view.renewal import Renewal
from placewise_core.view.view import ClusterView
from placewise_log.views import Snapshot

CO_RUNS = (CoRun("VGG16", 0.7, 0.8),)
ROWS = rows_of([("BERT", CO_RUNS)])
SUMS = {"time_s": 1.0, "count": 2.0, "sum": 3.0, "squares": 5.0}


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
    "a length": lambda: SubtaskProfiled(kinds_of(make_job("a"))[0], SUMS),
    "a speed": lambda: SubtaskProfiled(Row("BERT", "V100", 1, 1, 64).kind, SUMS),
    "a disturbance": lambda: SubtaskProfiled(Group("BERT", "V100", 64, 2, 2, 2).kind(is_beside=True), SUMS),
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


NODES = {f"n{i}": make_node(f"n{i}") for i in range(300)}


def large(*changed: Node) -> ClusterView:
    nodes = NODES | {node.id: node for node in changed}
    return ClusterView(ClusterRecords("c", 0, "e", tuple(nodes.values())))


OTHERS = {
    "telemetry": make_node("n17", telemetry=NodeTelemetry(cpu_util=0.5)),
    "capacity": make_node("n17", cpu_cores=31.0),
    "state": make_node("n17", state=NodeState.DRAINING),
    "labels": make_node("n17", labels={"zone": "a"}),
    "rack": make_node("n17", rack="r1"),
    "GPU model": make_node("n17", gpu_model="A100"),
    "jobs on a GPU": make_node("n17", max_jobs_per_gpu=1),
}


@pytest.mark.parametrize("name", OTHERS)
def test_the_digest_of_a_large_view_is_over_every_node(name: str) -> None:
    one, other, reported = large(), large(OTHERS[name]), large()
    reported.digest()
    reported.apply(Event(1, "e", NodesReported((OTHERS[name],))))
    for version in range(1, 6):  # whatever the version
        one.version = other.version = reported.version = version
        assert one.digest() != other.digest() == reported.digest()


def test_what_is_taken_of_any_node_is_in_the_digest() -> None:
    digests = []
    empty = large()
    for i in range(300):
        seen = empty.fork()
        seen.usage.claim(make_job("a"), task_on(f"n{i}", 0))
        digests.append(seen.digest())
    assert len({empty.digest(), *digests}) == 301


def test_the_order_of_all_jobs_is_in_the_digest() -> None:
    names = [f"j{i}" for i in range(12)]
    found = set()
    for at in range(12):
        seen = view()
        for name in [*names[:at], *reversed(names[at : at + 2]), *names[at + 2 :]]:  # two are swapped, in the end none
            seen.add_job(RunningJob(make_job(name), ()))
        found.add(seen.digest())
    assert len(found) == 12


@pytest.mark.parametrize("field", ["speed", "epochs_done", "start_time_s"])
def test_how_far_a_job_is_is_in_the_digest(field: str) -> None:
    seen = view()
    for name in ("a", "b", "c"):
        seen.add_job(RunningJob(make_job(name), (task_on("n0", 0),), RunState.RUNNING))
    before = seen.digest()
    first = seen.jobs[JobId("a")]
    changed = replace(first, **{field: 2.0})  # type: ignore[arg-type]
    for job in (changed, *[seen.jobs[JobId(name)] for name in ("b", "c")]):
        seen.add_job(job)  # which leaves their order
    assert seen.digest() != before
    for job in (first, *[seen.jobs[JobId(name)] for name in ("b", "c")]):
        seen.add_job(job)
    assert seen.digest() == before


def test_progress_that_a_simulation_writes_is_in_the_digest() -> None:
    seen = view()
    for job_id in "ab":
        seen.add_job(RunningJob(make_job(job_id), (task_on("n0"),)))
    seen.digest()
    seen.update_jobs([replace(seen.jobs[JobId("a")], speed=2.0)])
    assert [*seen.jobs][-2:] == ["a", "b"]
    assert seen.digest() == Snapshot.of("v", seen, 0.0, ()).shown().digest()


def test_queues_their_heads_and_exploration_are_in_the_digest() -> None:
    seen = view()
    head = HeadReservation("a", ("n0",), 1.0, 2.0, 3.0, 4.0)
    found = [seen.digest()]
    for change in (
        QueueAdvanced(QueueState("q", seq=1)),
        QueueAdvanced(QueueState("q", seq=1, backlog_s=5.0)),
        QueueAdvanced(QueueState("q", seq=1, backlog_s=5.0, head=head)),
        JobsEnded((JobId("a"),)),
        SettingsChanged(ClusterSettings(exploration_rate=0.1)),
        SettingsChanged(ClusterSettings(exploration_rate=0.1, host_clock=True)),
        ClockMoved(7.0),
    ):
        apply(seen, change)
        found.append(seen.digest())
    assert len(set(found)) == len(found)
    apply(seen, QueueAdvanced(QueueState("q")))
    assert seen.digest() != found[0], "of a queue that was forgotten, but with other settings"


class Walk:
    """A view that changes at random."""

    def __init__(self, seed: int) -> None:
        self.draw, self.asked = random.Random(seed), 0
        self.view = ClusterView(ClusterRecords("c", 1, "e", nodes=tuple(map(self.node, range(5)))))

    def node(self, i: int) -> Node:
        draw, reported = self.draw, {"cpu_util": self.draw.random(), "observe_time_s": 5.0}
        rack, labels = draw.choice(("", "r1", "r2")), draw.choice(({}, {"zone": "a"}))
        return make_node(f"n{i}", 4, telemetry=NodeTelemetry(**reported), rack=rack, labels=labels, max_jobs_per_gpu=2)

    def change(self) -> Change:
        draw, jobs = self.draw, list(self.view.jobs.values())
        kind = draw.randrange(8)
        if kind == 0:
            return NodesReported((self.node(draw.randrange(5)),))
        if kind == 1:  # another layout
            return NodesReported((make_node("n9", draw.choice((1, 2))),))
        if kind == 2 and jobs:
            return JobsEnded(tuple(job.id for job in draw.sample(jobs, 1)))
        if kind == 3 and jobs:
            return JobsChanged((replace(draw.choice(jobs), speed=draw.random(), state=RunState.RUNNING),))
        if kind == 4 and jobs:
            return JobsChanged((draw.choice(jobs),))
        if kind == 5:
            seq = draw.randrange(3)
            head = HeadReservation(draw.choice(jobs).id, ("n1",), 1.0, 2.0, 3.0, 4.0) if jobs and seq else None
            return QueueAdvanced(QueueState(draw.choice("pq"), seq=seq, head=head))
        self.asked += 1
        job = make_job(f"j{self.asked}", gpu_sharing=GpuSharing(True, 3.0, CO_RUNS[: draw.randrange(2)]))
        tasks = tuple(task_on(f"n{draw.randrange(5)}", draw.randrange(4)) for _ in range(draw.choice((1, 1, 3))))
        return JobsChanged((RunningJob(job, tasks, RunState.RESERVED),))

    def step(self) -> None:
        change = self.change()
        if isinstance(change, NodesReported) and self.draw.random() < 0.5:
            renewal = Renewal(self.view, change)
            renewal.prepare()
            version, self.view = self.view.version, renewal.show()
            self.view.version = version + 1
            return
        apply(self.view, change)
        if self.draw.random() < 0.2:
            fork = self.view.fork()
            fork.add_job(RunningJob(make_job("fork"), (task_on("n0", 0),)))
            assert fork.digest() != self.view.digest()


@pytest.mark.parametrize("seed", range(examples(40)))
def test_a_digest_that_was_kept_up_is_that_of_the_view_made_again(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(60):
        walk.step()
        if walk.draw.random() < 0.5:
            assert Snapshot.of("v", walk.view, 0.0, ()).shown().digest() == walk.view.digest()


def test_a_digest_that_fell_far_behind_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "_MOST_CHANGED", 3)
    seen = view()
    seen.digest()
    for i in range(9):
        seen.add_job(RunningJob(make_job(f"j{i}"), (task_on("n0", 0),)))
    assert seen._digests._jobs is None
    seen.remove_job(JobId("j4"))
    assert seen.digest() == Snapshot.of("v", seen, 0.0, ()).shown().digest()


@pytest.mark.parametrize("seed", range(examples(40)))
def test_a_mark_that_is_worked_out_later_is_the_digest_of_its_moment(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digest, "_MOST_CHANGED", 6)
    monkeypatch.setattr(digest, "_MOST_WAITING", 8)
    walk, marks = Walk(seed), []
    for _ in range(60):
        walk.step()
        if walk.draw.random() < 0.5:
            marks.append((walk.view.mark(), Snapshot.of("v", walk.view, 0.0, ()).shown().digest()))
        if marks and walk.draw.random() < 0.2:
            mark, then = marks.pop(walk.draw.randrange(len(marks)))
            assert mark.value == then
    for mark, then in walk.draw.sample(marks, len(marks)):
        assert mark.value == then


def test_a_mark_of_an_unchanged_view_is_the_same_one() -> None:
    seen = view()
    apply(seen, CHANGES["a job's co-run"]())
    first = seen.mark()
    assert seen.mark() is first
    seen.remove_job(sharing("a").id)
    assert seen.mark() is not first
    assert seen.mark().value != first.value


def test_marks_that_wait_do_not_hold_the_digests_of_earlier_nodes() -> None:
    seen = view()
    marks = [seen.mark()]
    held = weakref.ref(seen._digests._nodes)
    for i in range(1, 4):
        apply(seen, NodesReported((make_node(f"n{i}"),)))
        marks.append(seen.mark())
    assert held() is None
    assert len({mark.value for mark in marks}) == 4
    assert marks[-1].value == Snapshot.of("v", seen, 0.0, ()).shown().digest()


def test_the_digest_of_a_view_that_goes_waits_for_no_collection_of_garbage() -> None:
    seen = view()
    seen.digest()
    apply(seen, CHANGES["a job's co-run"]())
    seen.mark()
    held = [weakref.ref(seen._digests._nodes), weakref.ref(seen._digests._jobs)]
    seen._digests = digest.ViewDigest()
    assert [ref() for ref in held] == [None, None]
