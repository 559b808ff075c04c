"""Judging goes on where it was left, and plays every contender on the same jobs."""

import json
from pathlib import Path

import pytest

from placewise_core.policies.adaptive import knows_loss
from placewise_training.unseen.judge import HostReports, chosen, lines, main, play, run, simulation_of
from placewise_training.unseen.scenarios import Scenario, scenarios

_SMALL = min(scenarios(64), key=lambda scenario: (scenario.gpus, scenario.number))


def test_a_later_run_adds_what_is_missing(tmp_path: Path) -> None:
    out = tmp_path / "judged.jsonl"
    run([_SMALL], ["consolidate"], out)
    before = out.read_text()
    other = scenarios(64)[3]
    run([_SMALL, other], ["consolidate"], out)
    assert out.read_text().startswith(before)
    assert [line["scenario"]["number"] for line in lines(out)] == [_SMALL.number, other.number]
    assert json.loads(before)["players"]["consolidate"] == play(_SMALL, "consolidate")


def test_spread_is_counted_over_gangs() -> None:
    packed, spread = play(_SMALL, "consolidate"), play(_SMALL, "load-balance")
    assert 1.0 <= packed["nodes_per_gang"] < spread["nodes_per_gang"]


def test_a_host_may_report_neither_links_nor_speeds_and_a_wrong_network() -> None:
    known = HostReports(links=False, speeds=False, times=3.0)
    assert play(_SMALL, "consolidate", known=known) == play(_SMALL, "consolidate"), "consolidate reads none of it"
    node = _SMALL.cluster()[0]
    assert known.reported(node).node.hardware.interconnect_gbps == 0.0
    wrong = HostReports(times=3.0).reported(node)
    assert wrong.node.hardware.interconnect_gbps == pytest.approx(3.0 * node.node.hardware.interconnect_gbps)
    assert wrong.node.capacity.network_gbps == pytest.approx(3.0 * _SMALL.network_gbps)
    assert (wrong.nic_bps, wrong.interconnect_bps) == (node.nic_bps, node.interconnect_bps)


def _with_one_loss(loss: float) -> Scenario:
    found = [scenario for scenario in scenarios(64) if scenario.flat_loss == loss]
    return min(found, key=lambda scenario: (scenario.gpus, scenario.number))


@pytest.mark.parametrize("loss", [0.0, 0.25, 0.5])
def test_the_true_loss_may_be_known_from_the_start(loss: float) -> None:
    simulation = simulation_of(_with_one_loss(loss), "adaptive", known=HostReports(true_loss=True))
    known = simulation.view.estimates.disturbance
    assert known.loss == pytest.approx(loss, abs=1e-6)
    assert knows_loss(simulation.view)
    assert not simulation.options.learns_from_speeds, "what is known stays as it is"


def test_by_default_the_loss_is_learned_from_nothing() -> None:
    simulation = simulation_of(_with_one_loss(0.5), "adaptive")
    assert not knows_loss(simulation.view)
    assert simulation.options.learns_from_speeds


def test_no_one_loss_is_true_where_jobs_disturb_each_other_by_demand() -> None:
    by_demand = next(scenario for scenario in scenarios(64) if scenario.flat_loss is None)
    with pytest.raises(ValueError, match="by demand"):
        simulation_of(by_demand, "adaptive", known=HostReports(true_loss=True))


def test_the_command_plays_chosen_scenarios_with_the_true_loss(tmp_path: Path) -> None:
    by_demand = next(scenario for scenario in scenarios(64) if scenario.flat_loss is None)
    asked = f"{_with_one_loss(0.5).number},{by_demand.number}"
    out = tmp_path / "known.jsonl"
    main(["--out", str(out), "--count", "64", "--only", asked, "--players", "consolidate", "--true-loss"])
    assert [line["scenario"]["number"] for line in lines(out)] == [_with_one_loss(0.5).number]


@pytest.mark.parametrize(("only", "numbers"), [("", [0, 1, 2, 3]), ("1:3", [1, 2]), (":2", [0, 1]), ("3,0", [3, 0])])
def test_scenarios_are_chosen_by_range_or_number(only: str, numbers: list[int]) -> None:
    assert [scenario.number for scenario in chosen(scenarios(4), only)] == numbers
