"""Judging goes on where it was left, and plays every contender on the same jobs."""

import json
from pathlib import Path

import pytest

from placewise_training.unseen.judge import HostReports, lines, play, run
from placewise_training.unseen.scenarios import scenarios

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
