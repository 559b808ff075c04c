"""Logs of the simulator, whose estimand is known: the simulation is run again with one decision of the candidate and
all others of the logging policy, with the same random numbers.

The logging policy mixes the policy in force and the candidate, so that each decision has two placements at most. The
truth decides how fast jobs run; the reward is `reward_h`, as `joined` has it.
"""

import math
import zlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np

from placewise_core.basics.arrays import FloatArray
from placewise_core.domain.job import Job
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.policy import PlacementPolicy, Proposal, action_of
from placewise_core.view.view import GPUS, ClusterView
from placewise_training.evaluate.decisions import LoggedDecisions, Options
from placewise_training.evaluate.stretches import blocks_of
from placewise_training.evaluate.usual import Question, Stay, growths_of
from placewise_training.sim.gangs.engine import SimOptions, Simulation
from placewise_training.sim.hardware import harmony_cluster
from placewise_training.sim.jobs import SimJob
from placewise_training.sim.policies import placement_policy, shipped
from placewise_training.sim.truths import make_truth
from placewise_training.sim.workloads import HarmonyWorkload

OWN, CANDIDATE = 0, 1


@dataclass(frozen=True, slots=True)
class Site:
    """A cluster that is logged: two policies, the share of the candidate, its load and the reward's horizon."""

    own: str = "consolidate"
    candidate: str = "load-balance"
    rate: float = 0.5
    jobs: int = 300
    nodes: int = 6
    truth: str = "site"
    horizon_s: float = 1200.0
    block_s: float = 3600.0


@dataclass(frozen=True, slots=True)
class _SimulatedDecision:
    """One decision: which policy placed the job, whether both gave one placement, (2, F) features of the two and
    their nodes."""

    job: Job
    time_s: float
    turn: int
    is_same: bool
    features: FloatArray
    nodes: frozenset[str]


class Mixed(PlacementPolicy):
    """Draws once for each job, by the job's name, whether the candidate places it. `forced` says it for some jobs."""

    name = "mixed"

    def __init__(self, site: Site, seed: int, forced: Mapping[str, int] | None = None) -> None:
        bundle = shipped()
        self._policies = placement_policy(site.own, bundle), placement_policy(site.candidate, bundle)
        self._rate, self._seed, self._forced = site.rate, seed, forced or {}
        self.asked: dict[str, _SimulatedDecision] = {}

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        given = [policy.propose(job, view, context) for policy in self._policies]
        own, candidate = (one or other for one, other in zip(given, reversed(given), strict=True))
        if own is None or candidate is None:
            return None
        rng = np.random.default_rng((self._seed, zlib.crc32(job.id.encode())))
        turn = self._forced.get(job.id, CANDIDATE if rng.random() < self._rate else OWN)
        both = (own, candidate)
        is_same = action_of(own.assignments) == action_of(candidate.assignments)
        rows = np.array([_features(job, one, view) for one in both])
        nodes = frozenset(each.node for one in both for each in one.assignments)
        self.asked[job.id] = _SimulatedDecision(job, context.now_s, turn, is_same, rows, nodes)
        return both[turn]


@dataclass(slots=True)
class _JobProgress:
    """A job's nodes, and (time, work done, work per second) from each change of its speed on. Work is 1 in all."""

    nodes: frozenset[str]
    points: list[tuple[float, float, float]] = field(default_factory=list)
    end_s: float = float("inf")

    @property
    def start_s(self) -> float:
        return self.points[0][0]

    def done_at(self, time_s: float) -> float:
        if time_s >= self.end_s:
            return 1.0
        at = bisect_right(self.points, time_s, key=lambda point: point[0]) - 1
        since_s, done, rate = self.points[max(at, 0)]
        return done + rate * max(0.0, time_s - since_s)


def played(
    site: Site, seed: int, forced: Mapping[str, int] | None = None, until: str = ""
) -> tuple[Mixed, dict[str, _JobProgress]]:
    """One simulation and the runs of its jobs; with `until`, no further than that job's horizon."""
    truth = make_truth(site.truth, seed)
    policy, runs = Mixed(site, seed, forced), dict[str, _JobProgress]()
    versions: dict[str, int] = {}

    def note_event(now_s: float, what: str, job: SimJob, places: tuple[str, ...]) -> None:
        if what == "finish":
            runs[job.id].end_s = now_s
        elif what == "start":
            runs[job.id] = _JobProgress(frozenset(places), [(now_s, 0.0, 0.0)])

    jobs = HarmonyWorkload(jobs=site.jobs).generate(truth, seed)
    options = SimOptions(observers=(note_event,))
    simulation = Simulation(harmony_cluster(site.nodes), jobs, truth, policy, options=options, seed=seed)
    while len(simulation.events):
        if until in runs and simulation.events.next_time_s > runs[until].start_s + site.horizon_s:
            break
        simulation.run_until(simulation.events.next_time_s)
        for name, live in simulation.running.items():
            if versions.get(name) != live.version:
                versions[name] = live.version
                work = live.sim.samples
                runs[name].points.append((live.settled_s, live.done / work, live.rate / work))
    return policy, runs


def reward_of(job_id: str, runs: Mapping[str, _JobProgress], nodes: Set[str], horizon_s: float) -> float:
    """Σ (c_n / e_n) over `horizon_s` from its start, of the job and of those that ran on one of `nodes` by then. `runs`
    are in the order of their decisions, `nodes` those of any placement that the job could have had."""
    run = runs[job_id]
    earlier = takewhile(lambda other: other is not run, runs.values())
    neighbours = (other for other in earlier if other.end_s > run.start_s and not nodes.isdisjoint(other.nodes))
    until_s = run.start_s + horizon_s
    return sum(each.done_at(until_s) - each.done_at(run.start_s) for each in (run, *neighbours))


def simulated_log(site: Site, seed: int) -> tuple[LoggedDecisions, Sequence[str]]:
    """A log, and the names of its jobs. Jobs whose horizon reaches beyond the last arrival are left out: the cluster
    runs empty then."""
    policy, runs = played(site, seed)
    last_s = max(run.start_s for run in runs.values())
    names = [name for name, run in runs.items() if run.start_s + site.horizon_s <= last_s]
    asked = [policy.asked[name] for name in names]
    turn = np.array([one.turn for one in asked])
    is_same = np.array([one.is_same for one in asked])
    # Each decision has both placements; of two equal ones only the first has probability.
    chosen = np.where(is_same, OWN, turn)
    propensity = np.where(is_same[:, None], [1.0, 0.0], [1.0 - site.rate, site.rate])
    candidate = np.where(is_same[:, None], [1.0, 0.0], [0.0, 1.0])
    own = np.tile([1.0, 0.0], (len(names), 1))
    before = _before(asked, [runs[one.job.id] for one in asked], site.horizon_s)
    features = np.stack(
        [np.hstack([np.tile(known, (2, 1)), one.features]) for one, known in zip(asked, before, strict=True)]
    )
    each = np.arange(len(names))
    options = Options(
        np.repeat(each, 2), candidate.ravel(), own.ravel(), propensity.ravel(), features.reshape(2 * len(names), -1)
    )
    log = LoggedDecisions(
        np.array([reward_of(name, runs, policy.asked[name].nodes, site.horizon_s) for name in names]),
        propensity[each, chosen],
        candidate[each, chosen],
        own[each, chosen],
        blocks_of(np.array([runs[name].start_s for name in names]), site.block_s),
        features[each, chosen],
        options,
    )
    return log, names


def _before(asked: Sequence[_SimulatedDecision], runs: Sequence[_JobProgress], horizon_s: float) -> FloatArray:
    """(N, 3) as the gate's forecast has it."""
    stays = [
        Stay("", one.job, one.time_s, run.start_s, run.end_s, run.end_s < math.inf, tuple(run.nodes))
        for one, run in zip(asked, runs, strict=True)
    ]
    return growths_of(stays, [Question("", one.job, one.time_s, one.nodes) for one in asked], horizon_s)


def branched(site: Site, seed: int, job_id: str) -> tuple[float, float]:
    """(reward by the policy in force, reward by the candidate) of one decision of a log, all others as logged."""
    own, candidate = (_earned(site, seed, job_id, turn) for turn in (OWN, CANDIDATE))
    return own, candidate


def _earned(site: Site, seed: int, job_id: str, turn: int) -> float:
    policy, runs = played(site, seed, {job_id: turn}, until=job_id)
    return reward_of(job_id, runs, policy.asked[job_id].nodes, site.horizon_s)


def _features(job: Job, proposal: Proposal, view: ClusterView) -> list[float]:
    """Tasks, nodes used, jobs beside it, and idle GPUs of the cluster."""
    nodes = {assignment.node for assignment in proposal.assignments}
    beside = {name for node in nodes for name in view.usage.jobs_on(view.nodes.index[node])}
    idle = float(view.usage.free[GPUS].sum())
    return [float(len(proposal.assignments)), float(len(nodes)), float(len(beside)), idle]
