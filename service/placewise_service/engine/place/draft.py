"""A Place decision before the store has agreed. Nothing here decides or changes anything."""

import math
from collections.abc import Collection, Mapping
from dataclasses import field

from placewise_core.basics.frozen import frozen
from placewise_core.domain.cluster import RunningJob
from placewise_core.domain.decision import JobDecision
from placewise_core.domain.job import JobId
from placewise_core.gang.policy import Proposal
from placewise_core.policies.explore import NONE, Exploration
from placewise_core.policies.studies.alternatives import Study
from placewise_core.speed.interference import GpuInterference, NoInterference
from placewise_core.view.view import ClusterView
from placewise_log.record import Choice, Draw
from placewise_service.engine.canary.arming import Arming
from placewise_service.engine.view_log.notes import Noted
from placewise_service.state.holdings import SeenNode


@frozen
class Terms:
    """What holds for all jobs of a request. `is_seeded`: by its caller. `is_observed`, `is_studied` and `is_shadowed`:
    whether the log has its observations, its alternatives and its shadow; `sample`: the jobs that may be studied after
    the answer. `arming`: of a cluster with a canary."""

    decision_id: str
    exploration: Exploration = NONE
    interference: GpuInterference = field(default_factory=NoInterference)
    is_seeded: bool = False
    is_observed: bool = False
    is_studied: bool = False
    is_shadowed: bool = False
    sample: Collection[JobId] = ()
    arming: Arming | None = None


@frozen
class PlacedGang:
    """A gang with its place, and the view that it was decided on."""

    running: RunningJob
    proposal: Proposal
    view: ClusterView


@frozen
class DecidedJob:
    """One job of a request. The answer is None until the speed of the `placed` gang is predicted. `is_standing`: the
    store or the view had the answer already. The store has to find these `tenants` and `nodes` as
    well, None for any."""

    job_id: JobId
    answer: JobDecision | None = None
    is_standing: bool = False
    placed: PlacedGang | None = None
    draw: Draw | None = None
    choice: Choice | None = None
    study: Study | None = None
    guard: str = ""
    tenants: Mapping[str, tuple[JobId, ...]] | None = None
    nodes: Mapping[str, SeenNode] | None = None


@frozen
class Draft:
    """The jobs of a request in the order in which they were decided. The last one may lack its answer: its speed is
    predicted while the store works."""

    terms: Terms
    version: int
    epoch: str
    now_s: float
    decided: tuple[DecidedJob, ...] = ()
    reads: tuple[Noted, ...] = ()

    @property
    def holds(self) -> list[RunningJob]:
        """The gangs to reserve."""
        return [job.placed.running for job in self.decided if job.placed is not None]

    @property
    def count(self) -> int:
        """Jobs, without those whose answer stood."""
        return len([job for job in self.decided if not job.is_standing])

    @property
    def propensity(self) -> float:
        """The product of the gangs' own."""
        return math.prod([job.placed.proposal.propensity for job in self.decided if job.placed is not None], start=1.0)

    @property
    def draws(self) -> tuple[Draw, ...]:
        """Of the jobs that were placed."""
        return tuple([job.draw for job in self.decided if job.draw is not None])

    @property
    def choices(self) -> tuple[Choice, ...]:
        """Of an observed request."""
        return tuple([job.choice for job in self.decided if job.choice is not None])

    @property
    def studies(self) -> list[Study]:
        """Of the jobs whose inputs were copied."""
        return [job.study for job in self.decided if job.study is not None]

    @property
    def guards(self) -> dict[str, str]:
        """Verdicts for jobs that found no place."""
        return {job.job_id: job.guard for job in self.decided if job.guard}

    @property
    def tenants(self) -> dict[str, tuple[JobId, ...]]:
        """Of the GPUs that the gangs share."""
        return {gpu: tenants for job in self.decided for gpu, tenants in (job.tenants or {}).items()}

    @property
    def nodes(self) -> dict[str, SeenNode]:
        """Of the gangs that want their network alone."""
        return {name: node for job in self.decided for name, node in (job.nodes or {}).items()}
