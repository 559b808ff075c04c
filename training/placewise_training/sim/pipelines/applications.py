"""Streaming applications as DAGs of subtasks: video synopsis, intrusion detection, face recognition (LDWP, Table 5).

Nobody has published times, speedups or metrics of these subtasks. The kinds, their order and which have a GPU version
follow Table 5; times, speedups and metrics are drawn here from stated ranges, once per truth, so that a policy that
learned on one set of kinds is judged on another. Relations that make the numbers plausible are kept: stencil-like image
work is memory bound with large speedups, tracking and tube work has none, encodings are compute bound.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from placewise_core.domain.job import Architecture, Job, JobId, Subtask
from placewise_core.subtasks.metrics import GPU_METRICS, SPEEDUP


@dataclass(frozen=True, slots=True)
class KindSpec:
    """Ranges of one kind: seconds on one core per unit of size, speedup, and shares of each GPU resource."""

    core_s: tuple[float, float]
    speedup: tuple[float, float] = (0.0, 0.0)  # (0, 0): CPU only
    character: str = "cpu"  # the resource that bounds it on a GPU: "memory", "compute" or "texture"; or "cpu"


# (low, high) shares by character, in the order of GPU_METRICS: SM, L1, L2, texture, DRAM, load and store throughput.
_CHARACTERS: Mapping[str, Sequence[tuple[float, float]]] = {
    "memory": ((0.2, 0.4), (0.3, 0.6), (0.5, 0.8), (0.0, 0.1), (0.6, 0.9), (0.6, 0.9), (0.4, 0.8)),
    "compute": ((0.7, 0.95), (0.3, 0.5), (0.2, 0.4), (0.0, 0.1), (0.1, 0.3), (0.1, 0.3), (0.1, 0.2)),
    "texture": ((0.3, 0.5), (0.2, 0.4), (0.3, 0.5), (0.6, 0.9), (0.3, 0.5), (0.3, 0.5), (0.1, 0.3)),
    "cpu": ((0.0, 0.0),) * 7,
}

KINDS: Mapping[str, KindSpec] = {
    "gmm_background": KindSpec((0.030, 0.050), (10, 18), "memory"),
    "frame_differencing": KindSpec((0.008, 0.014), (5, 9), "memory"),
    "gaussian_pyramid": KindSpec((0.012, 0.020), (8, 14), "texture"),
    "dog_pyramid": KindSpec((0.010, 0.016), (7, 12), "texture"),
    "scale_space_extrema": KindSpec((0.020, 0.035), (6, 11), "compute"),
    "tracking": KindSpec((0.008, 0.014)),
    "tube_extraction": KindSpec((0.010, 0.016)),
    "tube_optimisation": KindSpec((0.014, 0.022)),
    "stitching": KindSpec((0.008, 0.012)),
    "load_image": KindSpec((0.003, 0.006)),
    "face_locations": KindSpec((0.050, 0.080), (12, 22), "compute"),
    "face_landmarks": KindSpec((0.012, 0.020), (2, 4), "compute"),
    "face_encodings": KindSpec((0.040, 0.060), (10, 18), "compute"),
    "face_distance": KindSpec((0.004, 0.007), (1.2, 2.5), "memory"),
    "compare_faces": KindSpec((0.002, 0.004)),
}

# Stages in order; stages in one tuple run side by side.
APPLICATIONS: Mapping[str, Sequence[tuple[str, ...]]] = {
    "video_synopsis": (
        ("gmm_background",),
        ("frame_differencing",),
        ("tube_extraction",),
        ("tube_optimisation",),
        ("stitching",),
    ),
    "intrusion_detection": (
        ("gmm_background", "frame_differencing"),
        ("gaussian_pyramid",),
        ("dog_pyramid",),
        ("scale_space_extrema",),
        ("tracking",),
    ),
    "face_recognition": (
        ("load_image",),
        ("face_locations",),
        ("face_landmarks",),
        ("face_encodings",),
        ("face_distance",),
        ("compare_faces",),
    ),
}


@dataclass(frozen=True, slots=True)
class SubtaskTruth:
    """One kind as it really is. `shares` in the order of GPU_METRICS; speedup 0 means no GPU version."""

    core_s: float
    speedup: float
    shares: tuple[float, ...]
    host_memory: float

    @property
    def has_gpu_version(self) -> bool:
        return self.speedup > 0

    def profile(self) -> dict[str, float]:
        """The whole row of the subtask description matrix."""
        row = {"cpu": 1.0, "host_memory": self.host_memory, **dict(zip(GPU_METRICS, self.shares, strict=True))}
        return {**row, SPEEDUP: self.speedup} if self.has_gpu_version else row


_SEEDS = {"train": 11, "judge": 29}
_DRAWN = 613  # seeds of drawn truths are (this, number): never those of the named ones


@functools.cache
def subtask_truths(truth: str) -> Mapping[str, SubtaskTruth]:
    """Every kind under that truth; "draw7" is one of any number of training truths. Raises KeyError for another
    name."""
    if truth.startswith("draw") and truth[4:].isdigit():
        return draw_truths(np.random.default_rng((_DRAWN, int(truth[4:]))))
    return draw_truths(np.random.default_rng(_SEEDS[truth]))


def draw_truths(rng: np.random.Generator) -> Mapping[str, SubtaskTruth]:
    """Every kind once, drawn from its ranges."""
    return {name: _draw(spec, rng) for name, spec in KINDS.items()}


def _draw(spec: KindSpec, rng: np.random.Generator) -> SubtaskTruth:
    return SubtaskTruth(
        core_s=float(rng.uniform(*spec.core_s)),
        speedup=float(rng.uniform(*spec.speedup)),
        shares=tuple(float(rng.uniform(low, high)) for low, high in _CHARACTERS[spec.character]),
        host_memory=float(rng.uniform(0.02, 0.1)),
    )


def gpu_relative_speed(mine: SubtaskTruth, others: Sequence[SubtaskTruth], truth: str) -> float:
    """Speed of a subtask on a GPU beside others, over its speed alone.

    train and drawn ones: each resource stretches by its total demand beyond 1, weighted by how much of its work is
    there. judge: the scarcest resource alone decides, and every neighbour costs 3 % for switching. Two equal subtasks
    that fill one resource run at half speed under both, as Gavel's pairs of equal jobs do.
    """
    if not others:
        return 1.0
    totals: list[float] = [sum(column) for column in zip(mine.shares, *(o.shares for o in others), strict=True)]
    if truth == "judge":
        scarcest = max(1.0, *(t for t, share in zip(totals, mine.shares, strict=True) if share > 0.05))
        return 1.0 / (scarcest * (1.0 + 0.03 * len(others)))
    weight = sum(mine.shares)
    stretch = sum(share / weight * max(0.0, t - 1.0) for share, t in zip(mine.shares, totals, strict=True))
    return 1.0 / (1.0 + stretch)


@dataclass(frozen=True, slots=True)
class PipelineTask:
    """One task to be done: an application on so many units of size (frames, pictures)."""

    job: Job
    application: str
    size: float
    submit_time_s: float
    number: int


def pipeline_job(application: str, size: float, name: str, truth: str, *, is_profiled: bool = True) -> Job:
    """The task's DAG; `is_profiled` writes each subtask's metrics into the request."""
    kinds = subtask_truths(truth)
    subtasks: list[Subtask] = []
    before: tuple[str, ...] = ()
    for stage in APPLICATIONS[application]:
        for kind in stage:
            profile = kinds[kind].profile() if is_profiled else {}
            subtasks.append(Subtask(kind, kind, before, kinds[kind].has_gpu_version, profile, size))
        before = stage
    return Job(JobId(name), model=application, architecture=Architecture.PIPELINE, subtasks=tuple(subtasks))


@dataclass(frozen=True, slots=True)
class PipelineWorkload:
    """LDWP's experiments: `tasks` tasks of random application at `per_minute`, Poisson; sizes uniform.

    The paper gives no sizes. One to four minutes of video at 25 frames a second load its eleven nodes at 50 tasks a
    minute as the paper reports it: throughput grows with the nodes up to ten.
    """

    tasks: int = 1500
    per_minute: float = 50.0
    applications: Sequence[str] = tuple(APPLICATIONS)
    sizes: tuple[float, float] = (2000.0, 6000.0)
    is_profiled: bool = True

    def generate(self, truth: str, seed: int) -> list[PipelineTask]:
        """The tasks in order of arrival."""
        rng = np.random.default_rng((seed, 5))
        times = np.cumsum(rng.exponential(60.0 / self.per_minute, self.tasks))
        return [self._task(i, float(time_s), truth, rng) for i, time_s in enumerate(times)]

    def _task(self, number: int, submit_s: float, truth: str, rng: np.random.Generator) -> PipelineTask:
        application = str(self.applications[int(rng.integers(len(self.applications)))])
        size = float(rng.uniform(*self.sizes))
        job = pipeline_job(application, size, f"task{number:05d}", truth, is_profiled=self.is_profiled)
        return PipelineTask(job, application, size, submit_s, number)
