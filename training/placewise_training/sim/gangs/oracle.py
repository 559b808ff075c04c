"""How well could one place, knowing the truth? The best of many placements by the simulator's own speed model.

A yardstick for headroom, never a policy of the service: no host knows the true speeds. It looks one job ahead
and knows no later arrivals, so that its gain is a lower bound of the possible gain.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from placewise_core.basics.arrays import BoolArray
from placewise_core.domain.cluster import Assignment
from placewise_core.domain.job import Job, NodeId, Role
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.gang import task_names
from placewise_core.gang.policy import PlacementPolicy, Proposal
from placewise_core.policies.registry import placement_policies
from placewise_core.view.view import CPU, MEMORY, ClusterView
from placewise_training.sim.gangs.engine import Simulation, spots_of
from placewise_training.sim.gangs.what_if import what_if

# What counts as best: least time lost by the new job and its neighbours together; or most growth of Harmony's reward
# (1), Σ c_n/e_n, over them, which the search maximises by its model. Neither is better in every pattern.
Objective = Literal["delay", "progress"]

# Tasks of one gang on one node: (node index, workers, parameter servers).
_Layout = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class _Free:
    """Free resources: cores, memory and GPUs per node, as lists that a draw may use up."""

    cores: list[float]
    memory: list[float]
    gpus: list[float]


class Oracle(PlacementPolicy):
    """A PlacementPolicy for gangs on whole GPUs: every heuristic's placement, and random ones up to `placements`.

    It plays in `simulation` alone. With `placements` 0 it chooses among the heuristics, as the search would with a
    perfect model. `more` propose, too, and `moves` single tasks are moved away from the best, one after the other, as
    long as that helps: on many nodes random placements are seldom good.
    """

    def __init__(
        self,
        simulation: Simulation,
        placements: int = 200,
        objective: Objective = "delay",
        *,
        more: Sequence[PlacementPolicy] = (),
        moves: int = 0,
    ) -> None:
        self.name = f"oracle-{placements}"
        self._placements = placements
        self._objective = objective
        self._moves = moves
        heuristics = (policy for policy in placement_policies().values() if policy.name != "random")
        self._proposers = (*heuristics, *more)
        self._simulation = simulation

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        """The best candidate; None only where neither a heuristic nor any draw fits."""
        found: dict[_Layout, tuple[Assignment, ...]] = {}
        for policy in self._proposers:
            proposal = policy.propose(job, view, context)
            if proposal is not None:
                found.setdefault(_layout_of(proposal.assignments, view), proposal.assignments)
        for _ in range(self._placements - len(self._proposers)):
            layout = _drawn(job, view, context.rng)
            if layout is not None and layout not in found:
                found[layout] = _assignments(job, layout, view)
        if not found:
            return None
        costs = {layout: self._cost(job, assignments) for layout, assignments in found.items()}
        best = min(costs, key=lambda layout: (costs[layout], len(layout), layout))
        return Proposal(self._climbed(job, best, found[best], costs[best], view, context.rng))

    def _climbed(
        self,
        job: Job,
        layout: _Layout,
        assignments: tuple[Assignment, ...],
        cost: float,
        view: ClusterView,
        rng: np.random.Generator,
    ) -> tuple[Assignment, ...]:
        """The placement after every move of one task that makes it cheaper."""
        for _ in range(self._moves if job.task_count > 1 else 0):
            moved = _moved(job, layout, view, rng)
            if moved is None:
                continue
            there = _assignments(job, moved, view)
            now = self._cost(job, there)
            if now < cost:
                layout, assignments, cost = moved, there, now
        return assignments

    def _cost(self, job: Job, assignments: tuple[Assignment, ...]) -> float:
        """Seconds the new job takes at the speed it would have, plus what its neighbours' ends move back; or minus the
        growth of Σ c_n/e_n per second."""
        simulation = self._simulation
        new = simulation.waiting[job.id]
        cost = 0.0
        for name, (before, after) in what_if(simulation, new, assignments).items():
            live = simulation.running.get(name)
            sim_job = new if live is None else live.sim
            if self._objective == "progress":
                cost -= (after - before) / sim_job.samples
            elif live is None:
                cost += (new.samples - new.samples_done) / after
            else:
                left = sim_job.samples - live.done_at(simulation.now_s)
                cost += left / after - left / before
        return cost


def _moved(job: Job, layout: _Layout, view: ClusterView, rng: np.random.Generator) -> _Layout | None:
    """The layout with a task drawn at random on another node with room for it, half of the time one that the gang
    uses; None if there is none."""
    demands = {group.role is not Role.WORKER: group.demand for group in job.groups}
    counts = {m: [workers, servers] for m, workers, servers in layout}
    tasks = [(m, kind) for m, held in counts.items() for kind in (0, 1) for _ in range(held[kind])]
    source, kind = tasks[int(rng.integers(len(tasks)))]
    d = demands[bool(kind)]
    taken = np.zeros((3, view.nodes.size))
    for m, held in counts.items():
        for each, count in enumerate(held):
            if count:
                of = demands[bool(each)]
                taken[:, m] += np.array([of.cpu_cores, of.memory_gib, of.gpus]) * count
    free = np.stack([view.usage.free[CPU], view.usage.free[MEMORY], view.usage.free_gpus]) - taken
    fits: BoolArray = np.asarray((free >= np.array([[d.cpu_cores], [d.memory_gib], [d.gpus]])).all(axis=0))
    fits[source] = False
    targets = np.flatnonzero(fits)
    used = [m for m in targets.tolist() if m in counts]
    pool = used if used and rng.random() < 0.5 else targets.tolist()
    if not pool:
        return None
    target = int(pool[int(rng.integers(len(pool)))])
    counts[source][kind] -= 1
    counts.setdefault(target, [0, 0])[kind] += 1
    return tuple(sorted((m, workers, servers) for m, (workers, servers) in counts.items() if workers or servers))


def _drawn(job: Job, view: ClusterView, rng: np.random.Generator) -> _Layout | None:
    """A random feasible placement: each task on any node with room, with a bias to nodes already used."""
    left = _Free(view.usage.free[CPU].tolist(), view.usage.free[MEMORY].tolist(), view.usage.free_gpus.tolist())
    stickiness = float(rng.random())
    counts: dict[int, list[int]] = {}
    for group, _ in task_names(job):
        d = group.demand
        fits = [
            m
            for m in range(view.nodes.size)
            if left.cores[m] >= d.cpu_cores and left.memory[m] >= d.memory_gib and left.gpus[m] >= d.gpus
        ]
        if not fits:
            return None
        used = [m for m in fits if m in counts]
        pool = used if used and rng.random() < stickiness else fits
        m = pool[int(rng.integers(len(pool)))]
        left.cores[m] -= d.cpu_cores
        left.memory[m] -= d.memory_gib
        left.gpus[m] -= d.gpus
        counts.setdefault(m, [0, 0])[group.role is not Role.WORKER] += 1
    return tuple(sorted((m, workers, servers) for m, (workers, servers) in counts.items()))


def _layout_of(assignments: Sequence[Assignment], view: ClusterView) -> _Layout:
    return tuple(sorted((view.nodes.index[s.node], s.workers, s.servers) for s in spots_of(assignments)))


def _assignments(job: Job, layout: _Layout, view: ClusterView) -> tuple[Assignment, ...]:
    """Tasks dealt out in the order of the request; each worker takes the free GPUs of lowest index."""
    slots = {
        Role.WORKER: [m for m, workers, _ in layout for _ in range(workers)],
        Role.PARAMETER_SERVER: [m for m, _, servers in layout for _ in range(servers)],
    }
    free = {m: list(view.usage.first_free_gpus(m, view.nodes.gpu_exists.shape[1])) for m, _, _ in layout}
    made = []
    for group, name in task_names(job):
        m = slots[group.role].pop(0)
        gpus = tuple(free[m].pop(0) for _ in range(round(group.demand.gpus)))
        made.append(Assignment(name, group.role, NodeId(view.nodes.records[m].id), gpus, demand=group.demand))
    return tuple(made)
