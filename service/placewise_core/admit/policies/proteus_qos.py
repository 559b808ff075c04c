"""Proteus and the QoS-aware policy as one: the order of the second, the number of GPUs of the first. Not in the papers.

Jobs go by slack. Each that fits starts at once, in the shape of least S(n) among those in time, or among all if none is
in time.
"""

from itertools import compress

import numpy as np

from placewise_core.admit.greedy import Round, WaitingJob
from placewise_core.admit.policies.proteus import Proteus
from placewise_core.admit.policies.qos import QosAware
from placewise_core.admit.policies.qos_savable import QosSavable
from placewise_core.admit.shapes import Options


class ProteusQos(Proteus, QosAware):
    """Least slack first, each job with the GPUs that Proteus gives it."""

    name = "proteus-qos"
    keeps_order = False

    def choose(self, waiting: WaitingJob, options: Options, state: Round) -> int | None:
        """Shapes on more nodes are looked at only if none on the fewest is in time."""
        if len(options) == 1:
            return 0
        latencies_s, now_s = state.few_latencies_s(waiting, options), state.context.now_s
        in_time = [latency_s + now_s <= waiting.expected_s for latency_s in latencies_s]
        if True in in_time:
            return self.least_of(compress(options.few, in_time), compress(latencies_s, in_time), state)
        is_in_time = self._in_time(waiting, options, state)
        if not is_in_time.any():
            return self.least_of(options.few, latencies_s, state)
        best = np.flatnonzero(is_in_time & (options.nodes == options.nodes[is_in_time].min()))
        shapes = zip(best.tolist(), options.gpus[best].tolist(), strict=True)
        return self.least_of(shapes, state.latency_s(waiting, options)[best].tolist(), state)


class ProteusQosSavable(ProteusQos, QosSavable):
    """The same with late jobs behind those that can still be in time."""

    name = "proteus-qos-savable"
