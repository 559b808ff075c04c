"""Nodes, jobs and events of the golden questions, drawn from a generator that a name seeds. Messages only."""

from random import Random
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from placewise.v1 import cluster_pb2 as cluster_pb
from placewise.v1 import decision_pb2 as decision_pb
from placewise.v1 import job_pb2 as job_pb

NOW_S = 1_800_000_000
MODELS = (
    ("ResNet-50", 25.56, 128, 1_281_167),
    ("VGG16", 138.36, 64, 1_281_167),
    ("BERT", 110.0, 12, 88_000),
    ("DeepSpeech2", 38.0, 40, 20_000),
    ("ResNet18", 11.69, 256, 50_000),
    ("NeuMF", 31.8, 1024, 4_000_000),
    ("LSTM", 60.0, 32, 60_000),
    ("nobody-knows-it", 7.5, 16, 10_000),
    ("", 0.0, 0, 0),
)
NORMAL, URGENT, PRIOR = job_pb.Job.NORMAL, job_pb.Job.URGENT, job_pb.Job.PRIOR
Event = cluster_pb.JobEvent


def drawn(name: str) -> Random:
    """Numbers that depend on the name alone."""
    return Random(name)


def time_of(seconds: float) -> Timestamp:
    stamp = Timestamp()
    stamp.FromMilliseconds(round(seconds * 1000))
    return stamp


def node(
    name: str,
    gpus: int = 4,
    model: str = "V100",
    rng: Random | None = None,
    cores: float = 32.0,
    gpu_gib: float = 16.0,
    jobs_per_gpu: int = 1,
    observed_s: float = NOW_S,
    **more: Any,
) -> cluster_pb.Node:
    """A node; with `rng` its telemetry is drawn, else it has none."""
    capacity = job_pb.Resources(
        cpu_cores=cores,
        gpus=gpus,
        memory_gib=8 * cores,
        gpu_memory_gib=gpus * gpu_gib,
        network_gbps=more.pop("net", 25.0),
    )
    capacity.extended.update(more.pop("extended", {}))
    listed = [
        cluster_pb.Gpu(index=i, model=model, memory_gib=gpu_gib, **(_gpu_readings(rng) if rng else {}))
        for i in range(gpus)
    ]
    telemetry = more.pop("telemetry", None)
    if telemetry is None and rng is not None:
        telemetry = readings(rng, observed_s)
    found = cluster_pb.Node(
        id=name,
        capacity=capacity,
        gpus=listed,
        max_jobs_per_gpu=jobs_per_gpu,
        state=more.pop("state", cluster_pb.Node.READY),
        rack=more.pop("rack", ""),
        telemetry=telemetry,
        hardware=more.pop("hardware", None),
    )
    found.labels.update(more.pop("labels", {}))
    assert not more, more
    return found


def _gpu_readings(rng: Random) -> dict[str, float]:
    return {"util": _r(rng, 0, 0.6), "memory_util": _r(rng, 0, 0.5), "celsius": _r(rng, 35, 70)}


def readings(rng: Random, observed_s: float = NOW_S, **more: float) -> cluster_pb.Telemetry:
    found: dict[str, float] = {
        "cpu_util": _r(rng, 0, 0.8),
        "memory_util": _r(rng, 0.1, 0.7),
        "gpu_util": _r(rng, 0, 0.7),
        "gpu_memory_util": _r(rng, 0, 0.6),
        "cache_util": _r(rng, 0, 0.5),
        "tx_gbps": _r(rng, 0, 5),
        "rx_gbps": _r(rng, 0, 5),
        "cpu_celsius": _r(rng, 35, 65),
        "gpu_celsius": _r(rng, 35, 70),
        "limit_celsius": 85.0,
        "power_watts": _r(rng, 200, 900),
        "ambient_celsius": _r(rng, 18, 27),
        **more,
    }
    return cluster_pb.Telemetry(observe_time=time_of(observed_s), **found)


def _r(rng: Random, low: float, high: float) -> float:
    return round(rng.uniform(low, high), 3)


def nodes_request(cluster: str, nodes: list[cluster_pb.Node]) -> cluster_pb.ReportNodesRequest:
    return cluster_pb.ReportNodesRequest(cluster=cluster, nodes=nodes, full=True)


def demand(cpu: float = 2.0, gpus: float = 1.0, gib: float = 8.0, **more: Any) -> job_pb.Resources:
    extended = more.pop("extended", {})
    found = job_pb.Resources(cpu_cores=cpu, gpus=gpus, memory_gib=gib, **more)
    found.extended.update(extended)
    return found


def group(count: int, needs: job_pb.Resources, is_ps: bool = False, **more: Any) -> job_pb.TaskGroup:
    selector = more.pop("selector", {})
    role = job_pb.TaskGroup.PARAMETER_SERVER if is_ps else job_pb.TaskGroup.WORKER
    found = job_pb.TaskGroup(role=role, count=count, demand=needs, **more)
    found.node_selector.update(selector)
    return found


def job(name: str, groups: list[job_pb.TaskGroup], rng: Random, **more: Any) -> job_pb.Job:
    """A job of one of MODELS; most of its numbers are drawn."""
    model, params, batch, samples = more.pop("model", None) or rng.choice(MODELS)
    return job_pb.Job(
        id=name,
        model=model,
        groups=groups,
        architecture=more.pop("architecture", job_pb.Job.ALL_REDUCE),
        total_epochs=rng.randint(1, 90),
        batch_size=batch,
        dataset_size=samples,
        priority=more.pop("priority", rng.choice((NORMAL, NORMAL, PRIOR, URGENT))),
        submit_time=time_of(NOW_S - rng.randint(0, 7200)),
        single_gpu_seconds=more.pop("single_gpu_seconds", rng.choice((0.0, 600.0, 3600.0, 36_000.0, 250_000.0))),
        params_millions=params,
        attained_gpu_seconds=rng.choice((0.0, 0.0, 1800.0, 90_000.0)),
        **more,
    )


METRICS = ("cpu", "host_memory", "sm", "l1", "l2", "texture", "dram", "load_throughput", "store_throughput", "speedup")
KINDS = ("decode", "detect", "track", "classify", "draw", "encode")


def subtasks(rng: Random, count: int, running_on: list[str] | None = None) -> list[job_pb.Subtask]:
    """A DAG of subtasks; some have a GPU version, and of most metrics a part was measured."""
    found: list[job_pb.Subtask] = []
    for i in range(count):
        has_gpu = rng.random() < 0.6
        stage = job_pb.Subtask(
            id=f"s{i}",
            kind=rng.choice(KINDS),
            after=[f"s{rng.randrange(i)}"] if i and rng.random() < 0.5 else [],
            has_gpu_version=has_gpu,
            size=rng.choice((0.0, 30.0, 120.0)),
        )
        for metric in METRICS:
            if metric == "speedup":
                if has_gpu and rng.random() < 0.8:
                    stage.profile[metric] = _r(rng, 0.5, 20.0)
            elif rng.random() < 0.5:
                stage.profile[metric] = _r(rng, 0.01, 0.95)
        if not stage.after:
            stage.state = rng.choice((job_pb.Subtask.PENDING, job_pb.Subtask.PENDING, job_pb.Subtask.DONE))
            if running_on and rng.random() < 0.3:
                unit = running_on.pop()
                stage.state = job_pb.Subtask.RUNNING
                stage.unit = unit
                stage.has_gpu_version |= unit.startswith("gpu")
        found.append(stage)
    return found


def started(job: job_pb.Job, placed: list[cluster_pb.Assignment], ago_s: float = 60.0) -> cluster_pb.JobEvent:
    return Event(job_id=job.id, kind=Event.STARTED, event_time=time_of(NOW_S - ago_s), placement=placed, job=job)


def ended(job_id: str, kind: Any = Event.FINISHED) -> cluster_pb.JobEvent:
    return Event(job_id=job_id, kind=kind, event_time=time_of(NOW_S))


def progressed(job_id: str, speed: float, epochs: float) -> cluster_pb.JobEvent:
    return Event(job_id=job_id, kind=Event.PROGRESS, event_time=time_of(NOW_S - 5), speed=speed, epochs_done=epochs)


def assigned(task: str, name: str, needs: job_pb.Resources, gpus: list[int], is_ps: bool = False) -> Any:
    role = job_pb.TaskGroup.PARAMETER_SERVER if is_ps else job_pb.TaskGroup.WORKER
    return cluster_pb.Assignment(task=task, role=role, node=name, gpu_indices=gpus, demand=needs)


def place(cluster: str, jobs: list[job_pb.Job], policy: str, seed: int, **more: Any) -> decision_pb.PlaceRequest:
    return decision_pb.PlaceRequest(cluster=cluster, jobs=jobs, policy=policy, seed=seed, **more)
