"""Measurements of a site, for its cluster: overheads of divisible tasks, profiles of subtasks, sums of reports."""

from collections.abc import Mapping

from placewise_core.basics.cells import digest_of
from placewise_core.domain.events import OverheadLearned, SubtaskProfiled
from placewise_core.speed.learned.capability import Capabilities, is_capability
from placewise_core.speed.learned.disturbance import Disturbance, is_disturbance
from placewise_core.speed.learned.durations import Durations, is_duration
from placewise_core.speed.learned.heat import NodeHeat, is_heat
from placewise_core.speed.learned.pairs import LearnedPairs, is_pair
from placewise_core.speed.learned.rows import SumRows
from placewise_core.speed.learned.throughputs import Throughputs, is_throughput


class Estimates:
    """By kind of task, subtask or group of jobs. `digest` is over all of it, the same on any machine."""

    def __init__(self, overheads: Mapping[str, OverheadLearned], profiles: Mapping[str, Mapping[str, float]]) -> None:
        self.overheads: dict[str, OverheadLearned] = {}
        self.profiles: dict[str, dict[str, float]] = {}
        self.durations, self.throughputs, self.disturbance = Durations(), Throughputs(), Disturbance()
        self.heat, self.capabilities, self.pairs = NodeHeat(), Capabilities(), LearnedPairs()
        self.digest = 0
        for overhead in overheads.values():
            self.learn(overhead)
        for kind, row in profiles.items():
            self.profile(SubtaskProfiled(kind, row))

    def learn(self, change: OverheadLearned) -> None:
        """Takes over an overhead, or forgets it: its count is 0 then."""
        before = self.overheads.pop(change.task_kind, None)
        for each in (before, change):
            if each is not None and each.count:
                cells = {"count": each.count, "mean_overhead_s": each.mean_overhead_s}
                self.digest ^= digest_of(each.task_kind, cells)
        if change.count:
            self.overheads[change.task_kind] = change

    def profile(self, change: SubtaskProfiled) -> None:
        """Takes over metrics of a subtask, or a row of sums."""
        learned = self._learned(change.kind)
        if learned is not None:
            self.digest ^= digest_of(change.kind, learned.row(change.kind))
            learned.learn(change.kind, change.metrics)
            self.digest ^= digest_of(change.kind, learned.row(change.kind))
            return
        row = self.profiles.setdefault(change.kind, {})
        known = {name: row[name] for name in change.metrics if name in row}
        self.digest ^= digest_of(change.kind, known) ^ digest_of(change.kind, change.metrics)
        row.update(change.metrics)

    def forget(self, kind: str) -> None:
        """Forgets a subtask, or a row of sums."""
        learned = self._learned(kind)
        if learned is not None:
            self.digest ^= digest_of(kind, learned.row(kind))
            learned.forget(kind)
            return
        self.digest ^= digest_of(kind, self.profiles.pop(kind, {}))

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of the rows of sums."""
        learned = (self.durations, self.throughputs, self.disturbance, self.heat, self.capabilities, self.pairs)
        return tuple(kind for each in learned for kind in each.kinds)

    def row(self, kind: str) -> Mapping[str, float]:
        """A row as the store keeps it; empty if there is none."""
        learned = self._learned(kind)
        return self.profiles.get(kind, {}) if learned is None else learned.row(kind)

    def _learned(self, kind: str) -> SumRows | Throughputs | None:
        """The estimator whose row it is; None for a subtask."""
        if is_duration(kind):
            return self.durations
        if is_disturbance(kind):
            return self.disturbance
        if is_heat(kind):
            return self.heat
        if is_capability(kind):
            return self.capabilities
        if is_pair(kind):
            return self.pairs
        return self.throughputs if is_throughput(kind) else None
