"""QoS-aware admission as printed (Luo, Chen, Wang 2021, section 4.2), with the throughput of (5)–(8), quadratic.

At every question the shape s* and the slack of each waiting job are found anew from all shapes of the platform, free or
not; in order of slack each job starts in its own s*, until the first whose s* does not fit. (9) and (10) are
reconstructions: the paper's formulas are images that were lost.
"""

from placewise_core.admit.greedy import Round, WaitingJob
from placewise_core.admit.policies.qos import QosAware
from placewise_core.admit.shapes import Options
from placewise_core.speed.throughput import ThroughputModel


class QosPaper(QosAware):
    """Least slack first, each job in the shape that is best on the whole platform, until one does not fit."""

    name = "qos-paper"
    backfills = False  # "until the resources no longer meet the need"

    def __init__(self, throughput: ThroughputModel) -> None:
        super().__init__(throughput.in_form("qos"))

    def choose(self, waiting: WaitingJob, options: Options, state: Round) -> int | None:
        job = waiting.job
        if job.is_rigid:  # one shape, its own, however it is spread
            return 0
        whole = state.whole.options(job)
        best = whole.shape(self._best(waiting, whole, self._in_time(waiting, whole, state), state))
        return next((i for i in range(len(options)) if options.shape(i) == best), None)
