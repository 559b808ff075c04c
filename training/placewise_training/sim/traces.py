"""Cluster traces as workloads: the shipped cuts, and the mapping of their jobs to models.

A trace does not name the models of its jobs. `TraceMapping` states the assumption: a seeded draw by GPU count.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np

from placewise_core.domain.job import Architecture, Job, JobId, Priority, Resources
from placewise_core.domain.traces import TraceJob, parse_trace, read_trace
from placewise_training.sim.jobs import SimJob, elastic, gang
from placewise_training.sim.speed.composed import ComposedSpeed
from placewise_training.sim.workloads import EXPECTED_LATENCIES, draw_priority, sized

SHIPPED = {"philly": "philly_cut.csv", "ms_itp": "ms_itp_cut.csv"}


def read_jobs(trace: str) -> list[TraceJob]:
    """The jobs of a file, or of a shipped cut ("philly", "ms_itp"), by submission. Raises TraceError, OSError."""
    if trace not in SHIPPED:
        return read_trace(Path(trace))
    return parse_trace((resources.files("placewise_training.data") / "open" / SHIPPED[trace]).read_text("utf-8"), trace)


# (most GPUs, models with their weights): small jobs are mostly convolutional and recurrent, large ones transformers.
MODEL_MIX: Sequence[tuple[float, Mapping[str, float]]] = (
    (1, {"resnet50": 3, "resnet18": 2, "lstm": 2, "vgg16": 1, "seq2seq": 1, "deepspeech2": 1}),
    (8, {"resnet50": 3, "vgg16": 2, "seq2seq": 2, "bert": 2, "deepspeech2": 1}),
    (math.inf, {"bert": 3, "gpt2": 2, "resnet50": 2, "transformer": 1}),
)


@dataclass(frozen=True, slots=True)
class TraceMapping:
    """How a trace job becomes a simulated one: model drawn by GPU count, one all-reduce worker per GPU.

    `duration_s` of the trace is taken as the time alone, as asked for. Each worker asks for `cores_per_gpu` and
    `memory_gib_per_gpu`. `is_elastic` leaves the GPU count to admission, up to the trace's or 8.
    `has_classes` draws urgent, prior and normal with the deadlines of the QoS paper.
    """

    gpu_model: str = "P100"
    gpus_per_node: int = 8
    cores_per_gpu: float = 4.0
    memory_gib_per_gpu: float = 24.0
    mix: Sequence[tuple[float, Mapping[str, float]]] = MODEL_MIX
    is_elastic: bool = False
    has_classes: bool = False

    def generate(self, jobs: Sequence[TraceJob], truth: ComposedSpeed, seed: int) -> Iterator[SimJob]:
        """The jobs one by one, from time 0 on; nothing is kept of those passed on."""
        rng = np.random.default_rng((seed, 3))
        start_s = jobs[0].submit_s if jobs else 0.0
        for number, job in enumerate(jobs):
            yield self._job(job, number, job.submit_s - start_s, truth, rng)

    def model(self, gpus: int, rng: np.random.Generator) -> str:
        """A model for a job of that many GPUs."""
        weights = next(table for most, table in self.mix if gpus <= most)
        point = rng.random() * sum(weights.values())
        for name, weight in weights.items():
            point -= weight
            if point < 0:
                return name
        return next(iter(weights))

    def _job(
        self, row: TraceJob, number: int, submit_s: float, truth: ComposedSpeed, rng: np.random.Generator
    ) -> SimJob:
        model = self.model(row.gpus, rng)
        profile = truth.catalogue[model]
        is_fraction = 0 < row.gpu_fraction < 1
        demand = Resources(
            cpu_cores=self.cores_per_gpu,
            gpus=row.gpu_fraction if is_fraction else 1.0,
            memory_gib=self.memory_gib_per_gpu,
        )
        job = Job(
            id=JobId(row.id),
            model=model,
            architecture=Architecture.ALL_REDUCE if row.gpus > 1 else Architecture.SINGLE,
            groups=gang(row.gpus, worker_demand=demand),
            batch_size=profile.local_batch * row.gpus,
            queue=row.queue,
            priority=draw_priority(rng) if self.has_classes else Priority.NORMAL,
            submit_time_s=submit_s,
            params_millions=profile.params_millions,
        )
        made = sized(job, row.duration_s, truth, self.gpu_model, self.gpus_per_node, number)
        if self.has_classes:
            made.deadline_s = submit_s + EXPECTED_LATENCIES[job.priority] * made.job.single_gpu_s
        if self.is_elastic:
            per_gpu = Resources(cpu_cores=self.cores_per_gpu, memory_gib=self.memory_gib_per_gpu)
            made.job = elastic(made.job, max(8, row.gpus), per_gpu)
        return made
