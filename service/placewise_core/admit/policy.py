"""The Protocol of every admission policy, and its inputs. Never touches the state of a queue itself."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from placewise_core.admit.seen import ShapeNotes
from placewise_core.basics.frozen import frozen
from placewise_core.basics.slices import ONE_SLICE, Slices
from placewise_core.domain.cluster import ClusterSettings, ExplorationGuard, QueueSettings, QueueState
from placewise_core.domain.decision import AdmitPlan
from placewise_core.domain.job import Job
from placewise_core.view.view import ClusterView


@frozen
class AdmitExploration:
    """How a queue's admissions are explored (exploring.py): ε and the guard. `is_seeded`: the draws are those of the
    request's seed, else each job has its own in the slot."""

    rate: float = 0.0
    guard: ExplorationGuard = ExplorationGuard()
    is_seeded: bool = False


NOT_EXPLORED = AdmitExploration()


def exploration_of(settings: ClusterSettings, seed: int | None) -> AdmitExploration:
    """How a cluster explores a request with this seed of its caller's, if any."""
    if not settings.admit_exploration_rate:
        return NOT_EXPLORED
    return AdmitExploration(settings.admit_exploration_rate, settings.exploration_guard, is_seeded=seed is not None)


def slot_of(queue: QueueState, now_s: float, settings: QueueSettings) -> int:
    """The present slot, which is never before the queue's."""
    return max(queue.slot, math.floor(now_s / settings.slot_s))


@dataclass(slots=True)
class AdmitContext:
    """Inputs of one admission besides jobs and view. `slot` = ⌊now / slot length⌋, never less than the state's.
    `slices` may be other than one only if the view is the request's own. `starts_only`: the caller reads the jobs that
    start with shape and rank, so a plan may leave out all else. A policy leaves in `noted`, if that is given, its
    knowledge of each job's shapes. In `same_until_s` it may note, if none starts, before which point in time none of
    these jobs will, as long as the view and the other queues' heads stay as they are."""

    now_s: float
    slot: int
    settings: QueueSettings
    randomness: np.random.Generator | int
    is_explaining: bool = False
    slices: Slices = ONE_SLICE
    starts_only: bool = False
    exploration: AdmitExploration = NOT_EXPLORED
    noted: ShapeNotes | None = None
    same_until_s: float = -math.inf

    @property
    def rng(self) -> np.random.Generator:
        """Built from its seed at the first draw (see PlaceContext)."""
        if isinstance(self.randomness, int):
            self.randomness = np.random.default_rng(self.randomness)
        return self.randomness


class AdmissionPolicy(Protocol):
    """Says ADMIT or WAIT for every job of a queue, with the shape of those admitted. Policies derive from it, and state
    what differs from the usual.

    Pure: it returns the queue's next state instead of changing it; the caller commits that by compare-and-set and asks
    again if another replica was faster. Asking twice in one slot gives the same answer and moves Q and Z once.
    `explores_itself`: it draws job by job as `context.exploration` says, or needs no exploration. `passes_in_order`: it
    tries the jobs in the order of the request and reads no other, so that a host may ask by turns (admit/turns.py).
    """

    name: str
    explores_itself: bool = False
    passes_in_order: bool = False

    @property
    def reads_progress(self) -> bool:
        """True if it expects the ends of running jobs, and so reads how far they are."""
        return False

    @property
    def stops_in_order(self) -> bool:
        """True if the first of the request that waits ends the round, also for the jobs behind it."""
        return False

    @abstractmethod
    def admit(self, jobs: Sequence[Job], view: ClusterView, queue: QueueState, context: AdmitContext) -> AdmitPlan:
        """One Admission per job, in the order of `jobs`; `plan.queue is queue` if nothing changed."""
