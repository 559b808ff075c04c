"""Weighted fair: orders jobs by a weighted mean of arrival and expected completion."""

from collections.abc import Sequence

from placewise_core.admit.greedy import Round, WaitingJob
from placewise_core.admit.policies.fifo import FifoStrict

ARRIVAL_WEIGHT = 0.5  # the paper gives no weights: both times count the same


class WeightedFair(FifoStrict):
    """Least w·arrival + (1 − w)·e first; a job without a submission time arrived now."""

    name = "weighted-fair"
    keeps_order = False

    def order(self, waiting: Sequence[WaitingJob], state: Round) -> Sequence[WaitingJob]:
        def weight(w: WaitingJob) -> float:
            arrival = w.job.submit_time_s if w.job.submit_time_s > 0 else state.context.now_s
            return ARRIVAL_WEIGHT * arrival + (1.0 - ARRIVAL_WEIGHT) * w.expected_s

        return sorted(waiting, key=lambda w: (weight(w), w.position))
