"""Runs every policy and oracle on every scenario, one paired window each. Writes a line of JSON per scenario; a later
run goes on where the file ends.

    python -m placewise_training.unseen.judge --out unseen.jsonl [--count 512] [--only 0:64] [--bundle DIR]

Jobs are placed in order of arrival, at every event. All contenders get the same jobs and the same noise. The oracles
know the true speeds.
"""

import argparse
import functools
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from placewise_core.basics.frozen import frozen
from placewise_core.domain.events import SubtaskProfiled
from placewise_core.gang.policy import PlacementPolicy
from placewise_core.speed.learned.disturbance import HALVING_S, Group
from placewise_core.speed.learned.sums import Sums
from placewise_core.view.view import ClusterView
from placewise_training.lab.work.asked import add_option, workers_of
from placewise_training.lab.work.workers import Here, Workers
from placewise_training.sim.discipline import Discipline
from placewise_training.sim.gangs.engine import Observer, SimOptions, Simulation
from placewise_training.sim.gangs.oracle import Objective, Oracle
from placewise_training.sim.hardware import NodeSpec
from placewise_training.sim.jobs import SimJob
from placewise_training.sim.policies import opened, policies_of
from placewise_training.sim.truths import make_truth
from placewise_training.unseen.scenarios import SOBOL_SEED, Scenario, scenarios

ORACLES: Mapping[str, Objective] = {"oracle by delay": "delay", "oracle by progress": "progress"}
LEARNED = ("harmony", "search")
LEARNING = "adaptive"  # its estimate starts empty in each scenario
PLAYERS = ("consolidate", "consolidate-apart", "load-balance", *LEARNED, LEARNING, *ORACLES)
_PLACEMENTS, _MOVES = 200, 40
_CERTAIN = 1e6  # reports: beside so many the guess counts for nothing
_KEPT = ("avg_jct_s", "p95", "avg_slowdown", "p95_slowdown", "avg_queueing_s", "gpu_util", "unfinished", "impossible")


class Spread:
    """Counts the nodes of each gang of two GPUs or more as it starts."""

    def __init__(self) -> None:
        self.gangs = self.nodes = 0

    def __call__(self, now_s: float, event: str, job: SimJob, nodes: tuple[str, ...]) -> None:
        if event == "start" and job.job.gpus >= 2:
            self.gangs += 1
            self.nodes += len(set(nodes))

    @property
    def mean(self) -> float:
        return self.nodes / self.gangs if self.gangs else 0.0


@frozen
class HostReports:
    """The host's inventory and reports: with or without the bandwidth of `links` between the GPUs of a node, and the
    `speeds` of jobs. The inventory has `times` the true bandwidth of network and links. `true_loss`: the cluster knows
    from the start what jobs lose beside each other, and learns nothing more of it."""

    links: bool = True
    speeds: bool = True
    times: float = 1.0
    true_loss: bool = False

    def reported(self, spec: NodeSpec) -> NodeSpec:
        """The node with the inventory of the host, and its true speeds."""
        node = spec.node
        capacity = replace(node.capacity, network_gbps=self.times * node.capacity.network_gbps)
        links = self.times * node.hardware.interconnect_gbps if self.links else 0.0
        hardware = replace(node.hardware, interconnect_gbps=links)
        return replace(spec, node=replace(node, capacity=capacity, hardware=hardware))


ALL_KNOWN = HostReports()


def play(
    scenario: Scenario, player: str, bundle: Path | None = None, known: HostReports = ALL_KNOWN
) -> dict[str, float]:
    """One simulation of the scenario; the metrics that the report reads."""
    spread = Spread()
    metrics = simulation_of(scenario, player, bundle, known, (spread,)).run().metrics.as_dict()
    return {name: metrics[name] for name in _KEPT} | {"nodes_per_gang": spread.mean}


def simulation_of(
    scenario: Scenario,
    player: str,
    bundle: Path | None = None,
    known: HostReports = ALL_KNOWN,
    observers: Sequence[Observer] = (),
) -> Simulation:
    """The run before its first event. Raises ValueError if the loss is to be known and the scenario has no
    single one."""
    truth = scenario.truth()
    options = SimOptions(
        discipline=Discipline(order="fifo"),
        belief=make_truth("train", scenario.seed).sharing,
        reports_progress=known.speeds,
        learns_disturbance=player == LEARNING and not known.true_loss,
        observers=observers,
    )
    jobs = scenario.workload(truth)
    nodes = [known.reported(spec) for spec in scenario.cluster()]
    simulation = Simulation(nodes, jobs, truth, None, options=options, seed=scenario.seed)
    simulation.policy = _policy(player, simulation, bundle)
    if known.true_loss:
        if scenario.flat_loss is None:
            raise ValueError(f"scenario {scenario.number}: jobs disturb each other by demand, so no one loss is true")
        know_loss(simulation.view, scenario.flat_loss)
    return simulation


def know_loss(view: ClusterView, loss: float) -> None:
    """The cluster knows the loss, as though it had learned it from any number of reports."""
    group = Group(model="", gpu_type="", batch=0, tasks=0, nodes=0, gpus=0)
    for is_beside, log_speed in ((True, math.log1p(-loss)), (False, 0.0)):
        row = Sums().added(log_speed, 0.0, HALVING_S, _CERTAIN).row
        view.apply_change(SubtaskProfiled(group.kind(is_beside=is_beside), row))


def _policy(player: str, simulation: Simulation, bundle: Path | None) -> PlacementPolicy:
    policies = policies_of(opened(bundle))
    if player not in ORACLES:
        return policies[player]
    learned = [policies[name] for name in LEARNED if name in policies]
    return Oracle(simulation, _PLACEMENTS, ORACLES[player], more=learned, moves=_MOVES)


def judged(
    scenario: Scenario, players: Sequence[str], bundle: Path | None = None, known: HostReports = ALL_KNOWN
) -> dict[str, Any]:
    """The scenario with the metrics of each player."""
    played = {player: play(scenario, player, bundle, known) for player in players}
    return {"scenario": asdict(scenario), "levels": dict(scenario.levels()), "players": played}


def run(
    wanted: Iterable[Scenario],
    players: Sequence[str],
    out: Path,
    bundle: Path | None = None,
    workers: Workers | None = None,
    known: HostReports = ALL_KNOWN,
) -> None:
    """Appends one line per scenario that `out` lacks."""
    done = {line["scenario"]["number"] for line in lines(out)}
    left = [scenario for scenario in wanted if scenario.number not in done]
    job: Callable[[Scenario], dict[str, Any]] = functools.partial(judged, players=players, bundle=bundle, known=known)
    with out.open("a", encoding="utf-8") as file:
        for line in (workers or Here()).mapped(job, left):
            file.write(json.dumps(line) + "\n")
            file.flush()


def lines(path: Path) -> list[dict[str, Any]]:
    """The scenarios judged so far; none if there is no file. A line that was cut off is left out."""
    found = []
    for text in path.read_text("utf-8").splitlines() if path.exists() else ():
        try:
            found.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    return found


def chosen(drawn: Sequence[Scenario], only: str) -> Sequence[Scenario]:
    """All scenarios if `only` is empty, else those at FIRST:END, or at the numbers that commas part."""
    if only and ":" not in only:
        return [drawn[int(number)] for number in only.split(",")]
    first, _, end = only.partition(":")
    return drawn[int(first or 0) : int(end or len(drawn))]


def main(arguments: Sequence[str]) -> None:
    """Judges scenarios of the first `--count`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="file of one JSON object per scenario, appended to")
    parser.add_argument(
        "--seed", type=int, default=SOBOL_SEED, help="of the scenarios; tune on another seed than the default"
    )
    parser.add_argument("--count", type=int, default=512, help="scenarios to draw")
    parser.add_argument("--only", default="", help="of the drawn scenarios FIRST:END, or numbers: 3,17,29")
    parser.add_argument("--bundle", type=Path, default=None, help="directory; the shipped one if left out")
    parser.add_argument("--players", nargs="+", default=list(PLAYERS))
    parser.add_argument("--processes", type=int, default=1)
    add_option(parser)
    parser.add_argument("--without-links", action="store_true", help="inventories lack the bandwidth between GPUs")
    parser.add_argument("--without-speeds", action="store_true", help="no job reports its speed")
    parser.add_argument(
        "--true-loss",
        action="store_true",
        help="the loss beside another gang is known; only scenarios that have one loss",
    )
    parser.add_argument("--times", type=float, default=1.0, help="factor on the bandwidths in the inventory; 1: true")
    args = parser.parse_args(arguments)
    wanted = chosen(scenarios(args.count, args.seed), args.only)
    if args.true_loss:
        wanted = [scenario for scenario in wanted if scenario.flat_loss is not None]
    known = HostReports(not args.without_links, not args.without_speeds, args.times, args.true_loss)
    with workers_of(args.ray, args.processes) as workers:
        run(wanted, args.players, args.out, args.bundle, workers, known)


if __name__ == "__main__":
    main(sys.argv[1:])
