"""The Protocol of every placement policy, with its inputs and its proposal. Never claims anything lasting."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Protocol

from placewise_core.cluster import Assignment
from placewise_core.decision import Candidate
from placewise_core.frozen import frozen
from placewise_core.job import Job
from placewise_core.place.context import PlaceContext
from placewise_core.view import ClusterView


@frozen
class Proposal:
    """A full placement of one gang. `propensity`: probability with which this policy proposes exactly this."""

    assignments: tuple[Assignment, ...]
    propensity: float = 1.0
    candidates: tuple[Candidate, ...] = ()
    info: Mapping[str, float] = field(default_factory=dict)
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


class PreparingPolicy(PlacementPolicy, Protocol):
    """A policy that can do a part of its work on a view before a request: a net's encoding of a cluster, say."""

    def prepare(self, view: ClusterView, now_s: float) -> None:
        """To be called after the view has changed, when nobody waits. Decides nothing and raises nothing."""
        ...
