"""`placewise simulate`: JSON scripts can read, exit codes, bad input in one line."""

import json
from pathlib import Path

import pytest
from tests.fakes.policy_net import write_policy
from typer.testing import CliRunner

from placewise_core.domain.traces import TraceError
from placewise_service.commands.exits import Exit, exit_code
from placewise_training.cli import UsageError, simulate_app
from placewise_training.sim.gangs.engine import Simulation

RUN = CliRunner()


def test_json_has_the_agreed_names() -> None:
    args = ["--trace", "philly", "--nodes", "8", "--jobs", "200", "--policy", "consolidate", "--seeds", "2", "--json"]
    result = RUN.invoke(simulate_app, args)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    names = {"avg_jct_s", "p50", "p95", "makespan_s", "gpu_util", "qos_rate", "decisions_per_s", "avg_jct_s_ci95"}
    assert names <= found.keys()
    assert found["finished"] + found["impossible"] == 200
    assert found["partial"] is False
    assert json.loads(RUN.invoke(simulate_app, args).stdout)["event_hashes"] == found["event_hashes"]


def test_two_policies_side_by_side() -> None:
    args = ["--workload", "harmony", "--gpus-per-node", "2", "--jobs", "30", "--policy", "tetris", "--policy", "random"]
    found = json.loads(RUN.invoke(simulate_app, [*args, "--json"]).stdout)
    assert [row["policy"] for row in found["policies"]] == ["tetris", "random"]
    table = RUN.invoke(simulate_app, args).stdout
    assert "tetris" in table
    assert "JCT mean" in table


def test_learned_policies_come_from_the_shipped_bundle_or_another(tmp_path: Path) -> None:
    write_policy(tmp_path)
    args = ["--workload", "harmony", "--gpus-per-node", "2", "--interval-s", "1200", "--jobs", "30", "--json"]
    searched = json.loads(RUN.invoke(simulate_app, [*args, "--policy", "search", "--seeds", "2"]).stdout)
    assert searched["finished"] == 30
    assert searched["avg_jct_s"] == pytest.approx(sum(searched["per_seed"]["avg_jct_s"]) / 2)
    placed = json.loads(RUN.invoke(simulate_app, [*args, "--policy", "harmony", "--bundle", str(tmp_path)]).stdout)
    assert placed["finished"] == 30
    assert placed["event_hashes"] != searched["event_hashes"]


def test_impossible_jobs_are_named() -> None:
    result = RUN.invoke(
        simulate_app, ["--trace", "philly", "--nodes", "1", "--gpus-per-node", "1", "--jobs", "100", "--json"]
    )
    found = json.loads(result.stdout)
    assert found["impossible"] == len(found["impossible_jobs"]) > 0
    assert found["finished"] + found["impossible"] == 100


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["--trace", "philly", "--workload", "harmony"],
        ["--trace", "/nowhere/at/all.csv"],
        ["--workload", "tides"],
        ["--trace", "philly", "--policy", "best"],
        ["--trace", "philly", "--admit", "best"],
        ["--trace", "philly", "--truth", "mine"],
        ["--trace", "philly", "--order", "lifo"],
        ["--trace", "philly", "--gpu-model", "H9000"],
        ["--workload", "harmony", "--pattern", "tidal"],
        ["--workload", "harmony", "--policy", "search", "--bundle", "/nowhere/at/all"],
        ["--workload", "harmony", "--policy", "harmony", "--bundle", "/tmp"],
    ],
)
def test_options_that_make_no_sense(args: list[str]) -> None:
    result = RUN.invoke(simulate_app, args)
    assert isinstance(result.exception, UsageError), result.output
    assert result.exception.exit_code == 2


def test_a_malformed_trace_is_one_line_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("job_id,submit_time_s,duration_s,num_gpus\na,0,ten,1\n")
    result = RUN.invoke(simulate_app, ["--trace", str(path)])
    assert isinstance(result.exception, TraceError)
    assert str(result.exception) == f"{path}:2:5: duration_s: 'ten' is not a number"
    assert exit_code(result.exception) == Exit.BAD_INPUT


def test_an_interrupted_run_prints_what_it_has_marked_partial(monkeypatch: pytest.MonkeyPatch) -> None:
    finish = Simulation._finish

    def interrupted(self: Simulation, job_id: str) -> None:
        finish(self, job_id)
        if self.metrics.jct.count == 25:
            raise KeyboardInterrupt

    monkeypatch.setattr(Simulation, "_finish", interrupted)
    args = ["--trace", "philly", "--jobs", "200", "--policy", "tetris", "--policy", "random", "--seeds", "3", "--json"]
    result = RUN.invoke(simulate_app, args)
    assert result.exit_code == 130
    found = json.loads(result.stdout)
    assert found["policy"] == "tetris"
    assert (found["partial"], found["finished"], found["seeds"]) == (True, 25, [0])
