"""The store that trainers read a log from: that of placewise_log."""

from placewise_log.store import LogError, LogStore

__all__ = ["LogError", "LogStore"]
