"""The papers' workloads as lists of SimJob: Harmony's gangs, the QoS paper's classes, Proteus' elastic jobs.

Every draw comes from one seeded generator, so that equal seeds give equal jobs under every policy. The length of a job
is drawn as its run time alone on the GPUs it asks for; the simulation's true speed turns that time into samples.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from placewise_core.domain.job import Architecture, Job, JobId, Priority, Resources
from placewise_training.sim.arrivals import INTERVAL_S, arrival_times
from placewise_training.sim.jobs import SimJob, elastic, gang
from placewise_training.sim.speed.composed import ComposedSpeed

HARMONY_MODELS = ("resnet50", "vgg16", "resnext110", "seq2seq", "ctc", "wlm")
QOS_MODELS = ("alexnet", "googlenet", "resnet50", "inceptionv3", "lstm", "seq2seq")
PROTEUS_MODELS = ("vgg16", "alexnet", "googlenet", "resnet18")

_EPOCH_S = 60.0  # one epoch alone: data sets are scaled down, as the paper's large ones are; a minute is our choice
# Urgent : prior : normal (QoS paper), and how many times its one-GPU latency each may take: (9), reconstructed.
PRIORITY_SHARES: Mapping[Priority, float] = {Priority.URGENT: 0.05, Priority.PRIOR: 0.35, Priority.NORMAL: 0.60}
EXPECTED_LATENCIES: Mapping[Priority, float] = {Priority.URGENT: 0.0, Priority.PRIOR: 1.0, Priority.NORMAL: 2.0}


@dataclass(frozen=True, slots=True)
class Lengths:
    """Skewed job lengths: log-normal, many short and a few long, cut off at both ends (seconds)."""

    median_s: float = 720.0
    sigma: float = 1.0
    low_s: float = 120.0
    high_s: float = 10_000.0

    def draw(self, rng: np.random.Generator) -> float:
        drawn = float(self.median_s * np.exp(self.sigma * rng.standard_normal()))
        return min(max(drawn, self.low_s), self.high_s)


@dataclass(frozen=True, slots=True)
class HarmonyWorkload:
    """Harmony's jobs: 1…`most_tasks` workers, as many parameter servers or an all-reduce ring, six models.

    Demands follow its servers of 8 cores and 2 GPUs: a worker asks for one GPU, two cores and 8 GiB (CTC three cores),
    a parameter server for one core and 4 GiB.
    """

    jobs: int = 200
    pattern: str = "uniform"
    per_interval: float = 3.0
    most_tasks: int = 3
    models: Sequence[str] = HARMONY_MODELS
    lengths: Lengths = Lengths()
    interval_s: float = INTERVAL_S
    gpu_model: str = "1080TI"
    gpus_per_node: int = 2

    def generate(self, truth: ComposedSpeed, seed: int) -> list[SimJob]:
        """The jobs in order of arrival."""
        rng = np.random.default_rng((seed, 1))
        times = arrival_times(self.pattern, rng, self.jobs, self.per_interval, self.interval_s)
        return [self._job(i, time_s, truth, rng) for i, time_s in enumerate(times)]

    def _job(self, number: int, submit_s: float, truth: ComposedSpeed, rng: np.random.Generator) -> SimJob:
        model = str(self.models[int(rng.integers(len(self.models)))])
        workers = int(rng.integers(1, self.most_tasks + 1))
        servers = int(rng.integers(1, self.most_tasks + 1)) if rng.random() < 0.5 else 0
        length_s = self.lengths.draw(rng)
        profile = truth.catalogue[model]
        groups = gang(
            workers,
            servers,
            worker_demand=Resources(
                cpu_cores=3 if model == "ctc" else 2,
                gpus=1,
                memory_gib=8,
                gpu_memory_gib=min(8.0, profile.gpu_memory_gib),
                network_gbps=0,
            ),
            server_demand=Resources(cpu_cores=1, memory_gib=4),
        )
        job = Job(
            id=JobId(f"job{number:05d}"),
            model=model,
            architecture=_architecture(workers, servers),
            groups=groups,
            batch_size=profile.local_batch * workers,
            submit_time_s=submit_s,
            params_millions=profile.params_millions,
        )
        return sized(job, length_s, truth, self.gpu_model, self.gpus_per_node, number)


def _architecture(workers: int, servers: int) -> Architecture:
    if servers:
        return Architecture.PARAMETER_SERVER
    return Architecture.ALL_REDUCE if workers > 1 else Architecture.SINGLE


def sized(
    job: Job,
    length_s: float,
    truth: ComposedSpeed,
    gpu_model: str,
    gpus_per_node: int,
    number: int,
    deadline_s: float = float("inf"),
) -> SimJob:
    """The job with the work it does in `length_s` alone, in epochs of a minute."""
    draft = SimJob(job=job, samples=1.0, submit_time_s=job.submit_time_s)
    rate = truth.alone_rate(draft, gpu_model, gpus_per_node)
    data_set = max(1, round(rate * _EPOCH_S))
    epochs = rate * length_s / data_set
    single = SimJob(job=_single(job), samples=1.0, submit_time_s=0.0)
    single_s = rate * length_s / truth.alone_rate(single, gpu_model, gpus_per_node)
    made = replace(job, dataset_size=data_set, total_epochs=epochs, single_gpu_s=single_s)
    return SimJob(
        job=made,
        samples=rate * length_s,
        submit_time_s=job.submit_time_s,
        number=number,
        ideal_s=length_s,
        deadline_s=deadline_s,
    )


def _single(job: Job) -> Job:
    """The job as one worker on one GPU, with its whole batch: shape ⟨1, 1⟩ of the QoS paper."""
    return Job(
        id=job.id,
        model=job.model,
        groups=gang(1, worker_demand=Resources(cpu_cores=1, gpus=1)),
        batch_size=job.batch_size,
    )


@dataclass(frozen=True, slots=True)
class ElasticWorkload:
    """Jobs whose GPU count admission chooses: the QoS paper's and Proteus'.

    Poisson 5/10/20 per hour over 24 hours with urgent, prior and normal ones (QoS), or small and large data, arriving
    dispersed or concentrated (Proteus). `lengths` are one-GPU times.
    """

    jobs: int = 240
    pattern: str = "poisson"
    per_hour: float = 10.0
    most_gpus: int = 16
    models: Sequence[str] = QOS_MODELS
    lengths: Lengths = Lengths(median_s=1800.0, sigma=0.8, low_s=300.0, high_s=21_600.0)
    has_classes: bool = True
    gpu_model: str = "2080TI"
    gpus_per_node: int = 4

    def generate(self, truth: ComposedSpeed, seed: int) -> list[SimJob]:
        """The jobs in order of arrival."""
        rng = np.random.default_rng((seed, 2))
        times = arrival_times(self.pattern, rng, self.jobs, self.per_hour, 3600.0)
        return [self._job(i, time_s, truth, rng) for i, time_s in enumerate(times)]

    def _job(self, number: int, submit_s: float, truth: ComposedSpeed, rng: np.random.Generator) -> SimJob:
        model = str(self.models[int(rng.integers(len(self.models)))])
        length_s = self.lengths.draw(rng)
        priority = draw_priority(rng) if self.has_classes else Priority.NORMAL
        profile = truth.catalogue[model]
        rigid = Job(
            id=JobId(f"job{number:05d}"),
            model=model,
            batch_size=profile.local_batch * 8,
            submit_time_s=submit_s,
            priority=priority,
            params_millions=profile.params_millions,
        )
        job = elastic(rigid, self.most_gpus, Resources(cpu_cores=2, memory_gib=8))
        deadline_s = submit_s + EXPECTED_LATENCIES[priority] * length_s if self.has_classes else float("inf")
        return sized(job, length_s, truth, self.gpu_model, self.gpus_per_node, number, deadline_s)


def draw_priority(rng: np.random.Generator) -> Priority:
    """Urgent, prior or normal at 5 : 35 : 60."""
    point, names = rng.random(), list(PRIORITY_SHARES)
    for name in names:
        point -= PRIORITY_SHARES[name]
        if point < 0:
            return name
    return names[-1]


# Proteus' four task environments: mostly small or mostly large data, dispersed or concentrated.
_SMALL = Lengths(median_s=600.0, sigma=0.5, low_s=120.0, high_s=3600.0)
_LARGE = Lengths(median_s=7200.0, sigma=0.5, low_s=1800.0, high_s=36_000.0)


def proteus_workload(data: str, arrivals: str, jobs: int = 60) -> ElasticWorkload:
    """`data` small or large, `arrivals` dispersed or concentrated; about the same GPU hours per hour in both sizes."""
    lengths = {"small": _SMALL, "large": _LARGE}[data]
    return ElasticWorkload(
        jobs=jobs,
        pattern=arrivals,
        per_hour={"small": 24.0, "large": 2.0}[data],
        models=PROTEUS_MODELS,
        lengths=lengths,
        has_classes=False,
    )
