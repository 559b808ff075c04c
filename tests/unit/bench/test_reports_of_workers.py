"""Reports of tests on their way from a worker of xdist (tests/conftest.py)."""

import pytest
from _pytest.reports import TestReport


def test_a_report_arrives_whole_with_what_xdist_adds(request: pytest.FixtureRequest) -> None:
    config = request.config
    location = ("tests/unit/test_it.py", 3, "test_it")
    sent = TestReport(
        "test_it", location, {"test_it": 1}, "failed", "E  assert 1 == 2", "call", [("Captured stdout", "text\n")], 0.5
    )
    data = config.hook.pytest_report_to_serializable(config=config, report=sent)
    assert list(data) == ["as_json"], "one text"
    got = config.hook.pytest_report_from_serializable(config=config, data={**data, "worker_id": "gw1"})
    assert (got.nodeid, got.outcome, got.when, got.duration) == ("test_it", "failed", "call", 0.5)
    assert (tuple(got.location), got.longrepr) == (location, "E  assert 1 == 2")
    assert [tuple(section) for section in got.sections] == [("Captured stdout", "text\n")]
    assert got.worker_id == "gw1"
