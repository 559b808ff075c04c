"""Alternatives and forecasts of decisions that were answered, for the log: worked out behind everything else.

One study at a time, in short slices, and no more than a hundredth of the time: a rest follows each. Studies that
come in it, or find the queue full, are shed and counted: their record is logged at once without them. Never fails a
decision, never loses its record, and keeps none back for longer than a few studies take.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np
import structlog

from placewise_core.basics.clock import Clock
from placewise_core.basics.frozen import frozen
from placewise_core.basics.slices import Slices
from placewise_core.gang.policy import PlacementPolicy
from placewise_core.inputs.reward import PartTokens
from placewise_core.policies.alternatives import Alternative, Study, studied
from placewise_core.policies.harmony import Harmony
from placewise_core.policies.harmony_draw import retraced
from placewise_log.record import DecisionRecord, Parts, Steps, Tensor
from placewise_service.background import cancel_and_wait
from placewise_service.declog.sink import DecisionSink
from placewise_service.engine.slicing import Slicing

log = structlog.get_logger(__name__)

_MOST_QUEUED: Final = 8  # each keeps a copy of its view
_REST: Final = 99.0  # times the length of a study: the rest that it costs
_SLICE_S: Final = 0.0005  # calls that came meanwhile wait for no more than one step of a policy


class Studying:
    """Completes records. One event loop owns it."""

    def __init__(
        self,
        policies: Mapping[str, PlacementPolicy],
        sink: DecisionSink,
        clock: Clock,
        on_shed: Callable[[], None],
    ) -> None:
        self._policies = policies
        self._slicing = Slicing(clock.monotonic_s, _SLICE_S)
        self._sink = sink
        self._clock = clock
        self._on_shed = on_shed
        self._rests_until_s = 0.0
        self._queue: deque[tuple[DecisionRecord, Sequence[Study]]] = deque()
        self._task: asyncio.Task[None] | None = None

    def offer(self, record: DecisionRecord, studies: Sequence[Study]) -> None:
        """Takes over a record; it is logged with its alternatives, or at once without them if there is no time."""
        if len(self._queue) >= _MOST_QUEUED or self._clock.monotonic_s() < self._rests_until_s:
            self._shed(record)
            return
        self._queue.append((record, studies))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="alternatives")

    async def finish(self) -> None:
        """Works out everything that waits."""
        if self._task is not None:
            await self._task

    async def close(self) -> None:
        """Ends the work; records that still wait are logged without alternatives."""
        await cancel_and_wait((self._task,))
        self._task = None
        while self._queue:
            self._shed(self._queue.popleft()[0])

    def _shed(self, record: DecisionRecord) -> None:
        self._on_shed()
        self._sink.offer(record)

    async def _run(self) -> None:
        while self._queue:
            began_s = self._clock.monotonic_s()
            record, studies = self._queue[0]
            try:
                found = await self._slicing.run(partial(self._studied, studies))
            except Exception:  # the record is worth more than its alternatives
                log.exception("alternatives are missing from the log", decision_id=record.decision_id)
                found = None
            self._queue.popleft()
            self._sink.offer(record if found is None else found.added_to(record))
            now_s = self._clock.monotonic_s()
            self._rests_until_s = max(now_s, self._rests_until_s) + _REST * (now_s - began_s)

    def _studied(self, studies: Sequence[Study], slices: Slices) -> "_Found":
        found = _Found([], [], [])
        for study in studies:
            result = studied(study, self._policies, slices)
            found.alternatives.extend(result.alternatives)
            if result.tokens is not None:
                found.parts.append(_parts(study, result.tokens))
            if (steps := self._steps(study, slices)) is not None:
                found.steps.append(steps)
        return found

    def _steps(self, study: Study, slices: Slices) -> Steps | None:
        harmony = self._policies.get(Harmony.name)
        if not isinstance(harmony, Harmony):
            return None
        tasks = study.drawn.proposal.assignments
        found = retraced(harmony, tasks, study.job, study.view, study.context(slices))
        if found is None:
            return None
        nodes = tuple(study.view.node_id(m) for m in found.rows.tolist())
        return Steps(study.job.id, found.tasks, found.odds, nodes, Tensor.pack(found.tokens))


@frozen
class _Found:
    """Results for one record."""

    alternatives: list[Alternative]
    steps: list[Steps]
    parts: list[Parts]

    def added_to(self, record: DecisionRecord) -> DecisionRecord:
        return replace(record, alternatives=tuple(self.alternatives), steps=tuple(self.steps), parts=tuple(self.parts))


def _parts(study: Study, tokens: PartTokens) -> Parts:
    return Parts(
        study.job.id,
        Tensor.pack(tokens.parts),
        Tensor.pack(tokens.job.astype(np.int32)),
        Tensor.pack(tokens.node.astype(np.int32)),
        tuple(study.view.node_id(m) for m in tokens.places),
        tuple(running.id for running in tokens.neighbours),
    )
