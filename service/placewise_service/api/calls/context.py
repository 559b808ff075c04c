"""The context of a call, for the handlers."""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from placewise_core.basics.clock import Clock
from placewise_core.basics.frozen import frozen
from placewise_core.domain.commands import AdmitCommand, PartitionCommand, PlaceCommand
from placewise_core.domain.validate import Limits
from placewise_service.api.calls.ports import DecisionEngine
from placewise_service.api.convert.convert_out import Answer

Command = PlaceCommand | PartitionCommand | AdmitCommand
RECENT: Final = 100  # decisions kept of each cluster


@frozen
class Past:
    """A decision this process took."""

    rpc: str
    time_s: float
    answer: Answer
    request_id: str


@dataclass(slots=True)
class CallContext:
    """What handlers work with. `recent` keeps the latest decisions per cluster, for people who look."""

    engine: DecisionEngine
    clock: Clock
    limits: Limits
    recent: dict[str, deque[Past]] = field(default_factory=dict)

    def note(self, command: Command, rpc: str, answer: Answer) -> None:
        """Keeps a decision after its answer is sent; the caller does not wait while the oldest is freed."""
        asyncio.get_running_loop().call_soon(self._keep, command, rpc, answer)

    def _keep(self, command: Command, rpc: str, answer: Answer) -> None:
        past = self.recent.get(command.cluster)
        if past is None:
            past = self.recent[command.cluster] = deque(maxlen=RECENT)
        time_s = self.clock.now_s() if command.now_s is None else command.now_s
        past.append(Past(rpc, time_s, answer, command.request_id))
