"""Good placements in hindsight: many placements of one gang, costed, as targets for the policy net.

Candidates are the heuristics' placements, random ones, and moves of single tasks of the best so far. Their cost is
time: how long the new job would run, and by how much its neighbours' ends move back, each second priced by the GPUs it
holds, because a GPU that is held longer keeps the queue waiting. Speeds come from the simulation's own truth (`train`
when it trains) or from the reward model. Never asked at serving time, and never shown the judge's truth by a trainer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placewise_core.basics.arrays import Float32, FloatArray
from placewise_core.domain.cluster import Assignment
from placewise_core.domain.job import Job, NodeId, Role
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.gang import task_names
from placewise_core.gang.policy import PlacementPolicy
from placewise_core.inputs.reward import PADDING, PartEncoder
from placewise_core.policies.registry import placement_policies
from placewise_core.policies.search import SpeedScorer
from placewise_core.speed.linear_speed import linear_speed, workers_of
from placewise_core.view.view import CPU, MEMORY, ClusterView
from placewise_training.sim.gangs.engine import Simulation
from placewise_training.sim.speed.base import Spot

PROPOSERS = ("consolidate", "tetris", "load-balance", "lif-quadratic", "bin-packing", "tiresias")
_MOVES = 16  # tried around the best candidate: what neither a rule nor a draw found is often one move away

# Tasks of one gang: (node index, workers, parameter servers), ascending.
Layout = tuple[tuple[int, int, int], ...]
Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Lesson:
    """K candidates of one gang. counts (K, 2, M): workers and servers per node · costs (K,) seconds · `best` is the
    cheapest · `run_s` the job's run time there · `scale_s` the unit of a cost difference."""

    counts: Counts
    costs: FloatArray
    run_s: float
    scale_s: float

    @classmethod
    def of(cls, counts: Counts) -> "Lesson":
        """Of one placement (2, M) alone."""
        return cls(counts[None], np.zeros(1), 1.0, 1.0)

    @property
    def best(self) -> int:
        return int(self.costs.argmin())

    def targets(self, placed: Counts, mask: NDArray[np.bool_], temperature: float) -> Float32:
        """(2M,) how good each next action is after `placed` (2, M), as a distribution over the mask: e to the power of
        −(cost of the best candidate that goes on so − cost of the best that goes on at all) / (temperature × scale).
        Zeros if no candidate goes on from here."""
        goes_on: NDArray[np.bool_] = np.asarray((self.counts >= placed).all(axis=(1, 2)))
        adds = goes_on[:, None, None] & (self.counts > placed)
        costs = np.where(adds, self.costs[:, None, None], np.inf).min(axis=0).reshape(-1)  # (2M,)
        costs[~mask] = np.inf
        least = costs.min()
        if not np.isfinite(least):
            return np.zeros(len(costs), dtype=np.float32)
        odds = np.exp(-(costs - least) / (temperature * self.scale_s))
        return np.asarray(odds / odds.sum(), dtype=np.float32)


class Teacher:
    """`attach` it to the simulation it looks at. `scorer` None means the simulation's own truth; with a scorer it may
    look at the views of a log instead."""

    def __init__(
        self, rng: np.random.Generator, draws: int = 16, price: float = 0.5, scorer: SpeedScorer | None = None
    ):
        self._rng = rng
        self._draws = draws
        self._price = price
        self._scorer = scorer
        self._encoder = PartEncoder()
        self._proposers: list[PlacementPolicy] = [placement_policies()[name] for name in PROPOSERS]
        self._simulation: Simulation | None = None

    def attach(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def lesson(
        self, job: Job, view: ClusterView, context: PlaceContext, extra: Sequence[Sequence[Assignment]] = ()
    ) -> Lesson | None:
        """Candidates with their costs; None if none was found. `extra` are placements to look at as well."""
        if self._simulation is not None:
            self._simulation.refresh()  # jobs started in this same round slow each other down already
        found = dict.fromkeys(_layout(placement, view) for placement in extra)
        for policy in self._proposers:
            proposal = policy.propose(job, view, context)
            if proposal is not None:
                found[_layout(proposal.assignments, view)] = None
        for _ in range(self._draws if job.task_count > 1 else 4):
            layout = self._draw(job, view)
            if layout is not None:
                found[layout] = None
        if not found:
            return None
        costs = dict(zip(found, self._costs(job, list(found), view), strict=True))
        best = min(costs, key=lambda layout: costs[layout][0])
        moved = [layout for layout in self._moves(job, best, view) if layout not in costs]
        costs |= zip(moved, self._costs(job, moved, view), strict=True)
        counts = np.zeros((len(costs), 2, view.nodes.size), dtype=np.int64)
        for k, layout in enumerate(costs):
            for m, workers, servers in layout:
                counts[k, :, m] = workers, servers
        totals = np.array([total for total, _ in costs.values()])
        run_s = list(costs.values())[int(totals.argmin())][1]
        return Lesson(counts, totals, run_s, run_s * self._priced(job))

    def _draw(self, job: Job, view: ClusterView) -> Layout | None:
        """Each task on any node with room, with a bias, itself drawn, to nodes that the gang uses already."""
        free = _Free.of(view)
        stickiness = float(self._rng.random())
        counts: dict[int, list[int]] = {}
        for group, _ in task_names(job):
            fits = np.flatnonzero(
                free.fits(group.demand.cpu_cores, group.demand.memory_gib, group.demand.gpus)
            ).tolist()
            if not fits:
                return None
            used = [m for m in fits if m in counts]
            pool = used if used and self._rng.random() < stickiness else fits
            m = pool[int(self._rng.integers(len(pool)))]
            free.take(m, group.demand.cpu_cores, group.demand.memory_gib, group.demand.gpus)
            counts.setdefault(m, [0, 0])[group.role is not Role.WORKER] += 1
        return tuple(sorted((m, workers, servers) for m, (workers, servers) in counts.items()))

    def _moves(self, job: Job, layout: Layout, view: ClusterView) -> list[Layout]:
        """The layout with one task elsewhere; a sample of them if there are many."""
        demand = {group.role: group.demand for group in job.groups}
        free = _Free.of(view)
        counts = {m: (workers, servers) for m, workers, servers in layout}
        for m, pair in counts.items():
            for role, count in zip((Role.WORKER, Role.PARAMETER_SERVER), pair, strict=True):
                if count:
                    d = demand[role]
                    free.take(m, count * d.cpu_cores, count * d.memory_gib, count * d.gpus)
        moved: list[Layout] = []
        for m, pair in counts.items():
            for i, role in enumerate((Role.WORKER, Role.PARAMETER_SERVER)):
                if not pair[i]:
                    continue
                d = demand[role]
                for to in np.flatnonzero(free.fits(d.cpu_cores, d.memory_gib, d.gpus)).tolist():
                    if to != m:
                        moved.append(_moved(counts, m, to, i))
        self._rng.shuffle(moved)
        return moved[:_MOVES]

    def _priced(self, job: Job) -> float:
        """The cost of a second of the job: its own, and a price for each GPU it holds."""
        return 1.0 + self._price * job.gpus

    def _costs(self, job: Job, layouts: Sequence[Layout], view: ClusterView) -> list[tuple[float, float]]:
        """(cost, seconds the job itself would run) per layout."""
        if self._scorer is not None and layouts:
            return self._predicted_costs(job, layouts, view, self._scorer)
        return [self._true_cost(job, layout, view) for layout in layouts]

    def _true_cost(self, job: Job, layout: Layout, view: ClusterView) -> tuple[float, float]:
        sim = self._simulation
        assert sim is not None
        new = sim.waiting[job.id]
        spots = [Spot(view.nodes.records[m].id, workers, servers, ()) for m, workers, servers in layout]
        footprint = sim.speed.footprint(new, spots, sim.nodes)
        loads = [sim.nodes[part.node] for part in footprint.parts]
        neighbours = dict.fromkeys(other for load in loads for other in load.parts)
        for load, part in zip(loads, footprint.parts, strict=True):
            load.add(job.id, part)
        try:
            rate = sim.speed.rate(footprint, sim.nodes, sim.footprints)
            run_s = (new.samples - new.samples_done) / rate
            delays = [self._priced(sim.running[other].sim.job) * _delay_s(sim, other) for other in neighbours]
        finally:
            for load in loads:
                load.remove(job.id)
        return self._priced(job) * run_s + sum(delays), run_s

    def _predicted_costs(
        self, job: Job, layouts: Sequence[Layout], view: ClusterView, scorer: SpeedScorer
    ) -> list[tuple[float, float]]:
        """The same by the reward model: Σ price × work left / predicted speed over the new job and its neighbours."""
        tokens = self._encoder.encode(job, [_assignments(job, layout, view) for layout in layouts], view)
        speeds = np.maximum(scorer.speeds(tokens), 1e-3)  # (K, P)
        jobs = (job, *(held.job for held in tokens.neighbours))
        left = [1.0, *(_left(held.epochs_done, held.job) for held in tokens.neighbours)]
        work_s = [other.single_gpu_s / workers_of(other) * share for other, share in zip(jobs, left, strict=True)]
        costs = []
        for k in range(len(layouts)):
            of_job = {int(j): float(s) for j, s in zip(tokens.job[k], speeds[k], strict=True) if j != PADDING}
            total = sum(self._priced(jobs[j]) * work_s[j] / speed for j, speed in of_job.items())
            costs.append((total, work_s[0] / of_job[0]))
        return costs


@dataclass(slots=True)
class _Free:
    """Free resources per node: cores, memory, whole GPUs (M,)."""

    cores: FloatArray
    memory: FloatArray
    gpus: FloatArray

    @classmethod
    def of(cls, view: ClusterView) -> "_Free":
        return cls(
            view.usage.free[CPU].copy(),
            view.usage.free[MEMORY].copy(),
            np.array(view.usage.free_gpus, dtype=np.float64),
        )

    def fits(self, cores: float, memory: float, gpus: float) -> NDArray[np.bool_]:
        return np.asarray((self.cores >= cores) & (self.memory >= memory) & (self.gpus >= gpus))

    def take(self, m: int, cores: float, memory: float, gpus: float) -> None:
        self.cores[m] -= cores
        self.memory[m] -= memory
        self.gpus[m] -= gpus


def _delay_s(sim: Simulation, other: str) -> float:
    """By how much later than at its present speed a neighbour ends."""
    live = sim.running[other]
    left = live.sim.samples - live.done - live.rate * (sim.now_s - live.settled_s)
    return left / sim.speed.rate(live.footprint, sim.nodes, sim.footprints) - left / live.rate


def _left(epochs_done: float, job: Job) -> float:
    return max(0.0, 1.0 - epochs_done / job.total_epochs) if linear_speed(job, 1) > 0 else 1.0


def _layout(placement: Sequence[Assignment], view: ClusterView) -> Layout:
    counts: dict[int, list[int]] = {}
    for task in placement:
        counts.setdefault(view.nodes.index[task.node], [0, 0])[task.role is not Role.WORKER] += 1
    return tuple(sorted((m, workers, servers) for m, (workers, servers) in counts.items()))


def _moved(counts: Mapping[int, tuple[int, int]], m: int, to: int, role: int) -> Layout:
    changed = {node: list(pair) for node, pair in counts.items()}
    changed[m][role] -= 1
    changed.setdefault(to, [0, 0])[role] += 1
    return tuple(sorted((node, pair[0], pair[1]) for node, pair in changed.items() if any(pair)))


def _assignments(job: Job, layout: Layout, view: ClusterView) -> list[Assignment]:
    """Tasks dealt out in the order of the request; which GPUs of a node it is does not matter to a prediction."""
    slots = {
        Role.WORKER: [m for m, workers, _ in layout for _ in range(workers)],
        Role.PARAMETER_SERVER: [m for m, _, servers in layout for _ in range(servers)],
    }
    return [
        Assignment(
            name,
            group.role,
            NodeId(view.nodes.records[slots[group.role].pop(0)].id),
            tuple(range(round(group.demand.gpus))),
            demand=group.demand,
        )
        for group, name in task_names(job)
    ]
