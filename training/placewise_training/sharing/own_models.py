"""Judges how well a site's own models are predicted on shared GPUs: the protocol, its questions and its baselines.

Written and committed before the results of the method that it judges.

Sets: Gavel's pairs on K80 (`gavel_simulation`) and on V100 (`gavel_oracle_v1`), the pairs of this project on an H200,
and its loops in pairs on CPU cores (halved speeds per CPU second). Constants are chosen on K80 alone; the other sets
judge. Gavel's other source of each GPU model has clipped values and is left out.

Each network X of a set in turn is no reference: no pair of it is in the history, which makes the table. Every batch of
it asks `draws` times. X has k co-runs, k = 1, 2 or 3, with the error of short profiles; the speeds of both in its other
pairs are asked for.

    references   X, by its name, beside references. Known: k of its pairs. Asked: the others.
    alone        All names are unknown. Known: k pairs of X beside others, nothing else. Asked: X beside one more.
                 No network of the question is in the history.
    together     All names are unknown. Known: k pairs of X, and k pairs of each other network among each other. Asked:
                 the other pairs of X. The history is of other GPU models.
    mixed        The names of X and of its k known partners are unknown. Asked: X beside the references. Neither X nor
                 those partners are in the history.

The GPU model is in the table (K80 and V100: the history has its pairs) or is not (all sets: the history has those of
the other GPU models). Baselines: `mean`, of the known own speeds for X, and of the partners' for the partner; `shift`,
the table by name, or its careful default, moved in log-odds by the mean difference of the known co-runs, own and
partners' apart; `knn`, mean of the jobs of the history that are nearest in the known co-runs; `today`, the service
before. `shift` may shrink (λ of the mean), and kNN has a k: both are chosen on K80 as the method's constants are, by
case.

Criteria, for k = 1, on V100, H200 and CPU cores: the mean absolute error is no more than the least of `mean`, `shift`
and `knn` in every case; pairs decided wrongly at a `max_slowdown` of 1.5 and of 2 are no more than today's.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placewise_core.domain.model_names import canonical
from placewise_core.speed.interference import MeasuredInterference
from placewise_training.data.measured import GpuPair, profiled_gpu_pairs, profiled_sets
from placewise_training.data.placement_tables import usable_pairs
from placewise_training.sharing.data import CPU_CORES, LOOPS, table_of, without_networks
from placewise_training.stdm.data import PROFILE_ERROR

Matrix = NDArray[np.float64]

CASES = ("references", "alone", "together", "mixed")
COUNTS = (1, 2, 3)
CHOSEN_ON = "K80"
_SIGMA = PROFILE_ERROR * (np.pi / 2.0) ** 0.5
_LEAST, _MOST = 0.02, 0.98
NEIGHBOURS = (1, 3, 5, 10, 20, 40)
SHRUNK = (0.0, 0.5, 1.0, 2.0)


class Pair(NamedTuple):
    """Names of two models, and the relative speed of each beside the other."""

    one: str
    other: str
    speed: float
    other_speed: float


@dataclass(frozen=True, slots=True)
class Question:
    """Of network `network`: known pairs, and pairs whose speeds are asked for, all seen from it or from others. Names
    nobody knows begin with `x`."""

    hardware: str
    network: str
    known: tuple[Pair, ...]
    asked: tuple[Pair, ...]
    history: tuple[GpuPair, ...]

    @property
    def name(self) -> str:
        """The name of the network as the site has it."""
        return self.asked[0].one


class Measured(NamedTuple):
    """Both networks and batches of a measured pair, and both speeds."""

    networks: tuple[str, str]
    batches: tuple[float, float]
    speeds: tuple[float, float]


@functools.cache
def measured_sets() -> Mapping[str, tuple[Measured, ...]]:
    """The pairs of each set, by its hardware."""
    found: dict[str, list[Measured]] = {}
    for p in (*usable_pairs(), *profiled_gpu_pairs()):
        speeds = (min(1.0, p.norm_a), min(1.0, p.norm_b))
        names = (canonical(p.model_a), canonical(p.model_b))
        found.setdefault(p.gpu_type, []).append(Measured(names, (p.batch_a, p.batch_b), speeds))
    for loops in profiled_sets():
        if len(loops.models) == 2:
            one, other = loops.models
            first, second = (min(1.0, 0.5 * norm) for norm in loops.cpu_norms)
            found.setdefault(CPU_CORES, []).append(Measured((LOOPS[one], LOOPS[other]), (0.0, 0.0), (first, second)))
    return {hardware: tuple(pairs) for hardware, pairs in found.items()}


def questions(case: str, hardware: str, count: int, *, is_in_table: bool, draws: int, seed: int) -> list[Question]:
    """Of every network and batch of a set, `draws` each; none where a case has none."""
    if is_in_table and (case == "together" or hardware not in {p.gpu_type for p in usable_pairs()}):
        return []
    rng = np.random.default_rng((seed, 81, CASES.index(case), count, len(hardware), is_in_table))
    base = tuple(p for p in usable_pairs() if is_in_table or p.gpu_type != hardware)
    ask = {"references": _references, "alone": _alone, "together": _together, "mixed": _mixed}[case]
    made: list[Question] = []
    for network, batch in _jobs(hardware):
        for _ in range(draws):
            made += ask(_Site(hardware, network, batch, base, rng), count)
    return made


def _jobs(hardware: str) -> list[tuple[str, float]]:
    pairs = measured_sets()[hardware]
    return sorted({(p.networks[i], p.batches[i]) for p in pairs for i in (0, 1)})


@dataclass(frozen=True, slots=True)
class _Site:
    """A draw of one job's pairs: one batch of each partner."""

    hardware: str
    network: str
    batch: float
    base: tuple[GpuPair, ...]
    rng: np.random.Generator

    def pair(self, one: str, other: str, batch: float | None = None) -> Pair | None:
        """A measured pair of two networks, of the first at a batch if one is given; None without any."""
        found = _of(self.hardware, one, other, batch)
        if not found:
            return None
        speeds = found[int(self.rng.integers(len(found)))]
        return Pair(one, other, *speeds)

    def own(self) -> list[Pair]:
        """Of the job beside every other network, in an order drawn."""
        others = sorted({n for p in measured_sets()[self.hardware] for n in p.networks} - {self.network})
        found = [self.pair(self.network, other, self.batch) for other in others]
        there = [pair for pair in found if pair is not None]
        return [there[i] for i in self.rng.permutation(len(there))]

    def seen(self, pairs: Iterable[Pair]) -> tuple[Pair, ...]:
        """With the error of short profiles."""
        return tuple(Pair(p.one, p.other, self._noisy(p.speed), self._noisy(p.other_speed)) for p in pairs)

    def history(self, without: set[str]) -> tuple[GpuPair, ...]:
        return _history(self.base, frozenset(without))

    def _noisy(self, speed: float) -> float:
        return float(np.clip(speed * (1.0 + _SIGMA * self.rng.standard_normal()), _LEAST, 1.0))


@functools.cache
def _of(hardware: str, one: str, other: str, batch: float | None) -> tuple[tuple[float, float], ...]:
    found = []
    for p in measured_sets()[hardware]:
        for i, j in ((0, 1), (1, 0)):
            if (p.networks[i], p.networks[j]) == (one, other) and batch in (None, p.batches[i]):
                found.append((p.speeds[i], p.speeds[j]))
    return tuple(found)


@functools.cache
def _history(base: tuple[GpuPair, ...], without: frozenset[str]) -> tuple[GpuPair, ...]:
    return tuple(without_networks(base, set(without)))


@functools.cache
def table(history: tuple[GpuPair, ...]) -> MeasuredInterference:
    """The table that a service has that knows these pairs."""
    return table_of(history)


def _references(site: _Site, count: int) -> Iterator[Question]:
    history = site.history({site.network})
    pairs = [pair for pair in site.own() if pair.other in table(history).references]
    if len(pairs) > count:
        yield Question(site.hardware, site.network, site.seen(pairs[:count]), tuple(pairs[count:]), history)


def _alone(site: _Site, count: int) -> Iterator[Question]:
    pairs = site.own()
    known = site.seen(pairs[:count])
    for asked in pairs[count:]:
        history = site.history({site.network, *(p.other for p in pairs[:count]), asked.other})
        if history:
            yield Question(site.hardware, site.network, _hidden(known), _hidden([asked]), history)


def _together(site: _Site, count: int) -> Iterator[Question]:
    """The history is of other GPU models: it has the networks, but nobody knows which they are."""
    pairs = site.own()
    others = [pair.other for pair in pairs]
    drawn = {
        tuple(sorted((one, others[i])))
        for one in others
        for i in [i for i in site.rng.permutation(len(others)) if others[i] != one][:count]
    }
    between = [site.pair(*both) for both in sorted(drawn)]
    known = site.seen([*pairs[:count], *(pair for pair in between if pair is not None)])
    if len(pairs) > count:
        yield Question(
            site.hardware, site.network, _hidden(known), _hidden(pairs[count:]), site.history({site.network})
        )


def _mixed(site: _Site, count: int) -> Iterator[Question]:
    pairs = site.own()
    known, rest = pairs[:count], pairs[count:]
    names = {site.network, *(pair.other for pair in known)}
    history = site.history(names)
    asked = [pair for pair in rest if pair.other in table(history).references] if history else []
    if asked:
        yield Question(site.hardware, site.network, _hidden(site.seen(known)), tuple(_hidden(asked, names)), history)


def _hidden(pairs: Sequence[Pair], names: set[str] | None = None) -> tuple[Pair, ...]:
    """With names nobody knows and that are like no family's, for these networks or for all."""

    def shown(name: str) -> str:
        return f"x{name[::-1]}" if names is None or name in names else name

    return tuple(Pair(shown(p.one), shown(p.other), p.speed, p.other_speed) for p in pairs)


# -- baselines: (A, 2) the speeds of both in each asked pair --


def mean_of_own(question: Question) -> Matrix:
    """The mean of the network's known co-runs."""
    found = np.mean([sides(p, question.name) for p in own_known(question)], axis=0)
    return np.tile(found, (len(question.asked), 1))


def shifted(question: Question, shrunk: float) -> Matrix:
    """By name, moved by the mean difference of the co-runs, Σ / (n + `shrunk`)."""
    known = own_known(question)
    measured = log_odds(np.array([sides(p, question.name) for p in known]))
    assumed = log_odds(np.array([by_name(question, _partner(p, question.name)) for p in known]))
    move = (measured - assumed).sum(axis=0) / (len(known) + shrunk)
    return of_odds(log_odds(np.array([by_name(question, p.other) for p in question.asked])) + move)


def nearest_jobs(question: Question, neighbours: int) -> Matrix:
    """The mean of the history's jobs that are nearest in the known co-runs: beside the same network, or on average
    beside all of them where nobody knows it."""
    hardware = table(question.history).gpu_of(question.hardware)
    names, rows = _rows(question.history, hardware)
    known = own_known(question)
    gaps = np.zeros(len(rows))
    for pair in known:
        at = _column(names, _partner(pair, question.name))
        gaps += np.square(rows[:, at] - sides(pair, question.name)).sum(axis=1)
    near = rows[np.argsort(gaps, kind="stable")[:neighbours]].mean(axis=0)
    return np.array([near[_column(names, pair.other)] for pair in question.asked])


def by_name(question: Question, other: str) -> tuple[float, float]:
    """Both speeds by the table."""
    knows = table(question.history)
    return (
        knows.pair(question.name, other, question.hardware),
        knows.pair(other, question.name, question.hardware),
    )


def own_known(question: Question) -> list[Pair]:
    """The known co-runs of the network itself."""
    return [pair for pair in question.known if question.name in (pair.one, pair.other)]


def sides(pair: Pair, name: str) -> tuple[float, float]:
    """The speed of the model of that name, and of the other."""
    return (pair.speed, pair.other_speed) if pair.one == name else (pair.other_speed, pair.speed)


def _partner(pair: Pair, name: str) -> str:
    return pair.other if pair.one == name else pair.one


@functools.cache
def _rows(history: tuple[GpuPair, ...], hardware: str) -> tuple[tuple[str, ...], Matrix]:
    """(J, P + 1, 2) mean speeds of every job of the history beside each network, its own column's mean where that was
    not measured; last, beside all."""
    cells: dict[tuple[str, float], dict[str, list[tuple[float, float]]]] = {}
    for p in history:
        if p.gpu_type == hardware:
            a, b = canonical(p.model_a), canonical(p.model_b)
            cells.setdefault((a, p.batch_a), {}).setdefault(b, []).append((p.norm_a, p.norm_b))
            cells.setdefault((b, p.batch_b), {}).setdefault(a, []).append((p.norm_b, p.norm_a))
    names = tuple(sorted({network for network, _ in cells}))
    rows = np.full((len(cells), len(names) + 1, 2), np.nan)
    for row, (_, by_partner) in zip(rows, sorted(cells.items()), strict=True):
        for name, several in by_partner.items():
            row[names.index(name)] = np.minimum(1.0, several).mean(axis=0)
        row[-1] = np.nanmean(row[:-1], axis=0)
    return names, np.where(np.isnan(rows), np.nanmean(rows, axis=0), rows)


def _column(names: Sequence[str], other: str) -> int:
    return names.index(other) if other in names else len(names)


def log_odds(speeds: Matrix) -> Matrix:
    """Finite for any speed."""
    inside = np.clip(speeds, _LEAST, _MOST)
    found: Matrix = np.log(inside / (1.0 - inside))
    return found


def of_odds(odds: Matrix) -> Matrix:
    """The inverse of log_odds."""
    found: Matrix = 1.0 / (1.0 + np.exp(-odds))
    return found
