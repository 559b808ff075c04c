"""Steps from a decision log for the throughput model, and its error on the later ones beside the incumbent's."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from placewise_core.basics.arrays import FloatArray
from placewise_core.domain.job import Job, JobId
from placewise_core.speed.forms import CarriedForm
from placewise_core.speed.throughput import ThroughputModel
from placewise_models.folder import shipped_bundle
from placewise_training.data.site_rows import SiteStep
from placewise_training.log.later import HeldBack, gain, held_back
from placewise_training.log.throughput_rows import ThroughputRow, ThroughputRows
from placewise_training.throughput.data import Rows, rows_of
from placewise_training.throughput.fit import FITS

REPORT = "throughput.json"


def log_steps(where: str, before_s: float = 0.0) -> HeldBack[ThroughputRow]:
    """Of decisions before `before_s`, 0 for all. Raises LogError, and ValueError for too few rows."""
    return held_back(ThroughputRows, where, before_s)


def steps_of(rows: Sequence[ThroughputRow]) -> tuple[SiteStep, ...]:
    """The steps to fit to."""
    return tuple(replace(row.step, is_bound=row.is_bound) for row in rows)


def incumbent(start: Path | None) -> Mapping[str, Any]:
    """The throughput.json to begin with: that of a bundle's or run's folder, or the shipped one. Raises OSError,
    ValueError."""
    folder = start or shipped_bundle()
    path = folder / REPORT if folder.is_dir() else folder
    found: Mapping[str, Any] = json.loads(path.read_text("utf-8"))
    return found


def with_others(profiles: Sequence[Mapping[str, Any]], start: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The profiles, and those of the incumbent whose network and GPU model are not among them."""
    mine = {(each["model"], each["gpu_model"]) for each in profiles}
    return [*profiles, *(each for each in start["profiles"] if (each["model"], each["gpu_model"]) not in mine)]


def judged(later: Sequence[ThroughputRow], before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The errors of both documents on later steps, |ln(predicted / measured)|; below a bound there is none."""
    error_before, error_after = (_errors(later, ThroughputModel(document)) for document in (before, after))
    return gain(error_before, error_after, np.array([row.time_s for row in later]))


def _errors(later: Sequence[ThroughputRow], model: ThroughputModel) -> FloatArray:
    found = np.empty(len(later))
    for i, (step, _, is_bound) in enumerate(later):
        job = Job(JobId(""), model=step.model, params_millions=step.params_millions)
        rows = rows_of([step.placement], [step.local_batch], [step.step_s], [is_bound])
        form = model.match(job, step.gpu_type).profile.form
        predicted = _carried(form, rows) if isinstance(form, CarriedForm) else FITS[model.form_name].predict(form, rows)
        found[i] = abs(rows.missed(np.log(predicted / rows.throughput)))[0]
    return found


def _carried(form: CarriedForm, rows: Rows) -> FloatArray:
    """(N,) throughputs on another GPU model than the profile's; uneven placements count as even ones."""
    (batch,), (gpus,), (nodes,) = rows.local_batch, rows.gpus, rows.nodes
    return np.atleast_1d(form.shape_throughput(batch * gpus, nodes, gpus / nodes))
