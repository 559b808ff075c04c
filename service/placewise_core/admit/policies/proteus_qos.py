"""Proteus and the QoS-aware policy as one: the order of the second, the number of GPUs of the first. Not in the papers.

Jobs go by slack. Each that fits starts at once, in the shape of least S(n) among those in time, or among all if none is
in time.
"""

import numpy as np

from placewise_core.admit.greedy import Round, Waiting
from placewise_core.admit.policies.proteus import Proteus, least
from placewise_core.admit.policies.qos import QosAware
from placewise_core.admit.policies.qos_savable import QosSavable
from placewise_core.admit.pool import Options


class ProteusQos(Proteus, QosAware):
    """Least slack first, each job with the GPUs that Proteus gives it."""

    name = "proteus-qos"
    keeps_order = False

    def choose(self, waiting: Waiting, options: Options, state: Round) -> int | None:
        in_time = self._in_time(waiting, options, state)
        if in_time.tolist().count(True) in (0, len(in_time)):
            return super().choose(waiting, options, state)
        is_on_fewest = options.nodes == options.nodes[in_time].min()
        return least(self.weighed_s(waiting, options, state), np.flatnonzero(in_time & is_on_fewest))


class ProteusQosSavable(ProteusQos, QosSavable):
    """The same with late jobs behind those that can still be in time."""

    name = "proteus-qos-savable"
