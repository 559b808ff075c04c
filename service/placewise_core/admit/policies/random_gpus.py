"""Random GPU counts (Proteus' second baseline): each job is given a random n once, and starts when n are free.

The draw depends on the job alone (id and submission time), so that asking again does not draw again.
"""

import zlib

import numpy as np

from placewise_core.admit.greedy import GreedyAdmission, Round, Waiting
from placewise_core.admit.shapes import Options


class RandomGpus(GreedyAdmission):
    """First in, first out with n uniform over the counts the job could have on this platform."""

    name = "random-gpus"
    is_explored = False
    keeps_order = True

    def choose(self, waiting: Waiting, options: Options, state: Round) -> int | None:
        counts = state.whole.options(waiting.job).consolidated.gpus
        seed = zlib.crc32(f"{waiting.job.id}:{waiting.job.submit_time_s}".encode())
        drawn = int(np.random.default_rng(seed).choice(counts))
        same = np.flatnonzero(options.gpus == drawn)
        return int(same[0]) if len(same) else None
