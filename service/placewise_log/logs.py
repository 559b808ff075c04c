"""The logs of a cluster, by name."""

import enum


class Log(enum.StrEnum):
    """Each log has its bounds, and its position exported."""

    DECISIONS = "decisions"
    VIEWS = "views"
