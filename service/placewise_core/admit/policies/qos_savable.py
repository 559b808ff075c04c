"""QoS-aware admission with one change: jobs that are late already no longer go before those that can still be in time.

Least slack first sends late jobs to the head, where under overload they hold up the others until those are late as
well. Not in the paper; `qos` is the paper's policy.
"""

from collections.abc import Sequence

from placewise_core.admit.greedy import Round, WaitingJob
from placewise_core.admit.policies.qos import QosAware
from placewise_core.domain.job import Priority


class QosSavable(QosAware):
    """Urgent jobs first, then those some shape of the platform would finish in time, then the late; each by slack."""

    name = "qos-savable"

    def order(self, waiting: Sequence[WaitingJob], state: Round) -> Sequence[WaitingJob]:
        if len(waiting) < 2:
            return waiting

        def key(w: WaitingJob) -> tuple[int, float, int]:
            state.context.slices.pause()
            wish = self._wish(w, state)
            is_late = not wish.is_in_time and w.job.priority is not Priority.URGENT
            group = 0 if w.job.priority is Priority.URGENT else 2 if is_late else 1
            return group, wish.slack_s, w.position

        return sorted(waiting, key=key)
