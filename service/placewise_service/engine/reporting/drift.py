"""Drift of jobs and forecasts as metrics, from entries that the log took. Decides nothing.

It reads entries after they are written, and works on one column for each job that comes with its inputs: no answer
waits for it. If a process logs more than 2,000 entries in a quarter of a second, it misses the oldest of them. Each
process compares the jobs that it has decided since its start.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import structlog

from placewise_core.basics.arrays import FloatArray, IntArray
from placewise_core.basics.bounded import Latest
from placewise_core.basics.frozen import frozen
from placewise_core.domain.commands import JobEventKind
from placewise_core.domain.decision import JobDecision, Outcome
from placewise_core.domain.job import Job
from placewise_core.domain.model_names import canonical
from placewise_core.inputs.stability import counted, edges, psi
from placewise_core.inputs.tables import TOKEN_COLUMNS
from placewise_core.speed.params import normalised
from placewise_core.view.view import ClusterView
from placewise_log.record import DecisionRecord, Entry, OutcomeRecord
from placewise_models.bundle import THROUGHPUT, Bundle
from placewise_service.declog.sink import DecisionSink
from placewise_service.engine.registry import BundleRegistry
from placewise_service.engine.views import Views
from placewise_service.telemetry import Telemetry

log = structlog.get_logger(__name__)

REFERENCE, RECENT = 500, 200  # jobs; without drift PSI is below 0.12 for 19 of 20 columns of ten bins
_MOST_JOBS: Final = 20_000  # of a cluster, placed and without a report of progress
_MOST_NAMES: Final = 20  # of a cluster and a kind; the others are one series
_READ_INTERVAL_S: Final = 0.25
_OTHERS, _NONE = "(others)", "(none)"


class Columns:
    """The first REFERENCE rows of input columns, and the latest RECENT of those that followed."""

    def __init__(self, names: tuple[str, ...] = TOKEN_COLUMNS) -> None:
        self._names = names
        self._reference: list[FloatArray] = []
        self._recent: deque[FloatArray] = deque(maxlen=RECENT)
        self._expected: dict[int, tuple[FloatArray, IntArray]] = {}  # edges and counts of a column of the reference
        self._turn = 0

    def add(self, row: FloatArray) -> tuple[str, float] | None:
        """Takes a row. The PSI of the column whose turn it is; None before there are enough rows."""
        if len(self._reference) < REFERENCE:
            self._reference.append(row)
            return None
        self._recent.append(row)
        if len(self._recent) < RECENT:
            return None
        i, self._turn = self._turn, (self._turn + 1) % len(self._names)
        if i not in self._expected:
            column = np.array([each[i] for each in self._reference])
            self._expected[i] = edges(column), counted(column, edges(column))
        bounds, before = self._expected[i]
        return self._names[i], float(psi(counted(np.array([each[i] for each in self._recent]), bounds), before))


@frozen
class _ProfiledTypes:
    """Models and GPU types that a bundle has a profile of."""

    bundle: Bundle
    models: frozenset[str]
    gpu_types: frozenset[str]

    @classmethod
    def of(cls, bundle: Bundle) -> "_ProfiledTypes":
        profiles = bundle.document(THROUGHPUT)["profiles"]
        models, gpu_types = ({str(each[key]) for each in profiles} for key in ("model", "gpu_model"))
        return cls(bundle, frozenset(map(normalised, models)), frozenset(map(canonical, gpu_types)))


@dataclass(slots=True)
class _Watched:
    """One cluster."""

    known: _ProfiledTypes
    columns: Columns = field(default_factory=Columns)
    # By job: bundle and predicted speed.
    forecasts: Latest[str, tuple[str, float]] = field(default_factory=lambda: Latest(_MOST_JOBS))
    names: dict[str, set[str]] = field(default_factory=dict)  # shown, by kind


class DriftWatch:
    """The drift of every cluster, as this replica's log has it. One event loop owns it."""

    def __init__(self, sink: DecisionSink, views: Views, registry: BundleRegistry, telemetry: Telemetry) -> None:
        self._sink, self._views, self._registry, self._telemetry = sink, views, registry, telemetry
        self._watched: dict[str, _Watched] = {}

    async def follow(self) -> None:
        """Reads the entries that the sink has logged, for as long as the service runs."""
        while True:
            await asyncio.sleep(_READ_INTERVAL_S)
            for _ in range(len(self._sink.logged)):
                self.read_one()
                await asyncio.sleep(0)

    def read_one(self) -> bool:
        """Reads the oldest entry that the sink has logged; False if there is none. Never raises."""
        if not self._sink.logged:
            return False
        self._note(self._sink.logged.popleft())
        return True

    def _note(self, entry: Entry) -> None:
        try:
            if isinstance(entry, OutcomeRecord):
                self._note_progress(entry)
            elif entry.place is not None and not entry.is_dry_run and not entry.shadow_of:
                self._note_placed(entry)
        except Exception:  # of no consequence for the entries that follow
            log.exception("an entry was not looked at for drift", cluster=entry.cluster)

    def _note_placed(self, record: DecisionRecord) -> None:
        live = self._views.find(record.cluster)
        if live is None or record.place is None:
            return
        watched = self._of(record.cluster)
        decided = {each.job_id: each for each in record.place.decisions if each.outcome is Outcome.PLACED}
        repeats = set(record.asked.repeats) if record.asked is not None else set()
        for job in record.jobs:
            if job.id in decided and job.id not in repeats:
                self._note_job(record.cluster, watched, job, decided[job.id], live.view)
        for row in record.placed_tokens().values():
            found = watched.columns.add(row)
            if found is not None:
                self._telemetry.input_psi(record.cluster, *found)

    def _note_job(self, cluster: str, watched: _Watched, job: Job, decision: JobDecision, view: ClusterView) -> None:
        known = watched.known
        if decision.predicted_speed > 0.0 and job.is_speed_in_epochs:
            watched.forecasts[job.id] = (known.bundle.name, decision.predicted_speed)
        if normalised(job.model) not in known.models:
            self._unseen(cluster, watched, "model", normalised(job.model))
        for gpu_type in {canonical(each) for each in _gpu_types(decision, view)} - known.gpu_types:
            self._unseen(cluster, watched, "gpu_type", gpu_type)

    def _note_progress(self, outcome: OutcomeRecord) -> None:
        watched, event = self._watched.get(outcome.cluster), outcome.event
        if watched is None or event.kind is not JobEventKind.PROGRESS or event.speed <= 0.0:
            return
        forecast = watched.forecasts.pop(event.job_id, None)
        if forecast is not None:
            bundle, predicted = forecast
            self._telemetry.forecast_ratio(outcome.cluster, bundle, event.speed / predicted)

    def _unseen(self, cluster: str, watched: _Watched, kind: str, name: str) -> None:
        shown = watched.names.setdefault(kind, set())
        if len(shown) < _MOST_NAMES:
            shown.add(name)
        self._telemetry.unseen_job(cluster, kind, (name or _NONE) if name in shown else _OTHERS)

    def _of(self, cluster: str) -> _Watched:
        bundle = self._registry.bundle_of(cluster)
        if cluster not in self._watched:
            self._watched = {name: each for name, each in self._watched.items() if self._views.find(name)}
            self._watched[cluster] = _Watched(_ProfiledTypes.of(bundle))
        watched = self._watched[cluster]
        if watched.known.bundle is not bundle:
            watched.known = _ProfiledTypes.of(bundle)
        return watched


def _gpu_types(decision: JobDecision, view: ClusterView) -> set[str]:
    """Of the nodes of a placement that the view still has."""
    rows = {
        view.nodes.index[task.node]
        for task in decision.assignments
        if task.demand.gpus > 0 and task.node in view.nodes.index
    }
    names = view.nodes.gpu_model_names()
    return {names[i] for m in rows for i in view.nodes.gpu_model[m].tolist() if i >= 0}
