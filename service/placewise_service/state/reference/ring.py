"""The bounded logs of a cluster, in memory."""

from collections import deque
from collections.abc import Sequence

from placewise_log.logs import LogState


class Ring:
    """One of a cluster's logs."""

    def __init__(self) -> None:
        self.entries: deque[tuple[int, bytes]] = deque()
        self.next = 1
        self.bytes = 0
        self.exported = 0
        self.dropped = 0

    def append(self, records: Sequence[bytes], most: int, most_bytes: int, lost_before: int) -> int:
        """How many entries fell off that were never exported."""
        self.entries += enumerate(records, start=self.next)
        self.next += len(records)
        self.bytes += sum(map(len, records))
        lost = 0
        while len(self.entries) > most or (self.bytes > most_bytes and len(self.entries) > 1):
            number, record = self.entries.popleft()
            self.bytes -= len(record)
            lost += number > self.exported
        self.dropped += lost_before + lost
        return lost

    def after(self, position: str, count: int) -> list[tuple[str, bytes]]:
        """(position, record) pairs."""
        later = [(number, record) for number, record in self.entries if number > _number(position)]
        return [(f"{number}-0", record) for number, record in later[:count]]

    def state(self, host_time_s: float | None) -> LogState:
        """What is known of the log."""
        return LogState(f"{self.exported}-0" if self.exported else "0", self.dropped, host_time_s)

    def mark(self, position: str) -> None:
        """Moves the position exported forward, never back."""
        self.exported = max(self.exported, _number(position))


def _number(position: str) -> int:
    return int(position.partition("-")[0])
