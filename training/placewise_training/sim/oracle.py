"""How well could one place, knowing the truth? A search over placements scored by the simulator's own speed model.

A yardstick for learned policies, never a policy of the service: no host can know what this one is told.
"""

from collections.abc import Sequence

from placewise_core.job import Job
from placewise_core.place.policy import PlaceContext, Proposal
from placewise_core.place.registry import placement_policies
from placewise_core.view import ClusterView
from placewise_training.sim.engine import Simulation

_SEEDS_OF_SEARCH = ("consolidate", "tetris", "load-balance", "bin-packing")  # starting points, before random ones


class OracleSearch:
    """The best of `placements` placements by Σ (rate after − rate before) / work over the new job and its neighbours:
    the growth of Harmony's reward (1) under the true speeds. `simulation` must be set before the first proposal.
    """

    def __init__(self, placements: int = 200) -> None:
        self.name = f"oracle-{placements}"
        self.simulation: Simulation | None = None
        self._placements = placements
        known = placement_policies()
        self._heuristics = [known[name] for name in _SEEDS_OF_SEARCH]
        self._random = known["random"]

    def order(self, jobs: Sequence[Job], view: ClusterView, context: PlaceContext) -> Sequence[Job]:
        return jobs

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        found: dict[tuple[str, ...], Proposal] = {}
        for heuristic in self._heuristics:
            _keep(found, heuristic.propose(job, view, context))
        for _ in range(self._placements - len(self._heuristics)):
            _keep(found, self._random.propose(job, view, context))
        if not found:
            return None
        return max(found.values(), key=lambda proposal: self._gain(job, proposal))

    def _gain(self, job: Job, proposal: Proposal) -> float:
        sim = self.simulation
        if sim is None:
            raise RuntimeError("an oracle needs the simulation whose truth it may look at")
        waiting = sim.waiting[job.id]
        work = {name: live.sim.samples for name, live in sim.running.items()}
        work[job.id] = waiting.samples
        changes = sim.what_if(waiting, proposal.assignments)
        return sum((after - before) / work[name] for name, (before, after) in changes.items())


def _keep(found: dict[tuple[str, ...], Proposal], proposal: Proposal | None) -> None:
    if proposal is not None:
        found.setdefault(tuple(f"{a.role}{a.node}" for a in proposal.assignments), proposal)
