"""Throughput of a data-parallel job by shape: equations (4)–(8) of the QoS-aware paper, on fitted profiles.

A profile belongs to one network on one GPU model. A job whose network was never measured gets the nearest profile. On
a GPU model that was not, the profile with the most rows is carried over. The match says which. Never reads a file: the
service and the simulator pass in the parsed `throughput.json`.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placewise_core.basics.bounded import Bounded
from placewise_core.basics.frozen import frozen
from placewise_core.basics.gpu_names import gpu_speed, is_one_gpu
from placewise_core.domain.job import Job
from placewise_core.speed.factors import Factors
from placewise_core.speed.forms import CarriedForm, KnotForm, OverlapForm, QosForm, ThroughputForm
from placewise_core.speed.params import normalised, params_millions

Array = NDArray[np.float64]
MatchKey = tuple[str, str, float, Factors | None]
_Kept = Bounded[tuple[MatchKey, float], float]  # by batch
FORMS: Mapping[str, Callable[[Mapping[str, Any]], ThroughputForm]] = {
    "qos": QosForm.from_dict,
    "overlap": OverlapForm.from_dict,
    "knots": KnotForm.from_dict,
}
_REMEMBERED = 4096  # names and batches come from callers: without a bound they would fill the memory
_GENERIC_PARAMS_MILLIONS = 25.0  # of a job that declares nothing: about a ResNet-50, the commonest training job


@frozen
class Profile:
    """One network on one GPU model, with its fitted form.

    Carried over to another GPU model, `faster` is how many times as fast that one is.
    """

    model: str
    gpu_model: str
    params_millions: float
    batch_max: float
    rows: int
    form: ThroughputForm | CarriedForm
    faster: float = 1.0

    def carried(self, faster: float) -> "Profile":
        """The profile on a GPU model that is so many times as fast."""
        return replace(self, form=CarriedForm(self.form, faster), faster=faster)


@frozen
class Match:
    """The profile behind a job's prediction. `label` is empty if it is the job's own network on its own GPU model.
    `factors` are on its throughputs, by a site's measurements."""

    profile: Profile
    label: str = ""
    factors: Factors | None = None

    @property
    def key(self) -> MatchKey:
        """What a throughput depends on, apart from batch and shape. Hashing a whole profile would take longer."""
        return (self.profile.model, self.profile.gpu_model, self.profile.faster, self.factors)


class ThroughputModel:
    """Profiles with the look-up of the nearest one.

    `data` is the parsed `throughput.json`; `form` picks one of FORMS ("" = the one that generalised best when
    the file was fitted). Raises ValueError for a file of another schema or without profiles.
    """

    def __init__(self, data: Mapping[str, Any], form: str = "") -> None:
        if data.get("schema") != "placewise.throughput/1" or not data.get("profiles"):
            raise ValueError("not a placewise.throughput/1 file with at least one profile")
        self._data = data
        self.form_name = form or str(data["form"])
        self.startup_s = float(data["startup_s"])
        self.profiles = tuple(_profile(entry, self.form_name) for entry in data["profiles"])
        self._matches: Bounded[tuple[str, float, str], Match] = Bounded(_REMEMBERED)
        self._single: _Kept = Bounded(_REMEMBERED)
        self._steps: _Kept = Bounded(_REMEMBERED)

    def in_form(self, form: str) -> "ThroughputModel":
        """The same profiles in another of FORMS. Raises KeyError for an unknown one."""
        return self if form == self.form_name else ThroughputModel(self._data, form)

    def match(self, job: Job, gpu_model: str = "") -> Match:
        """The job's own profile, else one of its family, else the nearest by size: that GPU model's, else one carried
        over."""
        key = (job.model, job.params_millions, gpu_model)
        found = self._matches.get(key)
        if found is None:
            found = self._matches[key] = self._nearest(*key)
        return found

    def _nearest(self, model: str, params: float, gpu_model: str) -> Match:
        size = params_millions(model, params) or _GENERIC_PARAMS_MILLIONS

        def distance(profile: Profile) -> tuple[int, float, bool, int]:
            by_size = abs(math.log(profile.params_millions / size))
            return (
                _unlikeness(model, profile.model),
                by_size,
                not is_one_gpu(profile.gpu_model, gpu_model),
                -profile.rows,
            )

        best = min(self.profiles, key=distance)
        is_same_gpu = not gpu_model or is_one_gpu(gpu_model, best.gpu_model)
        label = label_of(model, best, gpu_model)
        return Match(best if is_same_gpu else best.carried(_faster(gpu_model, best)), label)

    def throughput(self, job: Job, match: Match, nodes: ArrayLike, gpus_per_node: ArrayLike) -> Array:
        """PR(t, s) in samples per second (5), broadcast over the shapes."""
        return _throughput(match, global_batch(job, match), nodes, gpus_per_node)

    def speedup(self, job: Job, match: Match, nodes: ArrayLike, gpus_per_node: ArrayLike) -> Array:
        """PR(t, s) / PR(t, ⟨1, 1⟩)."""
        return self.throughput(job, match, nodes, gpus_per_node) / self._alone(match, global_batch(job, match))

    def _alone(self, match: Match, batch: float) -> float:
        """PR(t, ⟨1, 1⟩), remembered: it is asked for at every shape of every job."""
        return _kept(self._single, match, batch, lambda: _throughput(match, batch, 1, 1))

    def step_s(self, match: Match, batch: float) -> float:
        """Seconds that one GPU computes on a step of that batch, remembered."""
        return _kept(self._steps, match, batch, lambda: _step_s(match, batch))

    def single_gpu_s(self, job: Job, match: Match, default_s: float) -> float:
        """Lat(t, ⟨1, 1⟩): as the job declares, else from its iterations, else `default_s`."""
        if job.single_gpu_s > 0:
            return job.single_gpu_s
        iterations = job.total_iterations
        if iterations <= 0:
            return default_s
        batch = global_batch(job, match)
        return batch * iterations / self._alone(match, batch) + self.startup_s

    def latency_s(self, job: Job, match: Match, nodes: ArrayLike, gpus_per_node: ArrayLike, default_s: float) -> Array:
        """Lat(t, s) = work / PR + v (4), calibrated so that Lat(t, ⟨1, 1⟩) is `single_gpu_s`."""
        single = self.single_gpu_s(job, match, default_s)
        return self.latency_at(single, self.speedup(job, match, nodes, gpus_per_node))

    def latency_at(self, single_s: float, speedup: Array) -> Array:
        """(4) for a speedup that is known already."""
        startup_s = self.startup_of(single_s)
        return (single_s - startup_s) / speedup + startup_s

    def latencies_at(self, single_s: float, speedups: Iterable[float]) -> list[float]:
        """(4) of a few shapes, by their speedups."""
        startup_s = self.startup_of(single_s)
        left_s = single_s - startup_s
        return [left_s / speedup + startup_s for speedup in speedups]

    def startup_of(self, single_s: float) -> float:
        """v, a tenth of the single-GPU time at most: a job of a minute does not start up for half of it."""
        return min(self.startup_s, 0.1 * single_s)


def label_of(model: str, profile: Profile, gpu_model: str) -> str:
    """Whose profile stands for a network on a GPU model: its network, and its GPU model if that is another one; "" if
    the profile is the network's own there. An unknown GPU model counts as the profile's."""
    is_same_gpu = not gpu_model or is_one_gpu(gpu_model, profile.gpu_model)
    if not is_same_gpu:
        return f"{profile.model}@{profile.gpu_model}"
    return "" if normalised(model) == normalised(profile.model) else profile.model


def _throughput(match: Match, batch: float, nodes: ArrayLike, gpus_per_node: ArrayLike) -> Array:
    forecast = match.profile.form.shape_throughput(batch, nodes, gpus_per_node)
    return forecast if match.factors is None else forecast * match.factors.at(batch, nodes, gpus_per_node)


def _step_s(match: Match, batch: float) -> Array:
    seconds = match.profile.form.compute_s(batch)
    return seconds if match.factors is None else seconds / match.factors.at(batch, 1, 1)


def _kept(known: _Kept, match: Match, batch: float, of: Callable[[], Array]) -> float:
    """The cached value for that profile and batch, computed on first use."""
    key = (match.key, batch)
    found = known.get(key)
    if found is None:
        found = known[key] = float(of())
    return found


def global_batch(job: Job, match: Match) -> float:
    """The job's batch, or if it gives none, the largest one measured on one GPU."""
    return float(job.batch_size) if job.batch_size > 0 else match.profile.batch_max


def _profile(entry: Mapping[str, Any], form_name: str) -> Profile:
    form: ThroughputForm = FORMS[form_name](entry[form_name])
    return Profile(
        model=str(entry["model"]),
        gpu_model=str(entry["gpu_model"]),
        params_millions=float(entry["params_millions"]),
        batch_max=float(entry["batch_max"]),
        rows=int(entry["rows"]),
        form=form,
    )


def _faster(gpu_model: str, profile: Profile) -> float:
    """How many times as fast a GPU model is as the profile's; 1 if either is unknown."""
    speed, own = gpu_speed(gpu_model), gpu_speed(profile.gpu_model)
    return speed / own if speed and own else 1.0


def _unlikeness(model: str, other: str) -> int:
    """Distance of two names: 0 if they are equal, 1 in one family (equal up to the first digit), 2 otherwise."""
    a, b = normalised(model), normalised(other)
    if a == b:
        return 0
    return 1 if a and _family(a) == _family(b) else 2


def _family(name: str) -> str:
    return re.sub(r"\d.*$", "", name)
