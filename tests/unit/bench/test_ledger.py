"""The ledger that hunts for GPUs handed out twice: it must see each error, and nothing else."""

import time

import pytest

from placewise.v1.cluster_pb2 import Assignment, Cluster, RunningJob
from placewise.v1.job_pb2 import Resources
from placewise_service.bench import contention
from placewise_service.bench.ledger import BenchLedger


def task(node: str, *gpus: int, cores: float = 4) -> Assignment:
    return Assignment(node=node, gpu_indices=gpus, demand=Resources(cpu_cores=cores, gpus=len(gpus)))


def test_disjoint_holdings_are_fine() -> None:
    ledger = BenchLedger({"n": 8.0, "m": 8.0})
    ledger.take("a", [task("n", 0), task("m", 0)], expire_time_s=10, now_s=1)
    ledger.take("b", [task("n", 1)], expire_time_s=10, now_s=1)
    assert ledger.violations == []
    assert len(ledger) == 2


def test_a_gpu_given_twice_is_seen() -> None:
    ledger = BenchLedger({"n": 64.0})
    ledger.take("a", [task("n", 0)], expire_time_s=10, now_s=1)
    ledger.take("b", [task("n", 0)], expire_time_s=10, now_s=2)
    assert len(ledger.violations) == 1
    assert "held by a and was given to b" in ledger.violations[0]


def test_a_gpu_given_twice_in_one_answer_is_seen() -> None:
    ledger = BenchLedger({"n": 64.0})
    ledger.take("a", [task("n", 0), task("n", 0)], expire_time_s=10, now_s=1)
    assert ledger.violations


def test_too_many_cores_are_seen() -> None:
    ledger = BenchLedger({"n": 4.0})
    ledger.take("a", [task("n", 0)], expire_time_s=10, now_s=1)
    ledger.take("b", [task("n", 1, cores=0.5)], expire_time_s=10, now_s=1)
    assert ledger.violations == ["n: 4.5 cores held, 4 there"]


def test_what_was_given_back_or_expired_may_be_given_again() -> None:
    ledger = BenchLedger({"n": 4.0})
    ledger.take("a", [task("n", 0)], expire_time_s=10, now_s=1)
    ledger.strike("a")
    ledger.take("b", [task("n", 0)], expire_time_s=10, now_s=2)
    ledger.take("c", [task("n", 0)], expire_time_s=20, now_s=10)
    ledger.strike("unknown")
    assert ledger.violations == []


def test_an_answer_that_comes_after_its_expiry_holds_nothing() -> None:
    ledger = BenchLedger({"n": 4.0})
    ledger.take("late", [task("n", 0)], expire_time_s=5, now_s=6)
    ledger.take("b", [task("n", 0)], expire_time_s=10, now_s=6)
    assert ledger.violations == []


def test_what_has_to_be_there_is_what_is_held_and_has_not_expired() -> None:
    ledger = BenchLedger({"n": 64.0})
    for job, gpu, expire_time_s in (("a", 0, 10), ("b", 1, 3), ("c", 2, 0), ("d", 3, 10)):
        ledger.take(job, [task("n", gpu)], expire_time_s, now_s=1)
    ledger.strike("d")
    assert ledger.held(3) == {"a", "c"}


class Replica:
    """A service whose views are as given, one after the other."""

    def __init__(self, *views: Cluster) -> None:
        self.views = list(views)

    async def get_cluster(self, _: object) -> Cluster:
        return self.views.pop(0) if len(self.views) > 1 else self.views[0]


@pytest.mark.parametrize(
    ("views", "lost"),
    [
        ([("a", "c")], 0),
        ([("a",), ("a", "c")], 0),  # its view catches up
        ([None, ("a", "c")], 0),  # stale at first
        ([("a",)], 1),
        ([()], 2),
    ],
)
async def test_a_placement_that_a_replica_has_forgotten_is_lost(
    views: list[tuple[str, ...] | None], lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contention, "_RECOVERY_POLL_S", 0.0)
    run = contention.Contention(contention.ContentionPlan(1, 1, 1), [], None)  # type: ignore[arg-type]
    run.ledger = BenchLedger({"n": 64.0})
    for job, gpu, expire_time_s in (("a", 0, 0), ("b", 1, time.time() - 1), ("c", 2, time.time() + 60)):
        run.ledger.take(job, [task("n", gpu)], expire_time_s, now_s=1)
    shown = [
        Cluster(stale=True) if jobs is None else Cluster(jobs=[RunningJob(job_id=job) for job in jobs])
        for jobs in views
    ]
    run._clients = [Replica(*shown)]  # type: ignore[list-item]
    await run._count_lost({"a", "b", "c"})
    assert (run.tally.acknowledged, run.tally.lost) == (2, lost)
