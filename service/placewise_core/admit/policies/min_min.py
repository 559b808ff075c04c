"""Min-Min by QoS: the job whose completion is expected earliest goes first, with the GPUs its user asked for."""

from collections.abc import Sequence

from placewise_core.admit.greedy import Round, WaitingJob
from placewise_core.admit.policies.fifo import FifoStrict


class MinMin(FifoStrict):
    """Earliest expected completion e (9) first, as the QoS-aware paper reads Min-Min."""

    name = "min-min"
    keeps_order = False

    def order(self, waiting: Sequence[WaitingJob], state: Round) -> Sequence[WaitingJob]:
        return sorted(waiting, key=lambda w: (w.expected_s, w.position))
