"""Co-runs measured by a site: the known ones of one cluster, by model, and their rows in the store. Predicts nothing.

They come from two sources: running jobs bring theirs, and the store keeps, as it keeps subtask profiles, those of jobs
that an event described. Both are about models, not jobs: a measurement of one job applies to the next of its model. A
third source may lie beneath: what reports of progress have shown (learned/pairs.py).
"""

import copy
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import replace
from typing import Protocol

from placewise_core.basics.bounded import Bounded
from placewise_core.basics.cells import digest_of, number_of
from placewise_core.basics.frozen import frozen
from placewise_core.basics.gpu_names import is_one_gpu
from placewise_core.domain.job import CoRun, Job
from placewise_core.domain.model_names import canonical

# Rows of co-runs lie in the store's map of subtask profiles, under kinds that no subtask can have: names of kinds are
# printable (validate.py).
_SEPARATOR = "\x1f"
_PREFIX = f"{_SEPARATOR}co-runs{_SEPARATOR}"
_OWN, _NEIGHBOUR, _STEP = "own", "neighbour", "step_s"
_LEARNED, _VARIANCE = "learned", "variance"

_KEPT = 64

Rows = Mapping[str, Mapping[str, float]]
JobCoRuns = tuple[str, tuple[CoRun, ...]]  # a job's model, and that model's co-runs


@frozen
class PairSpeeds:
    """Relative speeds of a pair: of the model asked about, and of the other; seconds per step of the first alone. What
    is 0 was not measured. `variance` is that of ln(own) if it was learned from reports; 0 if somebody stated it."""

    own: float
    neighbour: float
    step_s: float = 0.0
    variance: float = 0.0


Pairs = dict[tuple[str, str], PairSpeeds]  # by the other model, and the GPU model it was measured on


@frozen
class LearnedCell:
    """The speed of a model beside a partner over its speed alone, as reports show it, the variance of its logarithm,
    and the reports of the model beside that partner."""

    model: str
    partner: str
    gpu_type: str
    speed: float
    variance: float
    reports: float


def learned_rows(cells: Iterable[LearnedCell]) -> dict[str, dict[str, float]]:
    """Learned pairs as rows of KnownCoRuns; a co-run that somebody states comes before one of these."""
    rows: dict[str, dict[str, float]] = {}
    for cell in cells:
        at = f"{cell.partner}{_SEPARATOR}{cell.gpu_type}{_SEPARATOR}"
        rows.setdefault(row_kind(cell.model), {}).update({at + _LEARNED: cell.speed, at + _VARIANCE: cell.variance})
    return rows


def is_row(kind: str) -> bool:
    """True for a row of co-runs among rows of subtask profiles."""
    return kind.startswith(_PREFIX)


def row_kind(model: str) -> str:
    """The kind of the row that holds a model's co-runs."""
    return _PREFIX + canonical(model)


def rows_of(stated: Iterable[JobCoRuns]) -> dict[str, dict[str, float]]:
    """Co-runs as rows of the store: by model, values by neighbour, GPU model and kind of measurement."""
    rows: dict[str, dict[str, float]] = {}
    for model, co_runs in stated:
        for co_run in co_runs:
            rows.setdefault(row_kind(model), {}).update(_cells(co_run))
    return rows


def _cells(co_run: CoRun) -> Iterator[tuple[str, float]]:
    at = f"{canonical(co_run.model)}{_SEPARATOR}{canonical(co_run.gpu_model)}{_SEPARATOR}"
    yield at + _OWN, co_run.relative_speed
    if co_run.neighbour_relative_speed > 0:
        yield at + _NEIGHBOUR, co_run.neighbour_relative_speed
    if co_run.step_s > 0:
        yield at + _STEP, co_run.step_s


class KnownCoRuns:
    """Measured pairs by canonical model name, each seen from both sides. Nobody changes it.

    `rows` override the co-runs `beneath`, value by value; the others are shared with it.
    """

    def __init__(self, rows: Rows, beneath: "KnownCoRuns | None" = None) -> None:
        self._rows: dict[str, Mapping[str, float]] = {} if beneath is None else dict(beneath._rows)
        # (Model → other and GPU model → speeds) as reported for the model, and the same speeds by the other one.
        self._stated: dict[str, Pairs] = {} if beneath is None else dict(beneath._stated)
        self._stated_by: dict[str, Pairs] = {} if beneath is None else dict(beneath._stated_by)
        copied: set[str] = set()
        for kind, row in rows.items():
            self._rows[kind] = {**self._rows.get(kind, {}), **row}
            model = kind.removeprefix(_PREFIX)
            self._stated[model] = _pairs(self._rows[kind])
            for (other, gpu), speeds in self._stated[model].items():
                if other not in copied:
                    copied.add(other)
                    self._stated_by[other] = dict(self._stated_by.get(other, {}))
                self._stated_by[other][model, gpu] = speeds

    @property
    def is_empty(self) -> bool:
        return not self._rows

    @property
    def kinds(self) -> Iterable[str]:
        """Kinds of the rows."""
        return self._rows.keys()

    @property
    def models(self) -> Set[str]:
        """Canonical names of the models with a co-run, their own or one of another model."""
        return self._stated.keys() | self._stated_by.keys()

    def row(self, kind: str) -> Mapping[str, float]:
        """The co-runs of a model, as the store keeps them."""
        return self._rows.get(kind, {})

    def of(self, model: str, gpu: str) -> dict[str, PairSpeeds]:
        """Pairs of a model by the other one, all names canonical, on a GPU model. A measurement on that GPU model comes
        before one for any; the same name before one of more or fewer words."""
        pairs = self._seen_from(model)
        # Later ones override: first those for any GPU model, last those of the same name; one order on every replica.
        names = sorted({on for _, on in pairs if _may_be(on, gpu)}, key=lambda on: (on == gpu, on))
        return {other: speeds for name in names for (other, on), speeds in pairs.items() if on == name}

    def partners(self, model: str, gpu: str) -> list[str]:
        """Models that it ran beside on a GPU model, by name, whichever of the two speeds was measured."""
        both = [*self._stated.get(model, {}), *self._stated_by.get(model, {})]
        return sorted({other for other, on in both if _may_be(on, gpu)})

    def _seen_from(self, model: str) -> Pairs:
        """The model's own co-runs, and for other pairs the co-runs that others report of it."""
        pairs = dict(self._stated.get(model, {}))
        for at, speeds in self._stated_by.get(model, {}).items():
            own = pairs.get(at)
            if speeds.neighbour > 0 and (own is None or own.variance > 0):
                pairs[at] = PairSpeeds(speeds.neighbour, speeds.own)
            elif own is not None and own.neighbour <= 0:
                pairs[at] = replace(own, neighbour=speeds.own)
        return pairs


NO_CO_RUNS = KnownCoRuns({})


def _pairs(row: Mapping[str, float]) -> Pairs:
    pairs: Pairs = {}
    for key in row:
        at, _, what = key.rpartition(_SEPARATOR)
        if what == _OWN:
            other, _, gpu = at.partition(_SEPARATOR)
            more = (row.get(f"{at}{_SEPARATOR}{what}", 0.0) for what in (_NEIGHBOUR, _STEP))
            pairs[other, gpu] = PairSpeeds(row[key], *more)
        elif what == _LEARNED and f"{at}{_SEPARATOR}{_OWN}" not in row:
            other, _, gpu = at.partition(_SEPARATOR)
            pairs[other, gpu] = PairSpeeds(row[key], 0.0, variance=row[f"{at}{_SEPARATOR}{_VARIANCE}"])
    return pairs


class Learned(Protocol):
    """An estimator of pairs."""

    @property
    def known(self) -> KnownCoRuns:
        """The same object while no report comes."""
        ...


class CoRunBook:
    """The co-runs of one cluster now: rows of the store, and co-runs of its jobs."""

    def __init__(self, rows: Rows, jobs: Iterable[Job]) -> None:
        self._stored = KnownCoRuns({kind: row for kind, row in rows.items() if is_row(kind)})
        # Jobs of one series bring the same co-runs: only the first and the last of them change the known ones.
        self._brought: Counter[JobCoRuns] = Counter(_stated(job) for job in jobs if job.gpu_sharing.co_runs)
        # A sum over all brought co-runs: a job that comes and goes again, as in a dry run, changes nothing.
        self._state = 0
        for stated in self._brought:
            self._state ^= hash(stated)
        # By state and by the request's unknown co-runs: a job is often asked about again while it waits.
        self._known: Bounded[tuple[int, tuple[JobCoRuns, ...]], KnownCoRuns] = Bounded(_KEPT)
        self._learned: Learned | None = None
        self._seen, self._together = NO_CO_RUNS, self._stored
        self.digest = 0  # over all of it, the same on any machine
        for kind in self._stored.kinds:
            self.digest ^= digest_of(kind, self._stored.row(kind))
        for stated in self._brought:
            self.digest ^= _digest_of_stated(stated)

    def fork(self) -> "CoRunBook":
        """The book as it is now; what either of the two learns afterwards, the other does not."""
        other = copy.copy(self)
        other._brought, other._known = self._brought.copy(), self._known.copy()
        return other

    def row(self, kind: str) -> Mapping[str, float]:
        """The store's row of a model."""
        return self._stored.row(kind)

    @property
    def kinds(self) -> Iterable[str]:
        """Kinds of the rows that the store keeps."""
        return self._stored.kinds

    def learn(self, kind: str, row: Mapping[str, float]) -> None:
        """Takes over a row from the store."""
        before = self._stored.row(kind)
        self._stored = KnownCoRuns({kind: row}, self._stored)
        self.digest ^= digest_of(kind, before) ^ digest_of(kind, self._stored.row(kind))
        self._put_together()

    def forget(self, kind: str) -> None:
        """The store has forgotten a row, of this kind or of another."""
        if kind not in self._stored.kinds:
            return
        self.digest ^= digest_of(kind, self._stored.row(kind))
        self._stored = KnownCoRuns({other: self._stored.row(other) for other in self._stored.kinds if other != kind})
        self._put_together()

    def lay_beneath(self, learned: Learned | None) -> None:
        """Pairs from reports of progress, read from now on; None for none. The digest of the estimates has them."""
        self._learned = learned
        self._put_together()

    def _put_together(self) -> None:
        self._seen = NO_CO_RUNS if self._learned is None else self._learned.known
        rows = {kind: self._stored.row(kind) for kind in self._stored.kinds}
        self._together = self._stored if self._seen.is_empty else KnownCoRuns(rows, self._seen)
        self._known.clear()

    @property
    def _beneath(self) -> KnownCoRuns:
        """Co-runs that no job brings: the stored ones, over the learned ones."""
        if self._learned is not None and self._learned.known is not self._seen:
            self._put_together()
        return self._together

    @property
    def is_empty(self) -> bool:
        """True if nothing is known beyond the table."""
        return not self._brought and self._beneath.is_empty

    def add(self, job: Job) -> None:
        """A job with co-runs runs now."""
        stated = _stated(job)
        self._brought[stated] += 1
        if self._brought[stated] == 1:
            self._state ^= hash(stated)
            self.digest ^= _digest_of_stated(stated)

    def remove(self, job: Job) -> None:
        """The inverse of add."""
        stated = _stated(job)
        self._brought[stated] -= 1
        if not self._brought[stated]:
            del self._brought[stated]
            self._state ^= hash(stated)
            self.digest ^= _digest_of_stated(stated)

    def known_with(self, jobs: Iterable[Job]) -> KnownCoRuns:
        """All of it, and what these jobs bring; the same object while nothing is new."""
        stated, beneath = dict.fromkeys(_stated(job) for job in jobs if job.gpu_sharing.co_runs), self._beneath
        news = tuple(one for one in stated if one not in self._brought)
        found = self._known.get((self._state, news))
        if found is None:
            # Of several that differ the same one stands on every replica.
            rows = rows_of(news or sorted(self._brought, key=repr))
            found = self._known[self._state, news] = KnownCoRuns(rows, self.known_with(()) if news else beneath)
        return found


def _may_be(measured_on: str, gpu: str) -> bool:
    """Whether a measurement on the one, or on a model that it does not tell, applies to the other."""
    return not measured_on or is_one_gpu(measured_on, gpu)


def _digest_of_stated(stated: JobCoRuns) -> int:
    model, co_runs = stated
    return number_of(repr((model, co_runs)).encode())


def _stated(job: Job) -> JobCoRuns:
    return job.model, job.gpu_sharing.co_runs
