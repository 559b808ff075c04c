"""Random GPU counts (Proteus' second baseline): each job is given a random n once, and starts when n are free.

The draw depends on the job alone (its id, and the second of the day at which it was submitted), so that asking again
does not draw again. The probability of its answer goes with it: that of its n, or of all n that are not free for one
that waits.
"""

import zlib

import numpy as np

from placewise_core.admit.greedy import GreedyAdmission, Round, WaitingJob
from placewise_core.admit.shapes import Options
from placewise_core.domain.decision import AdmitDraw

_DAY_S = 86_400.0  # a trace begins with a day, whichever that is


class RandomGpus(GreedyAdmission):
    """First in, first out with n uniform over the counts the job could have on this platform."""

    name = "random-gpus"
    is_explored = False
    keeps_order = True

    def choose(self, waiting: WaitingJob, options: Options, state: Round) -> int | None:
        counts = state.whole.options(waiting.job).consolidated.gpus
        seed = zlib.crc32(f"{waiting.job.id}:{round(waiting.job.submit_time_s % _DAY_S)}".encode())
        drawn = int(np.random.default_rng(seed).choice(counts))
        same = np.flatnonzero(options.gpus == drawn)
        is_same_answer = counts == drawn if len(same) else ~np.isin(counts, options.gpus)
        chance = float(is_same_answer.mean())
        state.drawn[waiting.job.id] = AdmitDraw(chance, chance, seed=seed)
        return int(same[0]) if len(same) else None
