"""What a simulated cluster learns while it runs, as a service and its store would keep it. Decides nothing."""

from dataclasses import dataclass, field

from placewise_core.domain.cluster import RunningJob
from placewise_core.domain.events import SubtaskProfiled
from placewise_core.domain.job import JobId
from placewise_core.speed.learned import disturbance, durations, pairs, throughputs
from placewise_core.speed.learned.durations import kinds_of, log_length
from placewise_core.speed.learned.sums import Addition, sums_of
from placewise_core.view.disturbance import disturbance_of
from placewise_core.view.learned.pairs import pair_of
from placewise_core.view.speeds import addition_of
from placewise_core.view.view import ClusterView


@dataclass(slots=True)
class SiteReports:
    """Sums on the view of one run. `reported`: epochs done at the last report of each job; `counts`: reports that came,
    and those that counted."""

    view: ClusterView
    reported: dict[JobId, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=lambda: {"reports": 0, "counted": 0})

    def note_end(self, running: RunningJob, now_s: float) -> None:
        """A job has ended: its length counts."""
        x = log_length(running, now_s)
        if x is not None:
            for kind in kinds_of(running.job):
                self._add(Addition(kind, x), now_s, durations.HALVING_S)

    def note_progress(self, running: RunningJob, speed: float, epochs_done: float, now_s: float) -> None:
        """A job reports its speed in epochs per second, and how far it is."""
        before = self.reported.get(running.id, 0.0)
        known = RunningJob(
            running.job, running.assignments, speed=float(running.id in self.reported), epochs_done=before
        )
        self.reported[running.id] = epochs_done
        self.counts["reports"] += 1
        learns_throughput = self.view.settings.learn_throughput
        speed_here = addition_of(known, speed, epochs_done, self.view) if learns_throughput else None
        if speed_here is not None:
            self.counts["counted"] += 1
            self._add(speed_here, now_s, throughputs.HALVING_S)
        loss = disturbance_of(known, speed, epochs_done, self.view)
        if loss is not None:
            self._add(loss, now_s, disturbance.HALVING_S)
        beside = pair_of(known, speed, epochs_done, self.view) if self.view.settings.learn_co_runs else None
        if beside is not None:
            self._add(beside, now_s, pairs.HALVING_S)

    def forget(self, job_id: JobId) -> None:
        """A job holds nothing any more."""
        self.reported.pop(job_id, None)

    def _add(self, addition: Addition, now_s: float, halving_s: float) -> None:
        estimates = self.view.estimates
        row = sums_of(estimates.row(addition.kind)).added(addition.value, now_s, halving_s, addition.weight).row
        self.view.apply_change(SubtaskProfiled(addition.kind, row))
