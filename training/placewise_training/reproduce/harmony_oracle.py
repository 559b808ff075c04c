"""An oracle for headroom: the best of 200 placements on the true speeds, which no policy may know. Never deployable.

Per job, the proposals of the service's heuristics and random feasible placements are tried on the simulator's own speed
model, and the one taken under which the new job and its neighbours together lose least time: Σ (work left / speed),
the new job's included, its neighbours' as it grows. It looks one job ahead; it knows no later arrivals.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from placewise_core.cluster import Assignment
from placewise_core.job import Job, NodeId, Role
from placewise_core.place.decode import task_names
from placewise_core.place.policy import PlaceContext, PlacementPolicy, Proposal
from placewise_core.place.registry import placement_policies
from placewise_core.view import CPU, MEMORY, ClusterView
from placewise_training.sim.engine import Simulation, spots_of
from placewise_training.sim.speed.base import Spot

# Tasks of one gang on one node: (node index, workers, parameter servers).
_Layout = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class _Room:
    """What is free: cores, memory and GPUs per node, as lists that a draw may use up."""

    cores: list[float]
    memory: list[float]
    gpus: list[float]


class OracleSearch:
    """A PlacementPolicy. `attach` it to the simulation it plays in before that runs."""

    def __init__(self, candidates: int = 200, *, name: str = "oracle") -> None:
        self.name = name
        self._candidates = candidates
        self._heuristics: tuple[PlacementPolicy, ...] = tuple(
            policy for policy in placement_policies().values() if policy.name != "random"
        )
        self._simulation: Simulation | None = None

    def attach(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def _attached(self) -> Simulation:
        if self._simulation is None:
            raise RuntimeError("the oracle is not attached to a simulation")
        return self._simulation

    def order(self, jobs: Sequence[Job], view: ClusterView, context: PlaceContext) -> Sequence[Job]:
        return jobs

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        """The best candidate; None only where neither a heuristic nor any draw finds room."""
        self._attached().refresh()  # jobs started in this same round slow each other down already
        found: dict[_Layout, tuple[Assignment, ...]] = {}
        for policy in self._heuristics:
            proposal = policy.propose(job, view, context)
            if proposal is not None:
                found.setdefault(_layout_of(proposal.assignments, view), proposal.assignments)
        for _ in range(self._candidates - len(self._heuristics)):
            layout = self._draw(job, view, context.rng)
            if layout is not None and layout not in found:
                found[layout] = _assignments(job, layout, view)
        if not found:
            return None
        costs = {layout: self._cost_s(job, assignments) for layout, assignments in found.items()}
        return Proposal(found[min(costs, key=lambda layout: (costs[layout], len(layout), layout))])

    def _draw(self, job: Job, view: ClusterView, rng: np.random.Generator) -> _Layout | None:
        """A random feasible placement: each task on any node with room, with a bias to nodes already used."""
        room = _Room(view.free[CPU].tolist(), view.free[MEMORY].tolist(), view.free_gpus().tolist())
        stickiness = float(rng.random())
        counts: dict[int, list[int]] = {}
        for group, _ in task_names(job):
            d = group.demand
            fits = [
                m
                for m in range(view.size)
                if room.cores[m] >= d.cpu_cores and room.memory[m] >= d.memory_gib and room.gpus[m] >= d.gpus
            ]
            if not fits:
                return None
            used = [m for m in fits if m in counts]
            pool = used if used and rng.random() < stickiness else fits
            m = pool[int(rng.integers(len(pool)))]
            room.cores[m] -= d.cpu_cores
            room.memory[m] -= d.memory_gib
            room.gpus[m] -= d.gpus
            counts.setdefault(m, [0, 0])[group.role is not Role.WORKER] += 1
        return tuple(sorted((m, workers, servers) for m, (workers, servers) in counts.items()))

    def _cost_s(self, job: Job, assignments: tuple[Assignment, ...]) -> float:
        """Seconds the new job takes at the speed it would have, plus what its neighbours' ends move back."""
        simulation = self._attached()
        new = simulation.waiting[job.id]
        spots: list[Spot] = spots_of(assignments)
        footprint = simulation.speed.footprint(new, spots, simulation.nodes)
        loads = [simulation.nodes[part.node] for part in footprint.parts]
        neighbours = {other for load in loads for other in load.parts}
        for load, part in zip(loads, footprint.parts, strict=True):
            load.add(job.id, part)
        try:
            cost_s = (new.samples - new.samples_done) / simulation.speed.rate(
                footprint, simulation.nodes, {**simulation.footprints, job.id: footprint}
            )
            for other in neighbours:
                cost_s += self._delay_s(simulation, other)
        finally:
            for load in loads:
                load.remove(job.id)
        return cost_s

    def _delay_s(self, simulation: Simulation, other: str) -> float:
        """By how much later than at its present speed a neighbour ends."""
        live = simulation.running[other]
        left = live.sim.samples - live.done - live.rate * (simulation.now_s - live.settled_s)
        after = simulation.speed.rate(live.footprint, simulation.nodes, simulation.footprints)
        return left / after - left / live.rate


def _layout_of(assignments: Sequence[Assignment], view: ClusterView) -> _Layout:
    return tuple(sorted((view.index[s.node], s.workers, s.servers) for s in spots_of(assignments)))


def _assignments(job: Job, layout: _Layout, view: ClusterView) -> tuple[Assignment, ...]:
    """Tasks dealt out in the order of the request; each worker takes the free GPUs of lowest index."""
    slots = {
        Role.WORKER: [m for m, workers, _ in layout for _ in range(workers)],
        Role.PARAMETER_SERVER: [m for m, _, servers in layout for _ in range(servers)],
    }
    free = {m: _free_gpus(view, m) for m, _, _ in layout}
    made = []
    for group, name in task_names(job):
        m = slots[group.role].pop(0)
        gpus = tuple(free[m].pop(0) for _ in range(round(group.demand.gpus)))
        made.append(Assignment(name, group.role, NodeId(view.node_id(m)), gpus, demand=group.demand))
    return tuple(made)


def _free_gpus(view: ClusterView, m: int) -> list[int]:
    return [g for g in range(view.gpu_exists.shape[1]) if view.gpu_exists[m, g] and not view.tenants(m, g)]
