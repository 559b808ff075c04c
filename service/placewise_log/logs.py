"""The logs of a cluster, by name."""

import enum

from placewise_core.basics.frozen import frozen


class Log(enum.StrEnum):
    """Each log has its bounds, and its position exported."""

    DECISIONS = "decisions"
    VIEWS = "views"


@frozen
class LogState:
    """Of one log: the last position exported, "0" if none; how many entries were lost before anybody exported them,
    since the cluster was made; and the cluster's time, epoch seconds, if its host sets it."""

    exported: str = "0"
    dropped: int = 0
    host_time_s: float | None = None
