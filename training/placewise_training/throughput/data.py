"""Measured steps of data-parallel training, repeats included, by network and GPU model. Fits nothing.

`open/step_repeats.csv` has every measured row of the sources: data/open/README.md names them and their licences.
"""

import csv
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

import numpy as np
from numpy.typing import NDArray

from placewise_core.domain.model_names import canonical
from placewise_core.domain.traces import TraceError
from placewise_core.speed.forms import path_shares
from placewise_core.speed.params import params_millions
from placewise_training.data.site_rows import STEPS, SiteStep

Array = NDArray[np.float64]
TABLE = "step_repeats.csv"
_LEAST_ROWS = 12  # with fewer no form could be fitted and judged
# One name per network for the names of all sources. Millions of parameters: published sizes of these networks.
NAMES: Mapping[str, tuple[str, float]] = {
    "bert": ("BERT", 110.0),
    "deepspeech2": ("DeepSpeech2", 38.0),
    "NeuMF": ("NeuMF", 31.8),
    "ResNet18": ("ResNet18", 11.69),
    "resnet50": ("ResNet50", 25.56),
    "resnet50_cifar10": ("ResNet50-CIFAR10", 23.5),
    "gpt2": ("GPT-2", 124.0),
    "vgg16": ("VGG16", 138.36),
    "ResNet50": ("ResNet50", 25.56),
    "BERT": ("BERT", 110.0),
    "DeepSpeech2": ("DeepSpeech2", 38.0),
}


@dataclass(frozen=True, slots=True)
class Rows:
    """Measured steps of one (network, GPU model); all arrays are (N,).

    `placement` is GPUs per node as digits in ascending order, `widest` the most of them on one node, cross and within
    the shares of equation (8)'s path lengths. Where `is_bound` is true, the throughput is at most this.
    """

    placement: NDArray[np.str_]
    gpus: Array
    nodes: Array
    widest: Array
    cross: Array
    within: Array
    local_batch: Array
    throughput: Array
    is_bound: NDArray[np.bool_]

    def missed(self, errors: Array) -> Array:
        """(N,) errors of predictions, predicted over measured: a prediction below a bound is none."""
        return np.asarray(np.where(self.is_bound, np.maximum(errors, 0.0), errors))

    def take(self, mask: NDArray[np.bool_]) -> "Rows":
        return Rows(*(getattr(self, name)[mask] for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class Group:
    """The rows of one network on one GPU model."""

    source: str
    gpu_model: str
    model: str
    params_millions: float
    rows: Rows


def rows_of(
    placements: Sequence[str],
    local_batch: Sequence[float],
    step_s: Sequence[float],
    is_bound: Sequence[bool] | None = None,
) -> Rows:
    """Rows from the columns of the table; without `is_bound` all of them are values."""
    per_node = [np.array([float(digit) for digit in placement]) for placement in placements]
    gpus = np.array([each.sum() for each in per_node])
    shares = np.array([path_shares(each) for each in per_node])
    batch = np.asarray(local_batch, dtype=np.float64)
    return Rows(
        placement=np.array(placements),
        gpus=gpus,
        nodes=np.array([float(len(each)) for each in per_node]),
        widest=np.array([each.max() for each in per_node]),
        cross=shares[:, 0],
        within=shares[:, 1],
        local_batch=batch,
        throughput=gpus * batch / np.asarray(step_s, dtype=np.float64),
        is_bound=np.array(is_bound if is_bound is not None else [False] * len(placements), dtype=np.bool_),
    )


def site_groups(steps: Sequence[SiteStep]) -> tuple[list[Group], int]:
    """A site's own steps as groups, sorted by GPU model and name; and how many rows were too few for one.

    Raises TraceError for a network of unknown size: the model looks profiles up by it.
    """
    found: dict[tuple[str, str], list[SiteStep]] = {}
    for step in steps:
        found.setdefault((step.gpu_type, NAMES.get(step.model, (step.model, 0.0))[0]), []).append(step)
    groups, left_out = [], 0
    for (gpu, model), several in sorted(found.items()):
        if len(several) < _LEAST_ROWS:
            left_out += len(several)
            continue
        params = max(max(step.params_millions, NAMES.get(step.model, ("", 0.0))[1]) for step in several)
        params = params_millions(model, params)
        if params <= 0:
            raise TraceError(STEPS, 1, 1, "params_millions", f"is needed, as the size of {model!r} is not known")
        columns = (
            [getattr(step, name) for step in several] for name in ("placement", "local_batch", "step_s", "is_bound")
        )
        groups.append(Group("site", gpu, model, params, rows_of(*columns)))
    return groups, left_out


def with_own(own: Sequence[Group], published: Sequence[Group]) -> list[Group]:
    """All groups; a site's own rows stand in for published ones of the same network on the same GPU model."""
    mine = {(canonical(group.model), group.gpu_model) for group in own}
    return [*own, *(group for group in published if (canonical(group.model), group.gpu_model) not in mine)]


def measured_groups() -> list[Group]:
    """Every network on every GPU model with enough rows, sorted by source, GPU model and name."""
    found: dict[tuple[str, str, str], list[dict[str, str]]] = {}
    for row in csv.DictReader(_text().splitlines()):
        found.setdefault((row["source"], row["gpu_type"], row["model"]), []).append(row)
    groups = []
    for (source, gpu, model), rows in sorted(found.items()):
        if len(rows) >= _LEAST_ROWS:
            batches, steps = ([float(row[name]) for row in rows] for name in ("local_batch", "step_time_s"))
            measured = rows_of([row["placement"] for row in rows], batches, steps)
            groups.append(Group(source, gpu, *NAMES[model], measured))
    return groups


def fingerprint() -> str:
    """SHA-256 of the table."""
    return hashlib.sha256(_text().encode()).hexdigest()


def _text() -> str:
    return resources.files("placewise_training.data").joinpath("open", TABLE).read_text("utf-8")
