"""The counts that the hosts' tests take of a decision log."""

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.e2e.hosts import decision_log
from tests.e2e.hosts.decision_log import Places

A, B = "n1/0", "n1/1"


def decision(number: str, job: str, *planned: str, is_dry_run: bool = False) -> dict[str, Any]:
    nodes = [gpu.partition("/")[0] for gpu in planned]
    return {
        "id": number,
        "time": number,
        "is_dry_run": is_dry_run,
        "job_ids": [job],
        "job_nodes": [nodes],
        "job_planned": [list(planned)],
    }


def outcome(number: str, job: str, kind: str, second: float, reason: str | None = None) -> dict[str, Any]:
    time = datetime.datetime.fromtimestamp(second, datetime.UTC)
    return {"decision_id": number, "job_id": job, "kind": kind, "time": time, "reason": reason}


def ran(number: str, job: str, start: float, end: float) -> list[dict[str, Any]]:
    return [outcome(number, job, "STARTED", start), outcome(number, job, "FINISHED", end)]


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(decision_log, "export", lambda *_: None)

    def read(decisions: list[dict[str, Any]], outcomes: list[dict[str, Any]]) -> decision_log.DecisionLog:
        for name, table in (("decisions", decisions), ("outcomes", outcomes)):
            (tmp_path / name).mkdir()
            parquet.write_table(pa.Table.from_pylist(table), tmp_path / name / "1.parquet")
        return decision_log.read_log(tmp_path, "c", {})

    return read


def test_gangs_that_follow_each_other_on_a_gpu_or_share_a_node_are_not_doubled(read: Any) -> None:
    decisions = [decision("d1", "1", A), decision("d2", "2", A), decision("d3", "3", B)]
    log = read(decisions, [*ran("d1", "1", 5, 9), *ran("d2", "2", 9, 12), *ran("d3", "3", 6, 11)])
    assert log.doubled() == []
    assert len(log.runs) == 3


@pytest.mark.parametrize("end", [[outcome("d1", "1", "FINISHED", 10)], []])
def test_a_gpu_that_is_given_away_while_a_gang_runs_on_it_is_doubled(read: Any, end: list[dict[str, Any]]) -> None:
    log = read(
        [decision("d1", "1", A, B), decision("d2", "2", B)],
        [outcome("d1", "1", "STARTED", 5), *end, *ran("d2", "2", 9, 12)],
    )
    assert log.doubled() == ["n1/1 by 1 and 2"]
    assert log.doubled({"1": 10}) == log.doubled()


def test_the_host_tells_an_end_that_the_log_lacks(read: Any) -> None:
    log = read(
        [decision("d1", "1", A), decision("d2", "2", A)], [outcome("d1", "1", "STARTED", 5), *ran("d2", "2", 9, 12)]
    )
    assert log.doubled() == ["n1/0 by 1 and 2"]
    assert log.doubled({"1": 9, "2": 11}) == []


@pytest.mark.parametrize(
    ("end_s", "start_s", "doubled"),
    [(9.5, 9, []), (10.5, 9, ["n1/0 by 1 and 2"]), (9.5, 9.25, ["n1/0 by 1 and 2"])],
)
def test_an_end_by_the_adapters_clock_is_compared_with_starts_in_whole_seconds(
    read: Any, end_s: float, start_s: float, doubled: list[str]
) -> None:
    """Slurm tells whole seconds, rounded down: the gang that starts at 9 may have started at 9.9."""
    log = read(
        [decision("d1", "1", A), decision("d2", "2", A)], [*ran("d1", "1", 5, end_s), *ran("d2", "2", start_s, 12)]
    )
    assert log.doubled() == doubled


def test_a_gang_that_starts_by_two_decisions_is_doubled(read: Any) -> None:
    log = read([decision("d1", "1", A), decision("d2", "1", B)], [*ran("d1", "1", 5, 6), *ran("d2", "1", 7, 8)])
    assert log.doubled() == ["1 by 2 decisions"]


def test_a_start_that_is_told_twice_and_a_dry_run_are_not_doubled(read: Any) -> None:
    decisions = [decision("d1", "1", A), decision("d2", "2", A, is_dry_run=True)]
    log = read(decisions, [*ran("d1", "1", 5, 9), *ran("d1", "1", 5, 9), *ran("", "2", 6, 8)])
    assert log.doubled() == []
    assert log.account({"1": Places(["n1"])}).as_decided == 1


@pytest.mark.parametrize("reason", ["left to the host: no_decision", "started by the host elsewhere than on n1"])
def test_a_start_that_was_the_hosts_own_takes_no_gpu_of_its_decision(read: Any, reason: str) -> None:
    """The service decides a question that its caller has given up. It hears of the start, and gives the GPUs away."""
    starts = [outcome("d1", "1", "STARTED", 5, reason), outcome("d1", "1", "FINISHED", 12)]
    log = read([decision("d1", "1", A), decision("d2", "2", A)], [*starts, *ran("d2", "2", 7, 9)])
    assert log.doubled() == []
    assert [run.job for run in log.runs] == ["2"]


def test_each_gang_stands_in_one_list(read: Any) -> None:
    left = "left to the host: no_decision"
    log = read(
        [decision("d1", "as decided", A), decision("d2", "elsewhere", A), decision("d3", "decided too late", A)],
        [
            outcome("d1", "as decided", "STARTED", 5),
            outcome("d2", "elsewhere", "STARTED", 5),
            outcome("d3", "decided too late", "STARTED", 5, left),
            outcome("", "released", "STARTED", 5, left),
            outcome("d4", "unwritten", "STARTED", 5),
        ],
    )
    gangs = {"as decided": "n1", "elsewhere": "n2", "decided too late": "n1", "released": "n1", "unwritten": "n1"}
    found = log.account({job: Places([node]) for job, node in {**gangs, "unheard": "n1"}.items()})
    assert (found.as_decided, len(found.elsewhere), found.total) == (1, 1, 6)
    assert found.released == ["decided too late", "released"]
    assert (found.never_decided, found.unwritten) == (["unheard"], ["unwritten"])
