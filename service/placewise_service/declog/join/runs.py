"""The runs of jobs as the host had them, and their rewards. Knows no store.

The rewards come from one sweep over the runs by their start, in which a node remembers the runs that are on it. So the
memory taken is that of jobs that run at once.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from placewise_core.domain.commands import JobEventKind
from placewise_core.domain.realised import HORIZONS_MIN, Run, points_of, reward_h
from placewise_service.declog.derived import PLACED_REWARDS, REWARDS
from placewise_service.declog.join.clock import LogClock
from placewise_service.declog.outcomes import Decided, RowOutcome, Status

_MOST_ON_NODE: Final = 512  # runs at once: beyond them a reward is unknown, as pairs grow with the square
REWARDED: Final = pa.schema(
    {
        "decision_id": pa.string(),
        "job_id": pa.string(),
        **dict.fromkeys((*REWARDS, *PLACED_REWARDS), pa.float64()),
        "is_waiting": pa.bool_(),
    }
)


def run_row(row: Decided, found: RowOutcome) -> tuple[Any, ...] | None:
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


@dataclass(frozen=True, slots=True, eq=False)
class _Swept:
    """A run, when it left its nodes, and the nodes of any alternative of its decision; None if these are unknown."""

    decision_id: str
    cluster: str
    run: Run
    gone_s: float
    is_open: bool
    alternative_nodes: Sequence[str] | None


@dataclass(slots=True)
class _Node:
    """The runs on a node; until `crowded_until_s` there are others."""

    runs: list[_Swept] = field(default_factory=list)
    crowded_until_s: float = -math.inf


class Sweep:
    """Takes runs in the order of their starts and gives the rewards of those that are asked for."""

    def __init__(self, clock: LogClock) -> None:
        self._clock = clock
        self._nodes: dict[tuple[str, str], _Node] = {}

    def rewards(self, runs: Iterable[tuple[Sequence[Any], bool]]) -> Iterator[tuple[Any, ...]]:
        """Rows of REWARDED for the rows of `runs` that are marked."""
        for row, is_asked in runs:
            swept = _swept(row)
            if is_asked:
                yield self._rewarded(swept)
            self._enter(swept)

    def _enter(self, swept: _Swept) -> None:
        for name in swept.run.nodes:
            node = self._nodes.setdefault((swept.cluster, name), _Node())
            node.runs = [other for other in node.runs if other.gone_s > swept.run.start_s]
            if len(node.runs) < _MOST_ON_NODE:
                node.runs.append(swept)
            else:
                node.crowded_until_s = max(node.crowded_until_s, swept.gone_s)

    def _rewarded(self, swept: _Swept) -> tuple[Any, ...]:
        rewards, is_waiting = list[float | None](), False
        for nodes in (swept.alternative_nodes, sorted(swept.run.nodes)):
            found, may_be_known = self._over(swept, nodes)
            rewards += found
            is_waiting |= may_be_known and None in found
        return swept.decision_id, swept.run.job_id, *rewards, is_waiting

    def _over(self, swept: _Swept, nodes: Sequence[str] | None) -> tuple[list[float | None], bool]:
        """The rewards over the jobs on these nodes, and whether those that are None may be known later."""
        neighbours = self._neighbours(swept, nodes)
        if neighbours is None:
            return [None] * len(HORIZONS_MIN), False
        runs, now_s = [other.run for other in neighbours], self._clock.of(swept.cluster)
        rewards = [reward_h(swept.run, runs, 60.0 * minutes, now_s) for minutes in HORIZONS_MIN]
        is_open = any(each.is_open for each in (swept, *neighbours))
        is_early = math.isfinite(swept.run.end_s) and now_s < swept.run.start_s + 60.0 * max(HORIZONS_MIN)
        return rewards, is_open or is_early

    def _neighbours(self, swept: _Swept, nodes: Sequence[str] | None) -> list[_Swept] | None:
        """Those decided before it that are on one of the nodes; None if not all of them are known.

        Decision ids are in the order of time. Jobs of one request may be decided in any order: none counts.
        """
        if nodes is None:
            return None
        start_s = swept.run.start_s
        there = [self._nodes.get((swept.cluster, name), _Node()) for name in nodes]
        if any(node.crowded_until_s > start_s for node in there):
            return None
        here = dict.fromkeys(other for node in there for other in node.runs)
        return [other for other in here if other.gone_s > start_s and other.decision_id < swept.decision_id]


def _swept(row: Sequence[Any]) -> _Swept:
    decision_id, job_id, cluster, nodes, start_s, end_s, _, last_heard_s, is_open, total_epochs, *rest = row
    times_s, epochs, alternative_nodes = rest
    ends_s = math.inf if end_s is None else end_s
    gone_s = ends_s if is_open or end_s is not None else last_heard_s
    points = list(zip(times_s, epochs, strict=True))
    run = Run(job_id, frozenset(nodes), start_s, ends_s, total_epochs or 0.0, points)
    return _Swept(decision_id, cluster, run, gone_s, is_open, alternative_nodes)
