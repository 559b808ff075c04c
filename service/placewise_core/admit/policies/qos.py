"""QoS-aware admission: least slack first, the shape of highest CER that still meets the expected completion.

Equations (9)–(11) and (16). Slack and the wish for a shape come from all shapes the platform has; what starts must fit
now. If a shape of the platform would meet the expectation and none that fits now does, the job waits for it, as in the
paper. If no shape meets it at all, waiting gains nothing and the best that fits now starts. Unlike in the paper, the
first job that waits reserves its nodes, and others may pass it.
"""

from collections.abc import Sequence

import numpy as np

from placewise_core.admit.greedy import GreedyAdmission, Round, WaitingJob
from placewise_core.admit.shapes import Options
from placewise_core.basics.frozen import frozen
from placewise_core.basics.slices import spaced
from placewise_core.speed.throughput import ThroughputModel


@frozen
class _Wish:
    """The job's best shape on the whole platform."""

    is_in_time: bool
    slack_s: float


class QosAware(GreedyAdmission):
    """Luo, Chen, Wang (2021): CER under the expected completion time, least slack first, with EASY backfill."""

    name = "qos"
    backfills = True

    def __init__(self, throughput: ThroughputModel) -> None:
        super().__init__(throughput)

    def order(self, waiting: Sequence[WaitingJob], state: Round) -> Sequence[WaitingJob]:
        if len(waiting) < 2:
            return waiting
        wishes = {w.position: self._wish(w, state) for w in spaced(waiting, state.context.slices, 4)}
        return sorted(waiting, key=lambda w: (wishes[w.position].slack_s, w.position))

    def choose(self, waiting: WaitingJob, options: Options, state: Round) -> int | None:
        in_time = self._in_time(waiting, options, state)
        if not in_time.any() and self._wish(waiting, state).is_in_time:
            return None
        return self._best(waiting, options, in_time, state)

    def _wish(self, waiting: WaitingJob, state: Round) -> _Wish:
        options = state.whole.options(waiting.job)
        in_time = self._in_time(waiting, options, state)
        best = self._best(waiting, options, in_time, state)
        latency_s = float(state.latency_s(waiting, options)[best])
        return _Wish(bool(in_time.any()), self.slack_s(waiting, latency_s, state))

    def _in_time(
        self, waiting: WaitingJob, options: Options, state: Round
    ) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """(K,) shapes with Lat + now ≤ e (15)."""
        return np.asarray(state.latency_s(waiting, options) + state.context.now_s <= waiting.expected_s)

    def _best(
        self, waiting: WaitingJob, options: Options, in_time: np.ndarray[tuple[int], np.dtype[np.bool_]], state: Round
    ) -> int:
        cer = state.cer(waiting, options)
        return int(np.argmax(np.where(in_time, cer, -np.inf) if in_time.any() else cer))
