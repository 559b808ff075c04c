"""How fast the models of a site train, learned from reports by model, GPU type and shape. Decides nothing.

The store keeps decayed sums of x = ln(samples per second): a row for each model, GPU type, global batch, number of
nodes and of GPUs. A throughput model forecasts F for the same by the profile nearest to the model (throughput.py): its
own, or that of a network alike. Learned are the residuals y = x − ln F by the bundle at hand, so the rows serve every
bundle. They shrink towards the nearest profile (y = 0):

    GPU type         g ~ N(0, τ_g²), shared by the models whose nearest profiles are of one GPU model
    model            m ~ N(g, τ_m²)
    shape and batch  f(s, b) = m + τ_s·[own of s] + a smooth function of ln b of size τ_b, b the batch per GPU
    report           y ~ N(f(s, b), σ²),  σ² = (ν₀σ₀² + Σ(y − ȳ)²) / (ν₀ + Σ(n − 1)) over the rows of the model

which is a Gaussian process over shapes and batches with an uncertain mean (Rasmussen and Williams, Gaussian Processes
for Machine Learning, 2.25, 2.26, 2.7). The interval is of the next job's report: f ± t·√(V + σ²), V the variance of f
given the reports. Which reports are comparable, view/speeds.py says.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from placewise_core.basics.arrays import FloatArray
from placewise_core.basics.frozen import frozen
from placewise_core.basics.gpu_names import is_one_gpu
from placewise_core.domain.job import Job, JobId
from placewise_core.domain.model_names import canonical
from placewise_core.speed.factors import Alike, Factors, Spots
from placewise_core.speed.learned.normal import Estimate, Normal
from placewise_core.speed.learned.rows import SEPARATOR
from placewise_core.speed.learned.sums import Sums, sums_of
from placewise_core.speed.params import normalised
from placewise_core.speed.throughput import Match, Profile, ThroughputModel, global_batch

# A report counts half after this time: software and drivers change over weeks. A guess: the data that ship have no
# dates.
HALVING_S = 14 * 86_400.0

# Kinds that no subtask can have, as those of co-runs (co_runs.py).
_PREFIX = f"{SEPARATOR}throughput{SEPARATOR}"

# Chosen on measured rows of NeuMF and ResNet18 on T4 (reproduce/learned/throughputs.py).
_GPU_SPREAD, _OTHER_GPU_SPREAD = 0.1, 1.0  # τ_g with a profile of the GPU type, and without
_MODEL_SPREAD, _OTHER_MODEL_SPREAD = 0.1, 1.0  # τ_m with a profile of the network on the GPU type, and without
_ALIKE, _OTHER_ALIKE = Alike(0.1, 0.05, 2.0), Alike(0.5, 2.0, 3.0)  # τ_s, τ_b and its reach, likewise
_NOISE, _NOISE_REPORTS = 0.1, 3.0  # σ₀ and ν₀
_MOST_ROWS = 200  # of one model on one GPU type, those with most reports: an inverse of some milliseconds

_Shape = tuple[int, int]  # nodes, GPUs


@frozen
class Row:
    """The subject of a row of the store. `batch` is the global one, 0 if the jobs declare none."""

    model: str
    gpu_type: str
    batch: int
    nodes: int
    gpus: int

    @property
    def kind(self) -> str:
        """Its kind among rows of subtask profiles."""
        return _PREFIX + SEPARATOR.join([self.model, self.gpu_type, f"{self.batch}", f"{self.nodes}", f"{self.gpus}"])

    @property
    def shape(self) -> _Shape:
        return self.nodes, self.gpus


def is_throughput(kind: str) -> bool:
    """True for a row of throughputs among rows of subtask profiles."""
    return kind.startswith(_PREFIX)


def row_of(kind: str) -> Row:
    """The inverse of Row.kind."""
    model, gpu_type, batch, nodes, gpus = kind.removeprefix(_PREFIX).split(SEPARATOR)
    return Row(model, gpu_type, int(batch), int(nodes), int(gpus))


@dataclass(frozen=True, slots=True)
class _Group:
    """Residuals of one model on one GPU type: N rows with their means y, reports, and (K + σ²/n)⁻¹."""

    spots: Spots
    y: FloatArray
    counts: FloatArray
    noise: float
    freedom: float
    alike: Alike
    inverse: FloatArray

    @property
    def level(self) -> Normal:
        """m as these rows alone show it."""
        precision = float(self.inverse.sum())
        return Normal(float(self.inverse.sum(axis=0) @ self.y) / precision, 1.0 / precision)

    def factors(self, level: Normal) -> Factors:
        """f for any shape and batch, with m given these rows."""
        return Factors(level.mean, self.spots, self.inverse @ (self.y - level.mean), self.alike)

    def at(self, spot: Spots, level: Normal) -> Normal:
        """f at one spot, with m given these rows."""
        near = self.alike.covariance(spot, self.spots)[0]
        weights = near @ self.inverse
        left = self.alike.variance - float(weights @ near) + (1.0 - float(weights.sum())) ** 2 * level.variance
        return Normal(level.mean + float(weights @ (self.y - level.mean)), left)


@dataclass(slots=True)
class _Rows:
    """The rows of one model on one GPU type; their residuals from a profile's forecasts, as long as no row changes."""

    sums: dict[Row, Sums] = field(default_factory=dict)
    profile: Profile | None = None
    forecasts: dict[Row, float] = field(default_factory=dict)  # ln F
    group: _Group | None = None

    def of(self, profile: Profile) -> _Group:
        if self.profile is not profile:
            self.profile, self.forecasts, self.group = profile, {}, None
        if self.group is None:
            for row in self.sums.keys() - self.forecasts.keys():
                self.forecasts[row] = _log_forecast(profile, row)
            self.group = _group(self.sums, self.forecasts, profile)
        return self.group


class Throughputs:
    """The rows of one cluster."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], _Rows] = {}
        self._kinds: dict[str, Row] = {}
        self._known: dict[tuple[str, str], tuple[Profile, Factors | None]] = {}

    @property
    def kinds(self) -> Iterable[str]:
        """Kinds of the rows."""
        return self._kinds.keys()

    def row(self, kind: str) -> Mapping[str, float]:
        """A row as the store keeps it; empty if there is none."""
        at = self._kinds.get(kind)
        return {} if at is None else self._rows[at.model, at.gpu_type].sums[at].row

    def learn(self, kind: str, row: Mapping[str, float]) -> None:
        """Takes over a row from the store."""
        at = self._kinds[kind] = row_of(kind)
        rows = self._rows.setdefault((at.model, at.gpu_type), _Rows())
        rows.sums[at], rows.group = sums_of(row), None
        self._known.clear()

    def forget(self, kind: str) -> None:
        """The store has forgotten a row."""
        at = self._kinds.pop(kind, None)
        if at is None:
            return
        rows = self._rows[at.model, at.gpu_type]
        del rows.sums[at]
        rows.group = None
        if not rows.sums:
            del self._rows[at.model, at.gpu_type]
        self._known.clear()

    def factors(self, model: ThroughputModel, job: Job, match: Match, gpu_type: str) -> Factors | None:
        """The factors on the forecasts of `match`, which the model has for the job on that GPU type; None before the
        first report. Only the rows count, so every replica has the same."""
        key = (canonical(job.model), gpu_type)
        known = self._known.get(key)
        if known is None or known[0] is not match.profile:
            known = self._known[key] = (match.profile, self._factors(model, key, match))
        return known[1]

    def estimate(self, model: ThroughputModel, job: Job, match: Match, gpu_type: str, shape: _Shape) -> Estimate | None:
        """f at one shape (nodes, GPUs) and the job's batch, on a GPU type; None before the first report."""
        key = (canonical(job.model), gpu_type)
        found = self._level(model, key, match)
        if found is None:
            return None
        level, reports = found
        group = self._group(key, match)
        if group is None:
            alike = _alike(*key, match.profile)
            left = level.variance + alike.variance
            return Estimate(level.mean, left, _NOISE**2, _NOISE_REPORTS, reports, "GPU type")
        nodes, gpus = shape
        of_shape = group.at(_spots([(nodes, gpus, math.log(global_batch(job, match) / gpus))]), level)
        own = float(group.counts[(group.spots.nodes == nodes) & (group.spots.gpus == gpus)].sum())
        source = "model, GPU type and shape" if own > 0 else "model and GPU type"
        count = own if own > 0 else float(group.counts.sum())
        return Estimate(of_shape.mean, of_shape.variance, group.noise, group.freedom, count, source)

    def _factors(self, model: ThroughputModel, key: tuple[str, str], match: Match) -> Factors | None:
        found = self._level(model, key, match)
        if found is None:
            return None
        group = self._group(key, match)
        if group is None:
            return Factors(found[0].mean, _spots([]), np.zeros(0), _alike(*key, match.profile))
        return group.factors(found[0])

    def _group(self, key: tuple[str, str], match: Match) -> _Group | None:
        rows = self._rows.get(key)
        return None if rows is None else rows.of(match.profile)

    def _level(self, model: ThroughputModel, key: tuple[str, str], match: Match) -> tuple[Normal, float] | None:
        """m of a model, and the reports of other models that it rests on; None without any report."""
        name, gpu_type = key
        seen, reports = [], 0.0
        for other, on in sorted(self._rows):
            if on != gpu_type or other == name:
                continue
            nearest = model.match(Job(JobId(""), other), gpu_type)
            if nearest.profile.gpu_model == match.profile.gpu_model:
                group = self._rows[other, on].of(nearest.profile)
                seen.append(group.level.wider(_model_spread(other, on, nearest.profile)))
                reports += float(group.counts.sum())
        own = self._group(key, match)
        if not seen and own is None:
            return None
        of_type = Normal(0.0, _gpu_spread(gpu_type, match.profile) ** 2).after(seen)
        of_model = of_type.wider(_model_spread(*key, match.profile))
        return of_model.after([] if own is None else [own.level]), reports


def _log_forecast(profile: Profile, row: Row) -> float:
    batch = row.batch or profile.batch_max
    return math.log(float(profile.form.shape_throughput(batch, row.nodes, row.gpus / row.nodes)))


def _group(rows: Mapping[Row, Sums], forecasts: Mapping[Row, float], profile: Profile) -> _Group:
    """Residuals as of the last report of the group, in one order on every replica."""
    now_s = max([sums.time_s for sums in rows.values()])
    decayed = {row: sums.at(now_s, HALVING_S) for row, sums in rows.items()}
    kept = sorted(decayed, key=lambda row: (-decayed[row].count, row.nodes, row.gpus, row.batch))[:_MOST_ROWS]
    y = np.array([decayed[row].mean - forecasts[row] for row in kept])
    counts = np.array([decayed[row].count for row in kept])
    freedom = _NOISE_REPORTS + float(np.maximum(counts - 1.0, 0.0).sum())
    noise = (_NOISE_REPORTS * _NOISE**2 + sum([decayed[row].within for row in kept])) / freedom
    spots = _spots([(*row.shape, math.log((row.batch or profile.batch_max) / row.gpus)) for row in kept])
    alike = _alike(kept[0].model, kept[0].gpu_type, profile)
    inverse = np.linalg.inv(alike.covariance(spots, spots) + np.diag(noise / counts))
    return _Group(spots, y, counts, noise, freedom, alike, np.asarray(inverse, dtype=np.float64))


def _spots(points: list[tuple[int, int, float]]) -> Spots:
    nodes, gpus, log_batch = np.array(points, dtype=np.float64).reshape(-1, 3).T
    return Spots(nodes, gpus, log_batch)


def _gpu_spread(gpu_type: str, profile: Profile) -> float:
    return _GPU_SPREAD if is_one_gpu(gpu_type, profile.gpu_model) else _OTHER_GPU_SPREAD


def _model_spread(model: str, gpu_type: str, profile: Profile) -> float:
    return _MODEL_SPREAD if _is_of(model, gpu_type, profile) else _OTHER_MODEL_SPREAD


def _alike(model: str, gpu_type: str, profile: Profile) -> Alike:
    return _ALIKE if _is_of(model, gpu_type, profile) else _OTHER_ALIKE


def _is_of(model: str, gpu_type: str, profile: Profile) -> bool:
    return is_one_gpu(gpu_type, profile.gpu_model) and normalised(model) == normalised(profile.model)
