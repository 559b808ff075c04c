"""Pairs of jobs on one GPU from a log: the speed of each over that which its job declares for itself alone."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from placewise_log.store import LogStore
from placewise_training.data.measured import GpuPair
from placewise_training.log.index import Declared, Logged, LogIndex
from placewise_training.log.nodes import NodeKey, gpu_models
from placewise_training.log.places import Placed, Places
from placewise_training.log.speeds import Speed, speed_of

SOURCE = "log"
_MOST_NORM = 1.2  # as in site_rows: noise may make a job a little faster beside another


class CoRunRow(NamedTuple):
    """`step_s`: seconds per step alone of the two jobs, as they declare it; 0 if they do not."""

    pair: GpuPair
    time_s: float
    step_s: tuple[float, float]


class _Side(NamedTuple):
    declared: Declared
    speed: Speed


@dataclass(slots=True)
class CoRunRows:
    """Of jobs that started on one GPU beside exactly one other. A job that has neither ended nor reported since then
    was at most so fast. `counts` as those of Places, with the pairs that gave no row, by reason."""

    store: LogStore
    index: LogIndex
    counts: Counter[str] = field(default_factory=Counter)

    def __iter__(self) -> Iterator[CoRunRow]:
        """Raises LogError."""
        models, places, left_out = gpu_models(self.store), Places(self.store, self.index), Counter[str]()
        places.read_declared()
        for placed in places:
            if not placed.job.gpu_sharing.allowed or placed.run is None:
                continue
            spots, cluster = _spots(placed), placed.record.cluster
            if len(spots) != 1:
                continue
            beside = self.index.beside(cluster, placed.run.run.nodes, placed.run.run.start_s, placed.job.id)
            others = [other for other in beside if self._on(other) == spots]
            if len(others) != 1:
                left_out["alone on the GPU" if not others else "beside several"] += 1
                continue
            sides = self._sides(placed, placed.run, others[0])
            if sides is None:
                left_out["nothing known of a speed"] += 1
                continue
            gpu_type = models.get(NodeKey(cluster, spots[0].rpartition("/")[0]), "")
            a, b = sides
            row = CoRunRow(_pair(gpu_type, a, b), placed.record.time_s, (a.declared.step_s, b.declared.step_s))
            left_out["bounds"] += row.pair.is_bound_a or row.pair.is_bound_b
            yield row
        self.counts = places.counts + left_out

    def _on(self, other: Logged) -> tuple[str, ...]:
        outcome = self.index.outcome(other.decision_id, other.run.job_id)
        return outcome.actual if outcome is not None else ()

    def _sides(self, placed: Placed, own: Logged, other: Logged) -> tuple[_Side, _Side] | None:
        """Both jobs from the start of the one until one of them ends or another job comes."""
        start_s = own.run.start_s
        change_s = self.index.next_change_s(placed.record.cluster, own.run.nodes, start_s, placed.job.id)
        sides = []
        for decision_id, logged in ((placed.record.decision_id, own), (other.decision_id, other)):
            speed = speed_of(logged, start_s, min(change_s, own.run.end_s))
            declared = self.index.declared(decision_id, logged.run.job_id)
            if speed is None or declared is None:
                return None
            sides.append(_Side(declared, speed))
        return sides[0], sides[1]


def _pair(gpu_type: str, a: _Side, b: _Side) -> GpuPair:
    norm_a, norm_b = (min(_MOST_NORM, side.speed.epochs_per_s / side.declared.linear) for side in (a, b))
    return GpuPair(
        SOURCE, gpu_type, a.declared.model, a.declared.batch, b.declared.model, b.declared.batch, norm_a, norm_b,
        a.speed.is_bound, b.speed.is_bound,
    )  # fmt: skip


def _spots(placed: Placed) -> tuple[str, ...]:
    return placed.outcome.actual or tuple(
        f"{task.node}/{gpu}" for task in placed.decided.assignments for gpu in task.gpu_indices
    )
