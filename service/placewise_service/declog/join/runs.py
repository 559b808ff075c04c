"""The runs of jobs as the host had them, and their rewards. Knows no store.

The rewards come from one sweep over the runs by their start. A run waits until the starts of others have passed its end
or its longest horizon; a node remembers the runs that are on it. So the memory taken is that of jobs that run at once.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from placewise_core.domain.commands import JobEventKind
from placewise_core.domain.realised import HORIZONS_MIN, Run, neighbourhood_reward_h, points_of, reward_h
from placewise_service.declog.derived import REWARDS
from placewise_service.declog.join.clock import LogClock
from placewise_service.declog.outcomes import Decided, Found, Status

LONGEST_S: Final = 60.0 * max(HORIZONS_MIN)
_MOST_ON_NODE: Final = 512  # runs at once: beyond them a reward is unknown, as pairs grow with the square
_Reward = Callable[[Run, Iterable[Run], float, float], float | None]
REWARDED: Final = pa.schema(
    {
        "decision_id": pa.string(),
        "job_id": pa.string(),
        **dict.fromkeys(REWARDS, pa.float64()),
        "is_waiting": pa.bool_(),
    }
)


def run_row(row: Decided, found: Found) -> tuple[Any, ...] | None:
    """The row of `runs` of one job of a Place decision; None if it never started, or never ran by this decision."""
    fate = found.fate
    if not row.is_place or found.status is Status.NOT_HELD or not fate.start_time_s:
        return None
    start_s, end_s = max(row.time_s, fate.start_time_s), fate.end_time_s or None
    if end_s is not None and end_s < start_s:
        return None
    has_finished = fate.end == JobEventKind.FINISHED
    points = points_of(start_s, end_s, row.total_epochs, fate.progress, has_finished=has_finished)
    return (
        row.key.decision_id, row.key.job_id, row.cluster, sorted(set(fate.nodes or row.nodes)), start_s, end_s,
        fate.end or None, fate.last_heard_time_s, found.status is Status.OPEN, row.total_epochs or None,
        [time_s for time_s, _ in points], [epochs for _, epochs in points], row.alternative_nodes,
    )  # fmt: skip


@dataclass(slots=True, eq=False)
class _Swept:
    """A run with those that were on a node of it meanwhile. `gone_s` is when it left its nodes.

    `fixed` are those decided before it that were on a node of any alternative when it started; None if the alternatives
    are unknown."""

    decision_id: str
    cluster: str
    run: Run
    gone_s: float
    is_open: bool
    is_asked: bool
    alternative_nodes: Sequence[str] | None
    is_crowded: bool = False
    others: dict[int, "_Swept"] = field(default_factory=dict)
    fixed: dict[int, "_Swept"] | None = None

    @property
    def until_s(self) -> float:
        return self.run.start_s + LONGEST_S


class Sweep:
    """Takes runs in the order of their starts and gives the rewards of those that are asked for."""

    def __init__(self, clock: LogClock) -> None:
        self._clock = clock
        self._on: dict[tuple[str, str], dict[int, _Swept]] = {}
        self._waiting: list[tuple[float, int, _Swept]] = []
        self._count = 0

    def rewards(self, runs: Iterable[tuple[Sequence[Any], bool]]) -> Iterator[tuple[Any, ...]]:
        """Rows of REWARDED for the rows of `runs` that are marked."""
        for row, is_asked in runs:
            swept = _swept(row, is_asked=is_asked)
            while self._waiting and self._waiting[0][0] <= swept.run.start_s:
                yield self._rewarded(heapq.heappop(self._waiting)[2])
            self._enter(swept)
        while self._waiting:
            yield self._rewarded(heapq.heappop(self._waiting)[2])

    def _enter(self, swept: _Swept) -> None:
        self._count += 1
        start_s = swept.run.start_s
        if swept.is_asked and swept.alternative_nodes is not None:
            swept.fixed = self._fixed(swept, swept.alternative_nodes)
        for node in swept.run.nodes:
            here = self._on.setdefault((swept.cluster, node), {})
            for number in [number for number, other in here.items() if other.gone_s <= start_s]:
                del here[number]
            if len(here) >= _MOST_ON_NODE:
                for each in (swept, *here.values()):
                    each.is_crowded = True
                continue
            for number, other in here.items():
                if swept.is_asked:
                    swept.others[number] = other
                if other.is_asked and start_s < other.until_s:
                    other.others[self._count] = swept
            here[self._count] = swept
        if swept.is_asked:  # nobody is beside a job that has gone
            heapq.heappush(self._waiting, (min(swept.until_s, swept.gone_s), self._count, swept))

    def _rewarded(self, swept: _Swept) -> tuple[Any, ...]:
        beside = list(swept.others.values())
        fixed = None if swept.fixed is None else list(swept.fixed.values())
        swept.others.clear()
        swept.fixed = None
        swept.is_asked = False
        is_open = swept.is_open or any(other.is_open for other in (*beside, *(fixed or ())))
        rewards = [*self._sums(reward_h, swept, beside), *self._sums(neighbourhood_reward_h, swept, fixed)]
        has_ended = math.isfinite(swept.run.end_s)
        asked = rewards if fixed is not None else rewards[: len(HORIZONS_MIN)]
        is_waiting = None in asked and (is_open or (has_ended and self._clock.of(swept.cluster) < swept.until_s))
        return swept.decision_id, swept.run.job_id, *rewards, is_waiting

    def _fixed(self, swept: _Swept, nodes: Iterable[str]) -> dict[int, _Swept]:
        """Decision ids are in the order of time. Jobs of one request may be decided in any order: none counts."""
        here = (self._on.get((swept.cluster, node), {}) for node in nodes)
        return {
            number: other
            for on_node in here
            for number, other in on_node.items()
            if other.gone_s > swept.run.start_s and other.decision_id < swept.decision_id
        }

    def _sums(self, reward: _Reward, swept: _Swept, others: Sequence[_Swept] | None) -> list[float | None]:
        if others is None or swept.is_crowded:
            return [None] * len(HORIZONS_MIN)
        runs, now_s = [other.run for other in others], self._clock.of(swept.cluster)
        return [reward(swept.run, runs, 60.0 * minutes, now_s) for minutes in HORIZONS_MIN]


def _swept(row: Sequence[Any], *, is_asked: bool) -> _Swept:
    decision_id, job_id, cluster, nodes, start_s, end_s, _, last_heard_s, is_open, total_epochs, *rest = row
    times_s, epochs, alternative_nodes = rest
    ends_s = math.inf if end_s is None else end_s
    gone_s = ends_s if is_open or end_s is not None else last_heard_s
    points = list(zip(times_s, epochs, strict=True))
    run = Run(job_id, frozenset(nodes), start_s, ends_s, total_epochs or 0.0, points)
    return _Swept(decision_id, cluster, run, gone_s, is_open, is_asked, alternative_nodes)
