"""Pairs of jobs on one GPU from a log: the speed of each over that which its job declares for itself alone."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from placewise_core.domain.job import Job
from placewise_log.store import LogStore
from placewise_training.data.measured import GpuPair
from placewise_training.log.index import Logged, LogIndex
from placewise_training.log.nodes import NodeKey, gpu_models
from placewise_training.log.places import Placed, Places
from placewise_training.log.speeds import speed_of

SOURCE = "log"
_MOST_NORM = 1.2  # as in site_rows: noise may make a job a little faster beside another


class CoRunRow(NamedTuple):
    pair: GpuPair
    time_s: float


class _Kind(NamedTuple):
    model: str
    batch: float


@dataclass(slots=True)
class CoRunRows:
    """Of jobs that started on one GPU beside exactly one other. `counts` as those of Places."""

    store: LogStore
    index: LogIndex
    counts: Counter[str] = field(default_factory=Counter)

    def __iter__(self) -> Iterator[CoRunRow]:
        """Raises LogError."""
        models, places = gpu_models(self.store), Places(self.store, self.index)
        places.linear_speeds()
        kinds: dict[str, _Kind] = {}  # of the jobs that share GPUs
        for placed in places:
            if not placed.job.gpu_sharing.allowed or placed.run is None:
                continue
            kinds[placed.job.id] = _kind(placed.job)
            spots, cluster = _spots(placed), placed.record.cluster
            if len(spots) != 1:
                continue
            beside = self.index.beside(cluster, placed.run.run.nodes, placed.run.run.start_s, placed.job.id)
            others = [other for other in beside if self._on(other) == spots and other.run.job_id in kinds]
            if len(others) == 1:
                gpu_type = models.get(NodeKey(cluster, spots[0].rpartition("/")[0]), "")
                found = self._pair(gpu_type, placed, placed.run, others[0], kinds)
                if found is not None:
                    yield CoRunRow(found, placed.record.time_s)
        self.counts = places.counts

    def _on(self, other: Logged) -> tuple[str, ...]:
        outcome = self.index.outcome(other.decision_id, other.run.job_id)
        return outcome.actual if outcome is not None else ()

    def _pair(
        self, gpu_type: str, placed: Placed, own: Logged, other: Logged, kinds: dict[str, _Kind]
    ) -> GpuPair | None:
        start_s = own.run.start_s
        change_s = self.index.next_change_s(placed.record.cluster, own.run.nodes, start_s, placed.job.id)
        norms = []
        for decision_id, logged in ((placed.record.decision_id, own), (other.decision_id, other)):
            speed = speed_of(logged, start_s, min(change_s, own.run.end_s))
            linear = self.index.linear(decision_id, logged.run.job_id)
            if speed is None or speed.is_bound or not linear:
                return None
            norms.append(min(_MOST_NORM, speed.epochs_per_s / linear))
        a, b = kinds[placed.job.id], kinds[other.run.job_id]
        return GpuPair(SOURCE, gpu_type, a.model, a.batch, b.model, b.batch, norms[0], norms[1])


def _kind(job: Job) -> _Kind:
    return _Kind(job.model, float(job.batch_size))


def _spots(placed: Placed) -> tuple[str, ...]:
    return placed.outcome.actual or tuple(
        f"{task.node}/{gpu}" for task in placed.decided.assignments for gpu in task.gpu_indices
    )
