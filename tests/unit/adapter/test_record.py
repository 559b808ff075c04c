"""The one record of a gang: how its stage and its question to the service change."""

from __future__ import annotations

import math

import pytest

from placewise.v1.cluster_pb2 import Assignment
from placewise.v1.job_pb2 import Job
from placewise_client.adapter.book import Admitted, Book, Record
from placewise_client.adapter.native import HostState, NativeJob, Placed, Placement, Stage, Undecided, Waiting

PLACEMENT = Placement((Assignment(node="n1"),), "reservation", decision_id="d")


def job(stage: Stage = Stage.WAITING, key: str = "j", *, is_managed: bool = True) -> NativeJob:
    return NativeJob(key, Job(id=key), stage, is_managed=is_managed)


def asked(verdict: Placed | Waiting) -> Record:
    record = Record(job(), admitted=Admitted((1, 0)))
    record.mark_answered(verdict, 3.0)
    return record


def test_an_applied_placement_closes_the_question() -> None:
    record = asked(Placed(PLACEMENT))
    record.mark_applied(PLACEMENT, 4.0)
    assert (record.stage, record.decided, record.applied_at_s) == (Stage.APPLIED, PLACEMENT, 4.0)
    assert (record.verdict, record.admitted, record.asked_at_s) == (None, None, -math.inf)


def test_a_withdrawn_gang_waits_with_nothing_decided() -> None:
    record = asked(Placed(PLACEMENT))
    record.mark_applied(PLACEMENT, 4.0)
    record.mark_withdrawn()
    assert (record.stage, record.decided, record.applied_at_s) == (Stage.WAITING, None, None)


def test_a_released_gang_is_not_asked_about_any_more() -> None:
    book = Book()
    book.update(HostState([job()]), 0.0)
    (record,) = book.waiting()
    record.mark_released("left to the host: no_fit")
    assert (book.waiting(), book.find_waiting("j"), record.stage) == ([], None, Stage.RELEASED)


@pytest.mark.parametrize("stage", [Stage.APPLIED, Stage.RUNNING])
def test_a_placement_whose_answer_was_lost_is_taken_over_once(stage: Stage) -> None:
    record = asked(Placed(PLACEMENT))
    record.mark_seen(job(stage), 5.0)
    assert record.mark_taken_over()
    assert record.decided == PLACEMENT
    assert not record.mark_taken_over()


def test_a_gang_that_started_without_a_decision_has_none() -> None:
    record = asked(Waiting())
    record.mark_seen(job(Stage.RUNNING), 5.0)
    assert not record.mark_taken_over()
    assert record.decided is None


def test_failures_count_from_the_first_until_an_answer() -> None:
    record = Record(job())
    for now_s, is_due in ((1.0, False), (10.0, False), (11.0, True)):
        record.mark_failed("AWAY", now_s, release_after_s=10.0)
        assert record.verdict == Undecided("AWAY", is_due)
    record.mark_answered(Waiting(), 12.0)
    record.mark_failed("AWAY", 13.0, release_after_s=10.0)
    assert record.verdict == Undecided("AWAY", False)


def test_a_gang_is_never_released_if_no_time_is_set_for_it() -> None:
    record = Record(job())
    for now_s in (1.0, 1e9):
        record.mark_failed("AWAY", now_s, release_after_s=-1.0)
        assert record.verdict == Undecided("AWAY", is_release_due=False)


def test_the_time_of_an_applied_placement_is_that_of_the_first_look() -> None:
    book = Book()
    for now_s in (1.0, 2.0):
        book.update(HostState([job(Stage.APPLIED)]), now_s)
    assert book.overdue(31.5, 30.0) == [book.records["j"]]
    assert book.next_overdue_s(30.0) == 31.0
    book.update(HostState([job(Stage.RUNNING)]), 3.0)
    assert (book.overdue(99.0, 30.0), book.next_overdue_s(30.0)) == ([], math.inf)


def test_all_that_wait_may_be_asked_at_once_after_a_change() -> None:
    book = Book()
    book.update(HostState([job(), job(key="k", is_managed=False)]), 0.0)
    (record,) = book.waiting()
    record.mark_answered(Waiting(), 5.0)
    book.wake()
    assert record.asked_at_s == -math.inf
