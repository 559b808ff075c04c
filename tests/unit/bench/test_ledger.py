"""The ledger that hunts for GPUs handed out twice: it must see each error, and nothing else."""

from placewise.v1.cluster_pb2 import Assignment
from placewise.v1.job_pb2 import Resources
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
