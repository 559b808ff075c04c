"""Errors on a GPU model that no profile is of: each one left out in turn. Fits nothing.

All errors are mean |ln(predicted / measured)|, the mean of each network counting alike.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from placewise_core.domain.job import Job, JobId
from placewise_core.speed.forms import CarriedForm, ThroughputForm
from placewise_core.speed.throughput import FORMS, ThroughputModel
from placewise_training.throughput.data import Array, Group, Rows


def gpu_left_out(groups: Sequence[Group], document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One entry per GPU model: its rows by the profiles of the other ones."""
    found = []
    for gpu_model in sorted({group.gpu_model for group in groups}):
        others = [each for each in document["profiles"] if each["gpu_model"] != gpu_model]
        shared = {each["model"] for each in others}
        mine = [group for group in groups if group.gpu_model == gpu_model and group.model in shared]
        if mine:
            errors = [_errors(group, document, {**document, "profiles": others}) for group in mine]
            means = {name: round(float(np.mean([each[name] for each in errors])), 3) for name in errors[0]}
            found.append({"gpu_model": gpu_model, "networks": [group.model for group in mine], **means})
    return found


def _errors(group: Group, whole: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, float]:
    job, rows = Job(JobId(""), model=group.model), group.rows
    own = ThroughputModel(whole).match(job, group.gpu_model).profile.form
    measured = _speed_ups(rows.throughput, own, rows)
    is_spread = rows.gpus > 1
    found: dict[str, float] = {}
    carried = ThroughputModel(others).match(job, group.gpu_model).profile.form
    assert isinstance(carried, CarriedForm)
    for name, form in (("carried", carried), ("as_it_is", carried.steps)):
        found[name] = _error(_forecast(form, rows), rows.throughput)
    found["step"] = _error(carried.compute_s(rows.local_batch), own.compute_s(rows.local_batch))
    for name in FORMS:
        form = ThroughputModel(others, name).match(job, group.gpu_model).profile.form
        speed_ups = _speed_ups(_forecast(form, rows), form, rows)
        found[f"speed_up_{name}"] = _error(speed_ups[is_spread], measured[is_spread])
    return found


def _forecast(form: ThroughputForm | CarriedForm, rows: Rows) -> Array:
    cells = zip(rows.local_batch * rows.gpus, rows.nodes, rows.gpus / rows.nodes, strict=True)
    return np.array([float(form.shape_throughput(*cell)) for cell in cells])


def _speed_ups(throughput: Array, form: ThroughputForm | CarriedForm, rows: Rows) -> Array:
    return throughput * form.compute_s(rows.local_batch) / rows.local_batch


def _error(predicted: Array, measured: Array) -> float:
    return float(np.abs(np.log(np.maximum(predicted, 1e-9) / measured)).mean())
