"""Backoff arithmetic: what is retried, how long is waited, and that the deadline is never passed."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placewise_client.errors import (
    ERRORS,
    InternalError,
    OverloadedError,
    PlacewiseError,
    StaleSnapshotError,
    StateUnavailableError,
)
from placewise_client.retry import RetryPolicy

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
        assert failed < policy.attempts
        assert (asked_s or 0.0) <= delay_s < left_s
        assert delay_s <= (asked_s or 0.0) + min(2.0, 0.05 * 2 ** (failed - 1))


def test_the_last_attempt_is_the_last() -> None:
    policy = RetryPolicy(attempts=3)
    error = StateUnavailableError("away")
    assert policy.delay_s(2, error, 100.0, random.Random(1)) is not None
    assert policy.delay_s(3, error, 100.0, random.Random(1)) is None


def test_an_error_prints_its_reason_and_message() -> None:
    assert str(InternalError("broken", reason="BUG")) == "BUG: broken"
    assert str(InternalError("broken")) == "INTERNAL: broken"
