"""Steps of data-parallel jobs from a log, for the throughput model: how long one step took on a shape, and with which
batch. Of jobs that had their nodes to themselves meanwhile; parameter servers are another architecture."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from placewise_core.domain.job import Architecture, Job
from placewise_core.speed.params import params_millions
from placewise_log.store import LogStore
from placewise_training.data.site_rows import SiteStep
from placewise_training.log.index import Logged, LogIndex
from placewise_training.log.nodes import NodeKey, gpu_models
from placewise_training.log.places import Placed, Places
from placewise_training.log.speeds import speed_of

_MOST_DIGIT = 9  # GPUs of a node, a digit each in a placement


class ThroughputRow(NamedTuple):
    """A step, and when it was decided. With `is_bound` the step takes at least so long."""

    step: SiteStep
    time_s: float
    is_bound: bool


@dataclass(slots=True)
class ThroughputRows:
    """`counts` as those of Places, with the placed jobs that gave no row, by reason."""

    store: LogStore
    index: LogIndex
    counts: Counter[str] = field(default_factory=Counter)

    def __iter__(self) -> Iterator[ThroughputRow]:
        """Raises LogError."""
        places = Places(self.store, self.index)
        yield from places.rows(partial(self._row, gpu_models(self.store)))
        self.counts = +places.counts

    def _row(self, models: Mapping[NodeKey, str], placed: Placed) -> ThroughputRow | str:
        """The row, or why there is none."""
        job, logged, cluster = placed.job, placed.run, placed.record.cluster
        if job.architecture is Architecture.PARAMETER_SERVER or job.batch_size <= 0 or job.dataset_size <= 0:
            return "of another architecture, or without batch and data set"
        if logged is None:
            return "never started"
        per_node = _gpus_by_node(placed, logged)
        if not per_node or max(per_node.values()) > _MOST_DIGIT:
            return "of unknown GPUs"
        found = {models.get(NodeKey(cluster, node), "") for node in per_node}
        gpu_type = found.pop()
        if found or not gpu_type:
            return "of unknown or mixed GPU models"
        start_s, nodes = logged.run.start_s, logged.run.nodes
        if self.index.beside(cluster, nodes, start_s, job.id):
            return "beside others"
        speed = speed_of(logged, start_s, self.index.next_change_s(cluster, nodes, start_s, job.id))
        if speed is None:
            return "nothing known of its speed"
        gpus = sum(per_node.values())
        step_s = job.batch_size / job.dataset_size / speed.epochs_per_s
        placement = "".join(sorted(str(count) for count in per_node.values()))
        size = params_millions(job.model, job.params_millions)
        step = SiteStep(gpu_type, job.model, placement, job.batch_size / gpus, step_s, size)
        return ThroughputRow(step, placed.record.time_s, speed.is_bound)


def _gpus_by_node(placed: Placed, logged: Logged) -> Mapping[str, int]:
    """Where the host ran it; hosts that name no GPUs ran as many as were answered. Empty if these differ in nodes, or
    if the job has parts of GPUs."""
    if _has_fractions(placed.job):
        return {}
    actual = [spot.rpartition("/")[0] for spot in placed.outcome.actual if "/" in spot]
    answered = [task.node for task in placed.decided.assignments for _ in task.gpu_indices]
    counts = Counter(actual or answered)
    return counts if counts.keys() == logged.run.nodes else {}


def _has_fractions(job: Job) -> bool:
    return any(group.demand.is_gpu_fraction for group in job.groups)
