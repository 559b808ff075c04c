"""How long the jobs of a site take, learned from those that ended: sums by user, model and shape. Decides nothing.

The store keeps decayed sums of x = ln(seconds · GPUs), in rows of its map of subtask profiles, at four levels: of all
jobs, of a model, of a model and user, of a model, user and shape. A job that declares no length gets the estimate of
the finest level, which leans on the other jobs of the level above (Gelman et al., Bayesian Data Analysis, 3.3 and 5.4).
"""

import math

from placewise_core.basics.bounded import Bounded
from placewise_core.basics.frozen import frozen
from placewise_core.domain.cluster import RunningJob, RunState
from placewise_core.domain.decision import LearnedLength
from placewise_core.domain.job import Job
from placewise_core.domain.model_names import canonical
from placewise_core.speed.learned.rows import SEPARATOR, SumRows
from placewise_core.speed.learned.sums import Sums, student

# A report counts half after this time: users submit series of like jobs, which last for days. Chosen among 0.5 to 30
# days on the first parts of four traces (docs/learning.md), as are the two weights below.
HALVING_S = 2 * 86_400.0

_PREFIX = f"{SEPARATOR}duration{SEPARATOR}"
_SOURCES = ("all jobs", "model", "model and user", "model, user and shape")

# The coarser level counts as so many reports for the mean, and so many for the variance. Before any report, lengths
# spread by a factor of e².
_MEAN_REPORTS, _VARIANCE_REPORTS = 0.25, 3.0
_FIRST_VARIANCE = 2.0**2
_QUANTILE = 1.6449  # of the normal distribution at 95 %: the interval holds 90 %
_KEPT = 4096


def is_duration(kind: str) -> bool:
    """True for a row of durations among rows of subtask profiles."""
    return kind.startswith(_PREFIX)


def kinds_of(job: Job) -> tuple[str, str, str, str]:
    """The kinds of the rows that are about a job, from that of all jobs to the finest."""
    model = f"{_PREFIX}{canonical(job.model)}{SEPARATOR}"
    user = f"{model}{job.user}{SEPARATOR}"
    return _PREFIX, model, user, user + _shape_of(job)


def _shape_of(job: Job) -> str:
    """The GPUs of a job as known before it starts, and the same when it ends: its range, or their number."""
    if job.elastic is not None:
        return f"{job.elastic.min_gpus}-{job.elastic.max_gpus}"
    return f"{job.shape.gpus if job.shape is not None else job.gpus:g}"


def log_length(running: RunningJob, end_s: float) -> float | None:
    """x of a job that ended; None if its start is unknown. Seconds times GPUs stand for `single_gpu_s`. A job that
    failed or was cancelled counts, too: those who wait for its GPUs wait for its end."""
    if running.state is not RunState.RUNNING or not 0 < running.start_time_s <= end_s:
        return None
    gpus = max(1, sum([len(task.gpu_indices) for task in running.assignments]))
    return math.log(max(1.0, end_s - running.start_time_s) * gpus)


class Durations(SumRows):
    """The rows of one cluster."""

    def __init__(self) -> None:
        super().__init__()
        self._known: Bounded[tuple[str, ...], LearnedLength | None] = Bounded(_KEPT)

    def _drop_found(self) -> None:
        self._known.clear()

    def length_of(self, job: Job) -> LearnedLength | None:
        """The estimate for a job; None before the first report. Only the rows count, so every replica has the same."""
        kinds = kinds_of(job)
        found = self._known.get(kinds)
        if found is None and kinds not in self._known:
            found = self._known[kinds] = self._estimated(kinds)
        return found

    def _estimated(self, kinds: tuple[str, ...]) -> LearnedLength | None:
        root = self._rows.get(kinds[0])
        if root is None:
            return None
        levels = [self._rows.get(kind, Sums()).at(root.time_s, HALVING_S) for kind in kinds]
        belief, source, count = _Belief(), _SOURCES[0], root.count
        for name, own, within in zip(_SOURCES, levels, [*levels[1:], Sums()], strict=True):
            if own.count > 0:
                source, count = name, own.count
            belief = belief.of_group().after(own.without(within))
        spread = student(belief.variance_reports, _QUANTILE) * math.sqrt(
            belief.variance * (1.0 + 1.0 / belief.mean_reports)
        )
        low_s, length_s, high_s = (_rounded(math.exp(belief.mean + by)) for by in (-spread, 0.0, spread))
        return LearnedLength("", length_s, low_s, high_s, _rounded(count), source)


@frozen
class _Belief:
    """Mean and variance of x in one group, and the reports that each counts as: a normal-inverse-χ² distribution."""

    mean: float = 0.0
    variance: float = _FIRST_VARIANCE
    mean_reports: float = 0.0
    variance_reports: float = _VARIANCE_REPORTS

    def of_group(self) -> "_Belief":
        """About a smaller group: its mean lies around this one, which itself is uncertain."""
        if self.mean_reports <= 0:
            return self
        reports = 1.0 / (1.0 / _MEAN_REPORTS + 1.0 / self.mean_reports)
        return _Belief(self.mean, self.variance, reports, min(self.variance_reports, _VARIANCE_REPORTS))

    def after(self, sums: Sums) -> "_Belief":
        """With the reports of the group."""
        count, weight = sums.count, self.mean_reports
        if count <= 0:
            return self
        own = sums.sum / count
        within = max(0.0, sums.squares - count * own * own)
        between = count * weight / (count + weight) * (own - self.mean) ** 2
        return _Belief(
            (weight * self.mean + sums.sum) / (weight + count),
            (self.variance_reports * self.variance + within + between) / (self.variance_reports + count),
            weight + count,
            self.variance_reports + count,
        )


def _rounded(value: float) -> float:
    """To two digits: an estimate that hardly moved stays, and so does the refusal that was logged with it."""
    return float(f"{value:.2g}")
