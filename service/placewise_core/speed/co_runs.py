"""Co-runs that a site measured: what is known of one cluster, by model, and how the store keeps it. Predicts nothing.

They come from two places: jobs that run bring theirs, and the store keeps, as it keeps subtask profiles, those of jobs
that an event described. Both speak of models, not of jobs: what was measured of one job goes for the next of its model.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from placewise_core.frozen import frozen
from placewise_core.job import CoRun, Job
from placewise_core.speed.model_names import canonical

# Rows of co-runs lie in the store's map of subtask profiles, under kinds that no subtask can have: names of kinds are
# printable (validate.py).
_SEPARATOR = "\x1f"
_PREFIX = f"{_SEPARATOR}co-runs{_SEPARATOR}"
_OWN, _NEIGHBOUR, _STEP = "own", "neighbour", "step_s"

_KEPT = 64
_KEPT_PAIRS = 100_000  # in all that is kept: models are named by users, in any number

Rows = Mapping[str, Mapping[str, float]]
Told = tuple[str, tuple[CoRun, ...]]  # what a job brings: its model, and that model's co-runs


@frozen
class PairSpeeds:
    """Relative speeds of a pair: of the model asked about, and of the other; seconds per step of the first alone. What
    is 0 was not measured."""

    own: float
    neighbour: float
    step_s: float = 0.0


def is_row(kind: str) -> bool:
    """True for a row of co-runs among rows of subtask profiles."""
    return kind.startswith(_PREFIX)


def rows_of(told: Iterable[Told]) -> dict[str, dict[str, float]]:
    """Co-runs as rows of the store: by model, values by neighbour, GPU model and what was measured."""
    rows: dict[str, dict[str, float]] = {}
    for model, co_runs in told:
        for co_run in co_runs:
            rows.setdefault(_PREFIX + canonical(model), {}).update(_cells(co_run))
    return rows


def _cells(co_run: CoRun) -> Iterator[tuple[str, float]]:
    at = f"{canonical(co_run.model)}{_SEPARATOR}{canonical(co_run.gpu_model)}{_SEPARATOR}"
    yield at + _OWN, co_run.relative_speed
    if co_run.neighbour_relative_speed > 0:
        yield at + _NEIGHBOUR, co_run.neighbour_relative_speed
    if co_run.step_s > 0:
        yield at + _STEP, co_run.step_s


class KnownCoRuns:
    """Measured pairs by canonical model name, each seen from both sides. Nobody changes it."""

    def __init__(self, rows: Rows) -> None:
        self._of: dict[str, dict[tuple[str, str], PairSpeeds]] = {}
        for kind, row in rows.items():
            self._read(kind.removeprefix(_PREFIX), row)
        for model, pairs in [(model, dict(pairs)) for model, pairs in self._of.items()]:
            for (other, gpu), speeds in pairs.items():
                self._see_from(other, model, gpu, speeds)
        self.size = sum(len(pairs) for pairs in self._of.values())

    def _read(self, model: str, row: Mapping[str, float]) -> None:
        pairs = self._of.setdefault(model, {})
        for key in row:
            at, _, what = key.rpartition(_SEPARATOR)
            if what == _OWN:
                other, _, gpu = at.partition(_SEPARATOR)
                more = (row.get(f"{at}{_SEPARATOR}{what}", 0.0) for what in (_NEIGHBOUR, _STEP))
                pairs[other, gpu] = PairSpeeds(row[key], *more)

    def _see_from(self, other: str, model: str, gpu: str, speeds: PairSpeeds) -> None:
        """What a pair of `model` says of the other one, where that has not said it itself."""
        own = self._of.get(other, {}).get((model, gpu))
        if own is not None and own.neighbour <= 0:
            self._of[other][model, gpu] = replace(own, neighbour=speeds.own)
        elif own is None and speeds.neighbour > 0:
            self._of.setdefault(other, {})[model, gpu] = PairSpeeds(speeds.neighbour, speeds.own)

    def of(self, model: str, gpu: str) -> dict[str, PairSpeeds]:
        """Pairs of a model by the other one, all names canonical, on a GPU model: what was measured on it stands before
        what goes for any, the same name before one of more or fewer words."""
        pairs = self._of.get(model, {})
        # The later stand: what goes for any first, the same name last, and in between one order on every replica.
        names = sorted({on for _, on in pairs if _may_be(on, gpu)}, key=lambda on: (on == gpu, on))
        return {other: speeds for name in names for (other, on), speeds in pairs.items() if on == name}


class CoRunBook:
    """What is known of one cluster now: rows of the store, and co-runs that its jobs bring."""

    def __init__(self, rows: Rows, jobs: Iterable[Job]) -> None:
        self._rows = {kind: dict(row) for kind, row in rows.items() if is_row(kind)}
        # Jobs of one series bring the same: what is known changes with the first and with the last of them.
        self._brought: Counter[Told] = Counter(_told(job) for job in jobs if job.gpu_sharing.co_runs)
        # Of everything brought, whatever the order: a job that comes and goes again, as in a dry run, changes nothing.
        self._state = 0
        for told in self._brought:
            self._state ^= hash(told)
        # By state and by what a request brings that is not known yet: a job is often asked about again while it waits.
        self._known: dict[tuple[int, tuple[Told, ...]], KnownCoRuns] = {}
        self.is_empty = not (self._rows or self._brought)

    def row(self, kind: str) -> Mapping[str, float]:
        """What the store knows of a model."""
        return self._rows.get(kind, {})

    def learn(self, kind: str, row: Mapping[str, float]) -> None:
        """Takes over what the store has learned."""
        self._rows.setdefault(kind, {}).update(row)
        self._known.clear()
        self.is_empty = False

    def add(self, job: Job) -> None:
        """A job with co-runs runs now."""
        told = _told(job)
        self._brought[told] += 1
        if self._brought[told] == 1:
            self._state ^= hash(told)
            self.is_empty = False

    def remove(self, job: Job) -> None:
        """The inverse of add."""
        told = _told(job)
        self._brought[told] -= 1
        if not self._brought[told]:
            del self._brought[told]
            self._state ^= hash(told)
            self.is_empty = not (self._rows or self._brought)

    def known(self, jobs: Iterable[Job]) -> KnownCoRuns:
        """All of it, and what these jobs bring; the same object while nothing is new."""
        told = dict.fromkeys(_told(job) for job in jobs if job.gpu_sharing.co_runs)
        news = tuple(one for one in told if one not in self._brought)
        found = self._known.get((self._state, news))
        if found is None:
            brought = sorted(self._brought, key=repr)  # of several that differ the same one stands on every replica
            found = KnownCoRuns(_merged(self._rows, rows_of([*brought, *news])))
            if len(self._known) >= min(_KEPT, _KEPT_PAIRS / (found.size + 1)):
                self._known.clear()
            self._known[self._state, news] = found
        return found


def _may_be(measured_on: str, gpu: str) -> bool:
    """Whether what was measured on the one goes for the other, which may be named in more words, or in fewer."""
    return not measured_on or _holds(gpu, measured_on) or _holds(measured_on, gpu)


def _holds(name: str, part: str) -> bool:
    """Whether a name of a GPU model holds another: "teslav100sxm216gb" does hold "v100", and "v100sxm2" before the size
    of its memory; "a100" does not hold "a10"."""
    ends = r"(?=[1-9]\d*g|\D|$)" if part[-1:].isdigit() else ""
    return bool(part) and re.search(re.escape(part) + ends, name) is not None


def _told(job: Job) -> Told:
    return job.model, job.gpu_sharing.co_runs


def _merged(one: Rows, other: Rows) -> Rows:
    """Rows with the values of both; the other's stand."""
    return {kind: {**one.get(kind, {}), **other.get(kind, {})} for kind in (*one, *other)}
