"""The reward model against LIF on the same jobs: errors of predicted speeds on the judging truth, over paired seeds.

    python -m placewise_training.reward.judge_against_lif --model var/train/reward/reward.onnx

Harmony's Fig. 13: random placement on its six servers, intervals of 20 minutes. LIF predicts by how much others slow
a job down, so it needs a speed to begin with, and gets it in two ways: `as reported` is the knowledge of the
reward model, too (a running job's reported speed, with the new neighbour's share added; a new job's linear speed),
`undisturbed` is the true speed of the placement without neighbours, which nobody knows before the job has run there.
`noise` is the error of a model that knows everything but the noise of a job that has not reported yet. Trains nothing.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from placewise_core.domain.cluster import Assignment
from placewise_core.domain.job import Job
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.policy import PlacementPolicy, Proposal
from placewise_core.inputs.reward import WITNESSES, PartEncoder, PartTokens
from placewise_core.policies.profiled.tables import packaged_tables
from placewise_core.policies.random_fit import Random
from placewise_core.policies.registry import least_interference
from placewise_core.policies.search import SpeedScorer
from placewise_core.speed.linear_speed import linear_speed, reported_speed
from placewise_core.view.view import ClusterView
from placewise_models.reward import RewardRuntime
from placewise_training.sim.arrivals import INTERVAL_S
from placewise_training.sim.discipline import Discipline
from placewise_training.sim.gangs.engine import SimOptions, Simulation, spots_of
from placewise_training.sim.hardware import harmony_cluster
from placewise_training.sim.jobs import SimJob, workers_of
from placewise_training.sim.speed.base import Footprint, NodeLoad, Part
from placewise_training.sim.statistics import estimate
from placewise_training.sim.truths import make_truth
from placewise_training.sim.workloads import HarmonyWorkload

FIRST_SEED = 10_000  # evaluation counts from here (docs/truths.md)
KINDS = ("all", "new", "reported", "unreported")
_WITHIN = 0.1

Use = tuple[float, ...]  # per node of the job: the share of its cores that others have


@dataclass(frozen=True, slots=True)
class Seen:
    """One job after a start, in units of its linear speed; `predicted` by method."""

    kind: str
    true: float
    predicted: Mapping[str, float]


class Watcher(PlacementPolicy):
    """Random placement; notes at each start the true speeds and all predictions."""

    name = "watcher"

    def __init__(self, scorer: SpeedScorer) -> None:
        self.seen: list[Seen] = []
        self.simulation: Simulation | None = None
        self._random = Random()
        self._lif = {policy.name: policy for policy in least_interference(packaged_tables())}
        self._scorer = scorer
        self._encoder = PartEncoder(most_witnesses=WITNESSES)

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        proposal = self._random.propose(job, view, context)
        if proposal is not None:
            tokens = self._encoder.encode(job, [proposal.assignments], view)
            self._note(job, proposal.assignments, tokens, self._scorer.speeds(tokens)[0])
        return proposal

    def _note(self, job: Job, assignments: Sequence[Assignment], tokens: PartTokens, answer: np.ndarray) -> None:
        sim = self.simulation
        if sim is None:
            raise RuntimeError("the watcher is not attached to a simulation")
        new = sim.waiting[job.id]
        jobs = [new, *(sim.running[held.id].sim for held in tokens.neighbours)]
        reported = [0.0, *(reported_speed(held) for held in tokens.neighbours)]
        made = sim.speed.footprint(new, spots_of(assignments), sim.nodes)
        footprints = {**sim.footprints, new.id: made}
        before = [_used_by_others(footprints[other.id], sim.nodes) for other in jobs]
        for part in made.parts:
            sim.nodes[part.node].add(new.id, part)
        try:
            owner = tokens.job[0].tolist()
            for i, other in enumerate(jobs):
                at = footprints[other.id]
                true = sim.speed.rate(at, sim.nodes, footprints) / _linear(other)
                alone = at.samples_per_step / at.alone_step_s / _linear(other)
                after = _used_by_others(at, sim.nodes)
                found = self._by_lif(other.job.model, alone, reported[i], before[i], after)
                found["reward model"] = float(answer[owner.index(i)])
                found["as reported, no interference"] = reported[i] or 1.0
                found["undisturbed, no interference"] = alone
                found["noise"] = true if reported[i] else true / at.noise
                kind = "new" if i == 0 else "reported" if reported[i] else "unreported"
                self.seen.append(Seen(kind, true, found))
        finally:
            for part in made.parts:
                sim.nodes[part.node].remove(new.id)

    def _by_lif(self, model: str, alone: float, reported: float, before: Use, after: Use) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, policy in self._lif.items():
            slower = max(policy.slowdown(model, cpu, 0.0) for cpu in after)
            earlier = max(policy.slowdown(model, cpu, 0.0) for cpu in before)
            found[f"{name}, undisturbed"] = alone / slower
            found[f"{name}, as reported"] = reported * earlier / slower if reported else 1.0 / slower
        return found


def _linear(job: SimJob) -> float:
    """Linear speed in samples per second."""
    return linear_speed(job.job, workers_of(job.job)) * job.samples / job.job.total_epochs


def _used_by_others(made: Footprint, nodes: Mapping[str, NodeLoad]) -> Use:
    """The reading that is kindest to LIF: of the cores, the others' requests and use (no job reserves bandwidth)."""
    return tuple(_share(nodes[part.node], part, is_there=made.job.id in nodes[part.node].parts) for part in made.parts)


def _share(load: NodeLoad, part: Part, *, is_there: bool) -> float:
    own = min(part.cpu_requested, part.cpu_wanted) if is_there else 0.0
    return float(np.clip((load.cpu_requested - own) / load.spec.node.capacity.cpu_cores, 0.0, 1.0))


def watch(scorer: SpeedScorer, seed: int, jobs: int) -> list[Seen]:
    """The records of every start of one simulation."""
    truth = make_truth("judge", FIRST_SEED + seed)
    workload = HarmonyWorkload(jobs=jobs, pattern="uniform", per_interval=5.0)
    watcher = Watcher(scorer)
    options = SimOptions(discipline=Discipline(every_s=INTERVAL_S), reports_progress=True)
    made = workload.generate(truth, FIRST_SEED + seed)
    watcher.simulation = Simulation(harmony_cluster(), made, truth, watcher, options=options, seed=seed)
    watcher.simulation.run()
    return watcher.seen


def table(scorer: SpeedScorer, seeds: int, jobs: int) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    """kind → method → {"error", "within"} → mean and the half-width of its 95 % interval over seeds."""
    runs = [watch(scorer, seed, jobs) for seed in range(seeds)]
    found: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    for kind in KINDS:
        chosen = [[each for each in run if kind in ("all", each.kind)] for run in runs]
        chosen = [each for each in chosen if each]
        methods = chosen[0][0].predicted if chosen else ()
        found[kind] = {method: _figures(chosen, method) for method in methods}
    return found


def _figures(runs: Sequence[Sequence[Seen]], method: str) -> dict[str, dict[str, float]]:
    errors = [np.array([abs(each.predicted[method] / each.true - 1.0) for each in run]) for run in runs]
    figures = {"error": [float(e.mean()) for e in errors], "within": [float((e <= _WITHIN).mean()) for e in errors]}
    made = {name: estimate(values) for name, values in figures.items()}
    return {
        name: {"mean": each.mean, "ci95": each.half_width if each.count > 1 else 0.0} for name, each in made.items()
    }


def main(arguments: Sequence[str]) -> None:
    """Prints one Markdown table per kind of job, or one JSON object."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="reward.onnx")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=120)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(arguments)
    found = table(RewardRuntime.from_file(args.model), args.seeds, args.jobs)
    if args.json:
        json.dump(found, sys.stdout)
        return
    sys.stdout.write(markdown(found))


def markdown(found: Mapping[str, Mapping[str, Mapping[str, Mapping[str, float]]]]) -> str:
    """Rows: methods; columns: kinds of jobs, mean relative error and share within 10 %."""
    kinds = [kind for kind in KINDS if found.get(kind)]
    lines = [f"| predictor | {' | '.join(f'{kind}: error | within 10 %' for kind in kinds)} |"]
    lines.append("|---|" + "---|---|" * len(kinds))
    for method in found["all"]:
        cells = (_cell(found[kind][method][figure]) for kind in kinds for figure in ("error", "within"))
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(figure: Mapping[str, float]) -> str:
    return f"{100 * figure['mean']:.1f} ± {100 * figure['ci95']:.1f}"


if __name__ == "__main__":
    main(sys.argv[1:])
