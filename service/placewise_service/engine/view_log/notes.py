"""Notes of one live view for the log of views: its name, the gangs on it before their events, its snapshots."""

import secrets
from collections import deque
from collections.abc import Iterable
from typing import Final

from placewise_core.basics.frozen import frozen
from placewise_core.domain.cluster import RunningJob
from placewise_core.domain.events import Change, JobsChanged, JobsEnded
from placewise_core.domain.job import JobId
from placewise_core.view.digest import Mark
from placewise_core.view.view import ClusterView
from placewise_log.record import ViewRead
from placewise_log.views import Snapshot

_MOST_KEPT: Final = 1000  # refused gangs, until the log takes them
_VERSIONS, _PERIOD_S = 2000, 300.0  # a snapshot after so many events, or after this time if there were any


@frozen
class Noted:
    """A view as a decision read it. Its digest is worked out behind the answer. See ViewRead."""

    view: str
    version: int
    now_s: float
    mark: Mark
    assumed: tuple[tuple[str, int], ...]
    moved: int
    job_id: str

    def read(self) -> ViewRead:
        return ViewRead(self.view, self.version, self.now_s, self.mark.value, self.assumed, self.moved, self.job_id)


class ViewNotes:
    """Owned by the LiveView. `refused` and `snapshots` wait for the log, which empties them."""

    def __init__(self) -> None:
        self.name = ""
        self.moved = 0  # of the change that takes its turns
        self.refused: deque[RunningJob] = deque(maxlen=_MOST_KEPT)
        self.snapshots: deque[Snapshot] = deque(maxlen=2)
        self._assumed: dict[JobId, tuple[str, int]] = {}
        self._taken_version, self._taken_s, self._had_nodes = 0, 0.0, False

    def begin(self, view: ClusterView, assumed: Iterable[RunningJob], now_s: float) -> None:
        """The view was loaded, and has these gangs on it."""
        self.name, self.moved = secrets.token_hex(8), 0
        self._assumed = {job.id: (job.reservation_id, view.version) for job in assumed}
        self._take(view, now_s)

    def assume(self, job: RunningJob, version: int) -> None:
        """The view has taken a gang that no event names yet."""
        self._assumed.pop(job.id, None)  # the new one is the last
        self._assumed[job.id] = (job.reservation_id, version)

    def refuse(self, job: RunningJob) -> None:
        """Nobody holds the gang, which the view had assumed. Another gang of the same job may be on the view by now."""
        name, _ = self._assumed.get(job.id, ("", 0))
        if name == job.reservation_id:
            del self._assumed[job.id]
        self.refused.append(job)

    def apply(self, change: Change, view: ClusterView) -> None:
        """A change is on the view, with the gangs that it names."""
        if not self._assumed:
            return
        if isinstance(change, JobsChanged):
            for job in change.jobs:
                self._assumed.pop(job.id, None)
        elif isinstance(change, JobsEnded):
            for job_id in change.job_ids:
                if job_id not in view.jobs:
                    self._assumed.pop(job_id, None)

    def read(self, view: ClusterView, now_s: float, job_id: str = "") -> Noted:
        """The view as a decision reads it now."""
        assumed = tuple(self._assumed.values())
        return Noted(self.name, view.version, now_s, view.mark(), assumed, self.moved, job_id)

    def take_if_due(self, view: ClusterView, now_s: float) -> None:
        """Takes a snapshot every so often, and once the first nodes have come; not in the middle of a change."""
        events = view.version - self._taken_version
        is_due = events >= _VERSIONS or (events and now_s - self._taken_s >= _PERIOD_S)
        if not self.moved and (is_due or bool(view.nodes.size) > self._had_nodes):
            self._take(view, now_s)

    def _take(self, view: ClusterView, now_s: float) -> None:
        self._taken_version, self._taken_s, self._had_nodes = view.version, now_s, bool(view.nodes.size)
        self.snapshots.append(Snapshot.of(self.name, view, now_s, tuple(self._assumed.values())))
