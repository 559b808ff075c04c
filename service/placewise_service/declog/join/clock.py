"""What time it is, by cluster."""

from collections.abc import Mapping
from dataclasses import field

from placewise_core.basics.frozen import frozen


@frozen
class LogClock:
    """Epoch seconds: `now_s` by the store, `host_times_s` of the clusters whose host sets the time. Decisions and
    outcomes of a cluster are dated by the same clock."""

    now_s: float
    host_times_s: Mapping[str, float] = field(default_factory=dict)

    def of(self, cluster: str) -> float:
        """The cluster's time."""
        return self.host_times_s.get(cluster, self.now_s)
