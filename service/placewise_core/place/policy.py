"""The Protocol of every placement policy, and what a policy is given and gives back. Never claims anything lasting."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from placewise_core.cluster import Assignment
from placewise_core.decision import Candidate
from placewise_core.frozen import frozen
from placewise_core.job import GpuSharing, Job, TaskGroup
from placewise_core.slices import ONE_SLICE, Slices
from placewise_core.speed.interference import GpuInterference, NoInterference
from placewise_core.view import BoolArray, ClusterView, FloatArray


@dataclass(slots=True)
class PlaceContext:
    """What one decision may use besides the view.

    `deadline_s` is a reading of `Clock.monotonic_s`; a policy that searches stops before it. `is_explaining` asks for
    candidates with their score terms. `randomness` is a generator or its seed: most decisions draw nothing, and
    building a generator costs more than scoring thirty nodes. `slices` may be other than one only where the view is the
    decision's own.
    """

    now_s: float
    randomness: np.random.Generator | int
    deadline_s: float = float("inf")
    is_explaining: bool = False
    interference: GpuInterference = field(default_factory=NoInterference)
    slices: Slices = ONE_SLICE

    @property
    def rng(self) -> np.random.Generator:
        """Seeded by the request, so that a decision can be repeated."""
        if isinstance(self.randomness, int):
            self.randomness = np.random.default_rng(self.randomness)
        return self.randomness


@dataclass(slots=True)
class TaskContext:
    """One task of a gang about to be given a node, after `placed` tasks of the same job were tentatively claimed.

    `mask` (M,) marks the nodes it may go to; `demand` is (R,), `gpus` its GPUs counted whole. `is_plain`: as
    ClusterView.is_plain says of it.
    `rooms` (M,): its plain rooms, for scorers that count rooms; None for others, and where it is not plain.
    """

    job: Job
    group: TaskGroup
    task: str
    demand: FloatArray
    gpus: int
    sharing: GpuSharing
    mask: BoolArray
    view: ClusterView
    placed: Sequence[tuple[TaskGroup, int]]  # (group, node index) of the gang's earlier tasks
    remaining: int  # tasks of the gang still to place, this one included
    context: PlaceContext
    is_plain: bool
    rooms: FloatArray | None = None


@frozen
class Proposal:
    """A full placement of one gang. `propensity`: probability with which this policy proposes exactly this."""

    assignments: tuple[Assignment, ...]
    propensity: float = 1.0
    candidates: tuple[Candidate, ...] = ()
    info: Mapping[str, float] = field(default_factory=dict)
    is_claimed: bool = False  # the gang is on the view already: see ClaimingPolicy
    is_fallback: bool = False
    fallback_reason: str = ""


class PlacementPolicy(Protocol):
    """Chooses nodes and GPUs for one gang.

    Pure: the view is as it was when `propose` returns. Equal inputs and an equally seeded `rng` give equal output.
    Raises nothing for a job that does not fit: it returns None (place/why.py then finds out why).
    """

    name: str

    def order(self, jobs: Sequence[Job], view: ClusterView, context: PlaceContext) -> Sequence[Job]:
        """The order in which the jobs of one request are placed."""
        ...

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        """A placement of the whole gang, or None."""
        ...


class ClaimingPolicy(PlacementPolicy, Protocol):
    """A policy that can leave what it proposes claimed on the view, for a caller that is going to hold it: claiming
    anew costs as much as deciding."""

    def claim(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        """As `propose`, but the view has the gang's claims on return; the caller holds them or gives them back."""
        ...


class PreparingPolicy(PlacementPolicy, Protocol):
    """A policy that can do a part of its work on a view before anybody asks: what a net makes of a cluster, say."""

    def prepare(self, view: ClusterView, now_s: float) -> None:
        """To be called after the view has changed, when nobody waits. Decides nothing and raises nothing."""
        ...


class NodeScorer(Protocol):
    """The usual way to write a policy: score every node for one task; decode.py does the rest."""

    def scores(self, task: TaskContext) -> FloatArray:
        """(M,) higher is better; entries outside `task.mask` are ignored. Ties go to the lowest node index."""
        ...

    def terms(self, task: TaskContext, m: int) -> tuple[tuple[str, float], ...]:
        """The named parts of node m's score, for explain."""
        ...


class FillingScorer(NodeScorer, Protocol):
    """A scorer that gives the next task of a gang the node of the last one for as long as that takes it: so many tasks
    are then decided, and claimed, in one step, and without scores. With `counts_rooms` it is told `rooms`."""

    fills_nodes: bool
    counts_rooms: bool
