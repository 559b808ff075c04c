"""Inputs and outputs of each net of the bundle, as questions make it run: twenty questions for each policy that has
one, each of a cluster that nobody asked about before, so that nothing is remembered of it."""

from collections.abc import Iterator, Mapping
from random import Random

import numpy as np
from tests.golden.net import messages as m
from tests.golden.net import rows
from tests.golden.net.rows import Row
from tests.golden.net.seams import Service, numbers, serving
from tests.golden.net.worlds import Question, _gang

from placewise.v1 import cluster_pb2 as cluster_pb
from placewise.v1 import decision_pb2 as decision_pb
from placewise.v1 import job_pb2 as job_pb

FILE = "nets-{}.jsonl.gz"
ASKED = ("harmony", "search", "ldwp", "stdm", "sharing")
QUESTIONS = 20
# Of nets that read what another net gave: the inputs that code makes.
_FROM_CODE = {"policy_jobs.onnx": ("jobs",), "policy_decoder.onnx": ("step",)}


async def runs_of(kind: str) -> list[Row]:
    """One row for each distinct run of a net: question, net, inputs and outputs."""
    heard: list[tuple[str, Mapping[str, np.ndarray], Mapping[str, np.ndarray]]] = []
    found: list[Row] = []
    async with serving(lambda *run: heard.append(run)) as service:
        for i in range(QUESTIONS):
            rng = m.drawn(f"nets/{kind}/{i}")
            cluster = f"net-{kind}-{i}"
            await _prepare(service, cluster, kind, rng)
            heard.clear()
            for request in _requests(cluster, kind, rng):
                await service.ask("Place", request)
            found += _distinct(f"{kind}/{i:02}", heard)
    return found


def _distinct(question: str, heard: list) -> Iterator[Row]:
    seen: dict[str, int] = {}
    for net, inputs, outputs in heard:
        given = {name: _told(array) for name, array in inputs.items()}
        key = rows.dumped({"net": net, "inputs": given})
        if key in seen:
            continue
        seen[key] = len(seen)
        yield {
            "id": f"{question}/{len(seen):02}/{net}",
            "question": question,
            "model": net,
            "inputs": given,
            "outputs": {name: _told(array) for name, array in sorted(outputs.items())},
        }


def _told(array: np.ndarray) -> Row:
    return {"dtype": str(array.dtype), "shape": list(array.shape), "data": numbers(array.ravel())}


async def _prepare(service: Service, cluster: str, kind: str, rng: Random) -> None:
    """A cluster of a few nodes on which a few jobs run."""
    share = 3 if kind == "sharing" else 1
    nodes = [
        m.node(
            f"n{i}", rng.choice((2, 4)), rng.choice(("V100", "P100", "T4")), rng, 16, rack=f"r{i % 2}",
            jobs_per_gpu=share, hardware=cluster_pb.Hardware(cpu_ghz=2.0 + 0.2 * i, cache_mib=16, gpu_ghz=1.2),
        )
        for i in range(rng.randint(1, 6))
    ]  # fmt: skip
    await service.ask("ReportNodes", m.nodes_request(cluster, nodes))
    events = []
    for k, node in enumerate(nodes):
        if rng.random() < 0.7:
            needs = m.demand(1.0, 0.5 if kind == "sharing" else 1.0, 4.0)
            old = m.job(
                f"old{k}", [m.group(1, needs)], rng, gpu_sharing=job_pb.GpuSharing(allowed=kind == "sharing"),
                subtasks=m.subtasks(rng, 3) if kind == "ldwp" else [],
            )  # fmt: skip
            events.append(m.started(old, [m.assigned("worker-0", node.id, needs, [k % 2])], rng.randint(10, 5000)))
            events.append(m.progressed(old.id, 0.01 * (k + 1), 0.5 * k))
    if events:
        await service.ask("ReportJobEvents", cluster_pb.ReportJobEventsRequest(cluster=cluster, events=events))


def _requests(cluster: str, kind: str, rng: Random) -> Iterator[decision_pb.PlaceRequest]:
    """The question, in words and without."""
    question = _question(kind, rng)
    policy = {"sharing": "consolidate", "stdm": ""}.get(kind, kind)
    for explain in (False, True):
        request = m.place(cluster, question.jobs, policy, 7, dry_run=True, explain=explain)
        if question.is_node_scope:
            request.scope, request.node_id = decision_pb.PlaceRequest.NODE, "n0"
        yield request


def _question(kind: str, rng: Random) -> Question:
    if kind == "stdm":
        return Question([job_pb.Job(id="p", subtasks=m.subtasks(rng, 4))], is_node_scope=True)
    if kind == "ldwp":
        stages = m.subtasks(rng, rng.randint(2, 5))
        job = m.job("p", [m.group(rng.choice((1, 2)), m.demand(1.0, 0.0, 2.0))], rng, subtasks=stages)
        return Question([job])
    if kind == "sharing":
        run = job_pb.CoRun(model=rng.choice(m.MODELS[:7])[0], relative_speed=round(rng.uniform(0.5, 1.0), 3))
        sharing = job_pb.GpuSharing(allowed=True, max_slowdown=4.0, co_runs=[run])
        job = m.job(
            "p", [m.group(1, m.demand(1.0, 0.5, 2.0))], rng, model=rng.choice(m.MODELS[:8]), gpu_sharing=sharing
        )
        return Question([job])
    return Question([_gang(rng, f"g{k}", rng.choice((1, 2, 3))) for k in range(rng.choice((1, 1, 2)))])


def check(kind: str, found: list[Row]) -> None:
    """Raises AssertionError unless every run of the file took place, with outputs within rows.TOLERANCE.

    Runs beside them are welcome: who remembers less looks again."""
    ours: dict[tuple[str, str], list[Row]] = {}
    for row in map(rows.reported, found):
        ours.setdefault((row["question"], row["model"]), []).append(row)
    file = FILE.format(kind)
    rows.report(_missing(rows.read(file), ours, rows.rounding_of(file)), file)


def _missing(wanted: list[Row], ours: dict[tuple[str, str], list[Row]], rounding: float) -> Iterator[str]:
    for row in wanted:
        runs = ours.get((row["question"], row["model"]), [])
        near = [(list(_differing(row, run, rounding)), run) for run in runs]
        same = next((run for lines, run in near if not lines), None)
        if same is not None:
            where = f"{row['id']} outputs"
            yield from rows.differences(row["outputs"], same["outputs"], where, is_net=True, rounding=rounding)
        elif near:
            yield f"{min(near, key=lambda pair: len(pair[0]))[0][0]} (the nearest run)"
        else:
            yield f"{row['id']}: {row['model']} did not run"


def _differing(row: Row, run: Row, rounding: float) -> Iterator[str]:
    """The differences between the inputs of two runs. Those that are outputs of another net are compared as outputs."""
    for name, value in row["inputs"].items():
        is_net = name not in _FROM_CODE.get(row["model"], (name,))
        where = f"{row['id']} inputs.{name}"
        yield from rows.differences(value, run["inputs"].get(name), where, is_net, rounding=rounding)
