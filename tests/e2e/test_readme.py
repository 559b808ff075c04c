"""README's calls, pasted into a running service, give README's answers."""

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.readme_calls import asked, calls, demo_service, laid_out

# What differs from run to run, and nothing else.
VARYING = {
    "decisionId",
    "reservationId",
    "reservationExpireTime",
    "expectedFinishTime",
    "slackSeconds",
    "decideMs",
    "snapshotVersion",
}

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def rest_port() -> Iterator[int]:
    with demo_service() as port:
        yield port


def _fixed(answer: Any) -> Any:
    """The answer without what varies; numbers rounded as a reader would compare them."""
    if isinstance(answer, dict):
        return {name: _fixed(value) for name, value in answer.items() if name not in VARYING}
    if isinstance(answer, list):
        return [_fixed(value) for value in answer]
    return round(answer, 6) if isinstance(answer, float) else answer


def _names(answer: Any) -> Any:
    """Every field that is there, the varying ones too, without their values."""
    if isinstance(answer, dict):
        return {name: _names(value) for name, value in answer.items()}
    return [_names(value) for value in answer] if isinstance(answer, list) else None


@pytest.mark.skipif(shutil.which("curl") is None, reason="README's calls use curl, which is not installed")
def test_readme_tells_the_truth(rest_port: int) -> None:
    found = calls()
    assert len(found) == 4
    for call, promised in found:
        answer = asked(call, rest_port)
        assert _fixed(answer) == _fixed(promised), f"{call}\n(make readme prints the answers anew)"
        assert _names(answer) == _names(promised), call


def test_answers_are_laid_out_to_be_read() -> None:
    value = {"a": 1, "b": ["x" * 40, "y" * 40], "c": {"d": ["z" * 60, "z" * 60]}, "e": []}
    text = laid_out(value)
    assert json.loads(text) == value
    assert max(map(len, text.splitlines())) <= 120
    assert text.splitlines()[1].startswith('  "a": 1, "b": ["xxx')
