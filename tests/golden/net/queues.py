"""Admissions by every admission policy, and partitions of divisible tasks."""

from random import Random
from typing import Any

from tests.golden.net import messages as m
from tests.golden.net.rows import Names, Row, plain
from tests.golden.net.seams import PlacewiseError, Service, serving

from placewise.v1 import cluster_pb2 as cluster_pb
from placewise.v1 import decision_pb2 as decision_pb
from placewise.v1 import job_pb2 as job_pb

QUEUES, ROUNDS, SLOT_S = 15, 4, 10.0
PARTITIONED = "partitions.jsonl"
KINDS = ("render", "encode", "index")


def file_of(policy: str) -> str:
    return f"admissions-{policy}.jsonl"


async def admitted(policy: str) -> list[Row]:
    """QUEUES queues on three clusters, each asked ROUNDS times: a slot apart, and once more in the same slot."""
    found: list[Row] = []
    async with serving() as service:
        clusters = {load: await _loaded(service, load, policy) for load in (0.0, 0.5, 1.0)}
        questions: dict[str, tuple[str, Random, list[job_pb.Job]]] = {}
        for q in range(QUEUES):
            name = f"q{q:02}"
            rng = m.drawn(f"queue/{policy}/{q}")
            cluster = list(clusters.values())[q % 3]
            await _settings(service, cluster, name, rng)
            questions[name] = cluster, rng, []
        for turn in range(ROUNDS):
            if turn not in (0, 2):
                service.pass_time(SLOT_S * (1 if turn == 1 else 7))
            for name, (cluster, rng, jobs) in questions.items():
                if turn != 2:
                    jobs += [_job(rng, f"{name}-{turn}-{i}") for i in range(rng.choice((1, 2, 3)))]
                    jobs.append(_twin(jobs[-1]))
                asked = decision_pb.AdmitOrWaitRequest(
                    cluster=cluster, queue=name, jobs=jobs, policy=policy, explain=True, seed=turn
                )
                if turn == 3 and rng.random() < 0.5:
                    asked.place.policy = "consolidate"
                row: Row = {"id": f"{policy}/{name}/{turn}"}
                row["answer"] = Names().plain(await _answer(service, "AdmitOrWait", asked))
                found.append(row)
        for cluster in clusters.values():
            names = Names()
            found += [
                {"id": f"{policy}/{cluster}/record-{i:02}", "record": names.plain(_without_jobs(record))}
                for i, record in enumerate(await service.records(cluster))
                if record[1] == "decision" and record[3]["rpc"] == "AdmitOrWait" and i % 6 == 0
            ]
    return found


def _without_jobs(record: list[Any]) -> list[Any]:
    """Jobs are as in the records of placements; here their ids do."""
    body = {**record[3], "jobs": [job["id"] for job in record[3]["jobs"]]}
    return [*record[:3], body]


async def _answer(service: Service, rpc: str, message: Any) -> Any:
    try:
        return plain(await service.ask(rpc, message))
    except PlacewiseError as error:
        return {"error": error.reason, "message": error.message}


async def _settings(service: Service, cluster: str, queue: str, rng: Random) -> None:
    settings = cluster_pb.ClusterSettings()
    row = settings.queues.add(queue=queue, v=rng.choice((0.1, 1.0, 10.0)), epsilon_seconds=rng.choice((10.0, 60.0)))
    row.tau_seconds = rng.choice((600.0, 3600.0))
    row.slot_duration.FromSeconds(int(SLOT_S))
    request = cluster_pb.UpdateClusterSettingsRequest(cluster=cluster, settings=settings)
    request.update_mask.paths.append("queues")
    await service.ask("UpdateClusterSettings", request)


async def _loaded(service: Service, load: float, policy: str) -> str:
    """A cluster of six nodes, so much of whose GPUs is in use."""
    cluster, rng = f"load-{load:g}", m.drawn(f"load/{load}/{policy}")
    nodes = [m.node(f"g{i}", 4, "V100" if i < 4 else "P100", rng, 32) for i in range(5)]
    nodes.append(m.node("g5", 2, "V100", rng, 8, state=cluster_pb.Node.DRAINING if load else cluster_pb.Node.READY))
    await service.ask("ReportNodes", m.nodes_request(cluster, nodes))
    needs = m.demand(2.0, 1.0, 8.0)
    events = []
    for node in nodes[:5]:
        for g in range(round(4 * load)):
            old = m.job(f"old-{node.id}-{g}", [m.group(1, needs)], rng)
            events.append(m.started(old, [m.assigned("worker-0", node.id, needs, [g])]))
    if events:
        await service.ask("ReportJobEvents", cluster_pb.ReportJobEventsRequest(cluster=cluster, events=events))
    return cluster


def _job(rng: Random, name: str) -> job_pb.Job:
    """An elastic job, a rigid one, or one that may take any count."""
    kind = rng.choice(("elastic", "elastic", "rigid", "any", "shared"))
    more: dict[str, Any] = {"queue": name.split("-", maxsplit=1)[0], "iterations": rng.choice((0.0, 50_000.0))}
    groups: list[job_pb.TaskGroup] = []
    if kind == "elastic":
        least = rng.choice((1, 1, 2))
        more["elastic"] = job_pb.ElasticRange(min_gpus=least, max_gpus=rng.choice((2, 4, 8, 16)))
        groups = rng.choice(([], [m.group(least, m.demand(2.0, 1.0, 8.0))]))
    elif kind in ("rigid", "shared"):
        gpus = 0.5 if kind == "shared" else rng.choice((1.0, 2.0))
        groups = [m.group(rng.choice((1, 2, 4)), m.demand(rng.choice((1.0, 4.0)), gpus, 8.0))]
        if kind == "shared":
            more["gpu_sharing"] = job_pb.GpuSharing(allowed=True)
    return m.job(name, groups, rng, **more)


def _twin(job: job_pb.Job) -> job_pb.Job:
    """The same job under another id: policies that sort have a tie to break."""
    twin = job_pb.Job()
    twin.CopyFrom(job)
    twin.id = f"twin-{job.id}"
    return twin


async def partitioned() -> list[Row]:
    """Sixty questions about divisible tasks: split over all or named units, and spread again half-way."""
    found: list[Row] = []
    async with serving() as service:
        clusters = [await _units(service, i) for i in range(4)]
        names = Names()
        for i in range(60):
            rng = m.drawn(f"partition/{i}")
            cluster, known = clusters[i % len(clusters)]
            asked = _task(rng, cluster, known, i)
            answer = await _answer(service, "Partition", asked)
            found.append({"id": f"{cluster}/{i:02}", "answer": names.plain(answer)})
            if answer.get("shares") and rng.random() < 0.6:
                asked.progress.extend(_progress(rng, answer["shares"]))
                answer = await _answer(service, "Partition", asked)
                found.append({"id": f"{cluster}/{i:02}/again", "answer": names.plain(answer)})
            await _finish_share(service, cluster, rng, i)
        for cluster, _ in clusters:
            names = Names()
            found += [
                {"id": f"{cluster}/record-{i:02}", "record": names.plain(record)}
                for i, record in enumerate(await service.records(cluster))
                if record[1] == "outcome" or i % 3 == 0
            ]
    return found


async def _units(service: Service, number: int) -> tuple[str, list[str]]:
    """A cluster of nodes with and without GPUs, some warm, some busy."""
    cluster, rng = f"heat-{number}", m.drawn(f"heat/{number}")
    nodes = []
    for i in range((0, 4, 8, 12)[number]):
        hardware = cluster_pb.Hardware(
            cpu_ghz=rng.choice((0.0, 2.1, 3.4)), cache_mib=rng.choice((0.0, 16.0, 38.5)), gpu_ghz=rng.choice((0.0, 1.4))
        )
        warm = m.readings(rng, cpu_celsius=rng.choice((45.0, 70.0, 84.0, 90.0)), gpu_celsius=rng.choice((40.0, 80.0)))
        telemetry = rng.choice((warm, warm, None))
        state = rng.choice((cluster_pb.Node.READY,) * 5 + (cluster_pb.Node.DOWN, cluster_pb.Node.DRAINING))
        nodes.append(
            m.node(
                f"h{i}", rng.choice((0, 1, 2)), "V100", None, 16, hardware=hardware, telemetry=telemetry, state=state
            )
        )
    await service.ask("ReportNodes", m.nodes_request(cluster, nodes))
    needs = m.demand(1.0, 1.0, 2.0)
    events = []
    for node in nodes:
        if node.capacity.gpus and rng.random() < 0.3:
            old = m.job(f"old-{node.id}", [m.group(1, needs)], rng)
            events.append(m.started(old, [m.assigned("worker-0", node.id, needs, [0])]))
    if events:
        await service.ask("ReportJobEvents", cluster_pb.ReportJobEventsRequest(cluster=cluster, events=events))
    known = [f"{n.id}/gpu{g}" for n in nodes for g in range(len(n.gpus))] + [n.id for n in nodes]
    return cluster, known


def _task(rng: Random, cluster: str, known: list[str], number: int) -> decision_pb.PartitionRequest:
    task = decision_pb.DivisibleTask(
        id=f"task{number}",
        serial_scale=rng.choice((0.0, 5.0, 50.0)),
        parallel_scale=rng.choice((1.0, 20.0, 400.0, 20_000.0)),
        overhead_s=rng.choice((0.0, 0.0, 0.5, 3.0)),
        kind=rng.choice(KINDS),
    )
    if rng.random() < 0.3:
        task.demand.CopyFrom(m.demand(rng.choice((1.0, 20.0)), rng.choice((0.0, 1.0)), rng.choice((1.0, 500.0))))
    units = sorted(rng.sample(known, min(len(known), 3))) if known and rng.random() < 0.3 else []
    if units and rng.random() < 0.3:
        units.append("nowhere")
    return decision_pb.PartitionRequest(
        cluster=cluster, task=task, units=units, explain=rng.random() < 0.7, dry_run=rng.random() < 0.2
    )


def _progress(rng: Random, shares: list[Row]) -> list[decision_pb.ShareProgress]:
    found = []
    for share in shares:
        seconds = share.get("predicted_seconds", 1.0)
        found.append(
            decision_pb.ShareProgress(
                node=share["node"],
                unit=share.get("unit", "cpu"),
                scale=share.get("scale", 0.0),
                predicted_seconds=seconds,
                capability=share.get("capability", 1.0),
                done=rng.choice((0.1, 0.5, 0.9, 1.0)),
                elapsed_seconds=seconds * rng.choice((0.5, 1.0, 3.0)),
                move_requested=rng.random() < 0.3,
            )
        )
    return found


async def _finish_share(service: Service, cluster: str, rng: Random, number: int) -> None:
    """A host reports the cost of a share: overheads are learned by kind."""
    share = cluster_pb.ShareOutcome(
        task_kind=rng.choice(KINDS),
        node="h0",
        unit="cpu",
        scale=5.0,
        seconds=9.0,
        overhead_seconds=rng.uniform(0.1, 2.0),
    )
    event = m.Event(job_id=f"task{number}", kind=m.Event.SHARE_FINISHED, event_time=m.time_of(m.NOW_S), share=share)
    await service.ask("ReportJobEvents", cluster_pb.ReportJobEventsRequest(cluster=cluster, events=[event]))
