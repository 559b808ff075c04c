"""Backoff arithmetic: which errors are retried, after which delay, and never past the deadline."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placewise.v1.bundle_pb2 import RollbackBundleRequest
from placewise.v1.cluster_pb2 import (
    DeleteClusterRequest,
    GetClusterRequest,
    ReportJobEventsRequest,
    ReportNodesRequest,
)
from placewise.v1.decision_pb2 import AdmitOrWaitRequest, PartitionRequest, PlaceRequest
from placewise_client.errors import (
    ERRORS,
    InternalError,
    OverloadedError,
    PlacewiseError,
    StaleSnapshotError,
    StateUnavailableError,
)
from placewise_client.retry import RetryPolicy, Tries
from placewise_client.rpcs import Rpc, Rpcs

RETRYABLE = {StaleSnapshotError, OverloadedError, StateUnavailableError}


@pytest.mark.parametrize("kind", ERRORS)
def test_only_what_may_pass_by_itself_is_tried_again(kind: type[PlacewiseError]) -> None:
    delay_s = RetryPolicy().delay_s(1, kind("x"), 10.0, random.Random(1))
    assert (delay_s is not None) == (kind in RETRYABLE)


@given(failed=st.integers(1, 20), left_s=st.floats(0, 10), asked_s=st.none() | st.floats(0, 5), seed=st.integers())
def test_a_delay_is_inside_the_deadline_and_honours_the_service(
    failed: int, left_s: float, asked_s: float | None, seed: int
) -> None:
    policy = RetryPolicy(attempts=10, first_delay_s=0.05, longest_delay_s=2.0)
    error = OverloadedError("busy", retry_delay_s=asked_s)
    delay_s = policy.delay_s(failed, error, left_s, random.Random(seed))
    if delay_s is not None:
        assert failed < 10
        assert (asked_s or 0.0) <= delay_s < left_s
        assert delay_s <= (asked_s or 0.0) + min(2.0, 0.05 * 2 ** (failed - 1))


def test_the_last_attempt_is_the_last() -> None:
    policy = RetryPolicy(attempts=3)
    error = StateUnavailableError("away")
    assert policy.delay_s(2, error, 100.0, random.Random(1)) is not None
    assert policy.delay_s(3, error, 100.0, random.Random(1)) is None


def tried(
    error: PlacewiseError, *, is_repeatable: bool, policy: RetryPolicy | None = None, left_s: float = 10.0
) -> int:
    """Tries of a call that always fails in this way, if a try takes no time."""
    tries = Tries(policy or RetryPolicy(), is_repeatable, random.Random(1))
    count = 1
    while (delay_s := tries.delay_s(error, left_s)) is not None:
        left_s -= delay_s
        count += 1
        assert count < 1000
    return count


def test_a_service_that_is_away_is_asked_until_the_deadline() -> None:
    away = StateUnavailableError("connection reset")
    assert tried(away, is_repeatable=True) > 10
    assert tried(away, is_repeatable=True, policy=RetryPolicy(attempts=3)) == 3
    assert tried(away, is_repeatable=True, left_s=0.01) == 1
    unsent = StateUnavailableError("connection refused", was_sent=False)
    assert tried(unsent, is_repeatable=False) > 10


def test_what_may_have_been_carried_out_or_does_harm_is_asked_a_few_times() -> None:
    assert tried(StateUnavailableError("connection reset"), is_repeatable=False) == 4
    assert tried(OverloadedError("busy"), is_repeatable=True) == 4
    assert tried(StaleSnapshotError("moved"), is_repeatable=True) == 4


def test_a_busy_service_that_has_just_come_back_is_asked_again() -> None:
    tries = Tries(RetryPolicy(), is_repeatable=True, rng=random.Random(1))
    for _ in range(20):
        assert tries.delay_s(StateUnavailableError("away"), 10.0) is not None
    assert [tries.delay_s(OverloadedError("busy"), 10.0) is None for _ in range(4)] == [False, False, False, True]


@pytest.mark.parametrize(
    ("rpc", "request_", "is_repeatable"),
    [
        (Rpcs.place, PlaceRequest(), False),
        (Rpcs.place, PlaceRequest(request_id="r"), True),
        (Rpcs.place, PlaceRequest(dry_run=True), True),
        (Rpcs.admit_or_wait, AdmitOrWaitRequest(), False),
        (Rpcs.admit_or_wait, AdmitOrWaitRequest(place=PlaceRequest(request_id="r")), True),
        (Rpcs.partition, PartitionRequest(), True),
        (Rpcs.report_job_events, ReportJobEventsRequest(), True),
        (Rpcs.report_nodes, ReportNodesRequest(), True),
        (Rpcs.get_cluster, GetClusterRequest(), True),
        (Rpcs.delete_cluster, DeleteClusterRequest(), False),
        (Rpcs.rollback_bundle, RollbackBundleRequest(), False),
    ],
)
def test_what_may_be_carried_out_twice(rpc: Rpc[Any, Any], request_: Any, is_repeatable: bool) -> None:
    assert rpc.is_repeatable(request_) is is_repeatable


def test_an_error_prints_its_reason_and_message() -> None:
    assert str(InternalError("broken", reason="BUG")) == "BUG: broken"
    assert str(InternalError("broken")) == "INTERNAL: broken"
