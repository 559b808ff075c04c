"""The worlds in which every placement policy is asked: the cluster, and its jobs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.golden.net import messages as m

from placewise.v1 import cluster_pb2 as cluster_pb
from placewise.v1 import decision_pb2 as decision_pb
from placewise.v1 import job_pb2 as job_pb

SHARED = job_pb.GpuSharing


@dataclass
class Question:
    """Jobs of one request. `stays`: what becomes of those placed: "runs", "ends" at once, or stays "reserved".
    `is_explained`: it is asked as a dry run first, with an explanation."""

    jobs: list[job_pb.Job]
    stays: str = "runs"
    is_node_scope: bool = False
    node: str = ""
    request_id: str = ""
    is_explained: bool = True


@dataclass
class World:
    """A cluster's nodes, what already runs, and the questions that follow one another."""

    nodes: list[cluster_pb.Node]
    questions: list[Question]
    events: list[cluster_pb.JobEvent] = field(default_factory=list)
    exploration: float = 0.0


def worlds(policy: str) -> Iterator[tuple[str, World]]:
    """Every world by name; jobs differ by policy."""
    for name, make in WORLDS.items():
        yield name, make(m.drawn(f"{name}/{policy}"))


def _racks(rng: Random) -> list[cluster_pb.Node]:
    """Twelve nodes of four makes."""
    zone = [{"zone": "a"}, {"zone": "b"}]
    found = [m.node(f"v{i}", 8, "V100", rng, 64, rack=f"r{i % 2}", labels=zone[i % 2]) for i in range(4)]
    found += [m.node(f"p{i}", 4, "P100", rng, 32, rack="r2", labels=zone[i % 2], net=10.0) for i in range(4)]
    found += [m.node(f"k{i}", 4, "K80", rng, 24, 12.0, rack="r3", extended={"fpga": 2.0}) for i in range(2)]
    found += [m.node(f"c{i}", 0, "", rng, 48, rack="r3", labels={"zone": "a"}) for i in range(2)]
    return found


def _gang(rng: Random, name: str, size: int, **more: Any) -> job_pb.Job:
    """A gang of `size` tasks: workers, at times with parameter servers, limits or a wish for a GPU model."""
    ps = rng.choice((0, 0, 1, 2)) if size > 2 else 0
    wish: dict[str, Any] = {}
    if rng.random() < 0.2:
        wish["gpu_model"] = rng.choice(("V100", "P100"))
    if rng.random() < 0.2:
        wish["max_per_node"] = rng.choice((1, 2, 4))
    if rng.random() < 0.15:
        wish["selector"] = {"zone": rng.choice("ab")}
    needs = m.demand(
        rng.choice((0.5, 1.0, 2.0, 4.0)),
        0.0 if rng.random() < 0.1 else rng.choice((1.0, 1.0, 1.0, 2.0)) if size < 8 else 1.0,
        rng.choice((2.0, 8.0, 16.0)),
        network_gbps=rng.choice((0.0, 0.0, 0.5)),
        gpu_memory_gib=rng.choice((0.0, 0.0, 6.0)),
    )
    groups = [m.group(size - ps, needs, **wish)]
    if ps:
        groups.append(m.group(ps, m.demand(2.0, 0.0, 6.0), is_ps=True))
        more.setdefault("architecture", job_pb.Job.PARAMETER_SERVER)
    elif size == 1:
        more.setdefault("architecture", job_pb.Job.SINGLE)
    return m.job(name, groups, rng, **more)


def _mixed(rng: Random) -> World:
    sizes = [
        1,
        2,
        4,
        1,
        3,
        8,
        2,
        1,
        5,
        1,
        2,
        16,
        1,
        4,
        6,
        1,
        2,
        1,
        12,
        3,
        1,
        2,
        24,
        1,
        1,
        4,
        2,
        32,
        1,
        7,
        2,
        1,
        3,
        9,
        2,
    ]
    questions = [
        Question([_gang(rng, f"j{i}", size)], rng.choice(("runs", "runs", "runs", "reserved", "ends")))
        for i, size in enumerate(sizes)
    ]
    return World(_racks(rng), questions)


def _sharing(rng: Random) -> World:
    nodes = [m.node(f"s{i}", 2, "V100" if i < 2 else "P100", rng, 24, jobs_per_gpu=3) for i in range(4)]
    known = m.MODELS[:7]
    questions = []
    for i in range(18):
        model = rng.choice(known)
        other = rng.choice(known)
        runs = [
            job_pb.CoRun(
                model=other[0],
                relative_speed=round(rng.uniform(0.4, 1.0), 3),
                neighbour_relative_speed=rng.choice((0.0, 0.7, 0.9)),
                gpu_model=rng.choice(("", "V100")),
                step_seconds=rng.choice((0.0, 0.12)),
            )
        ]
        sharing = SHARED(
            allowed=rng.random() < 0.8,
            max_slowdown=rng.choice((0.0, 1.3, 1.8, 3.0)),
            co_runs=runs if rng.random() < 0.5 else [],
        )
        gpus = rng.choice((0.25, 0.5, 0.5, 0.3, 1.0, 1.0, 2.0))
        memory = rng.choice((0.0, 3.0, 6.0))
        count = rng.choice((1, 1, 1, 2, 3))
        groups = [m.group(count, m.demand(1.0, gpus, 4.0, gpu_memory_gib=memory))]
        job = m.job(f"s{i}", groups, rng, model=model, gpu_sharing=sharing)
        questions.append(Question([job], rng.choice(("runs", "runs", "reserved", "ends"))))
    return World(nodes, questions)


def _full(rng: Random) -> World:
    nodes = [m.node(f"f{i}", 4, "V100", rng, 16) for i in range(4)]
    events = []
    for i in range(4):
        needs = m.demand(2.0, 1.0, 8.0)
        held = m.job(f"old{i}", [m.group(4, needs)], rng)
        events.append(m.started(held, [m.assigned(f"worker-{k}", f"f{i}", needs, [k]) for k in range(4)]))
    questions = [Question([_gang(rng, f"w{i}", size)]) for i, size in enumerate((1, 2, 4, 17))]
    only_cpu = m.job("cpu", [m.group(3, m.demand(3.0, 0.0, 8.0))], rng)
    return World(nodes, [*questions, Question([only_cpu])], events)


def _idle(rng: Random) -> World:
    nodes = [m.node(f"i{i:02}", 4, "V100", None, 32, rack=f"r{i // 4}") for i in range(8)]
    return World(nodes, [Question([_gang(rng, f"i{i}", size)], "ends") for i, size in enumerate((1, 4, 6, 16, 32))])


def _nothing(rng: Random) -> World:
    return World([], [Question([_gang(rng, "lost", 2)])])


def _pipelines(rng: Random) -> World:
    nodes = [
        m.node(
            f"e{i}", 1 + i % 2, rng.choice(("P4", "T4", "V100")), rng, 8 + 4 * (i % 3), jobs_per_gpu=4,
            hardware=cluster_pb.Hardware(cpu_ghz=2.0 + 0.3 * i, cache_mib=16 + 8 * (i % 2), gpu_ghz=1.2 + 0.1 * i),
        )
        for i in range(6)
    ]  # fmt: skip
    questions = []
    for i in range(12):
        needs = m.demand(rng.choice((0.5, 1.0, 2.0)), rng.choice((0.0, 0.0, 0.25)), 1.0)
        stages = m.subtasks(rng, rng.randint(2, 6))
        pipeline = m.job(
            f"pipe{i}", [m.group(rng.choice((1, 1, 1, 2)), needs)], rng, subtasks=stages,
            architecture=job_pb.Job.PIPELINE, gpu_sharing=SHARED(allowed=True, max_slowdown=3.0),
        )  # fmt: skip
        questions.append(Question([pipeline], rng.choice(("runs", "runs", "ends"))))
    return World(nodes, questions)


def _batches(rng: Random) -> World:
    nodes = [m.node(f"b{i}", 4, "V100" if i < 4 else "P100", rng, 32, rack=f"r{i % 2}") for i in range(6)]
    questions = []
    for i, count in enumerate((2, 3, 5, 4, 6)):
        jobs = [_gang(rng, f"b{i}-{k}", rng.choice((1, 1, 2, 3, 4))) for k in range(count)]
        questions.append(Question(jobs, rng.choice(("runs", "reserved")), request_id=f"batch-{i}"))
    shaped = m.job("shaped", [], rng, shape=job_pb.Shape(nodes=2, gpus_per_node=2))
    return World(nodes, [*questions, Question([shaped]), Question([_gang(rng, "b-last", 2), _gang(rng, "b0-0", 1)])])


def _explored(rng: Random) -> World:
    nodes = [m.node(f"x{i}", 4, rng.choice(("V100", "P100")), rng, 32) for i in range(5)]
    questions = [Question([_gang(rng, f"x{i}", size)]) for i, size in enumerate((1, 2, 1, 4, 1, 2, 3))]
    return World(nodes, questions, exploration=0.4)


def _wide(rng: Random) -> World:
    """More nodes than nets look at, and gangs that are decided in slices."""
    nodes = [m.node(f"w{i:02}", 4, rng.choice(("V100", "P100")), rng, 32, rack=f"r{i // 8}") for i in range(70)]
    small = m.demand(0.5, 0.5, 1.0)
    shared = m.job("w-shared", [m.group(14, small)], rng, gpu_sharing=SHARED(allowed=True))
    many = [m.job(f"w-many{k}", [m.group(52, m.demand(0.25, 0.0, 1.0))], rng) for k in range(4)]
    stages = m.job(
        "w-pipe",
        [m.group(1, m.demand(1.0, 0.0, 1.0))],
        rng,
        subtasks=m.subtasks(rng, 3),
        architecture=job_pb.Job.PIPELINE,
    )
    return World(
        nodes,
        [
            Question([_gang(rng, "w-one", 1)]),
            Question([stages]),
            Question([_gang(rng, "w-six", 6)]),
            Question([shared]),
            Question([m.job("w-large", [m.group(96, m.demand(1.0, 1.0, 4.0))], rng)], is_explained=False),
            Question([*many, _gang(rng, "w-last", 2)], is_explained=False),
            Question([_gang(rng, "w-two", 2)]),
        ],
    )


WORLDS: dict[str, Callable[[Random], World]] = {
    "mixed": _mixed,
    "sharing": _sharing,
    "full": _full,
    "idle": _idle,
    "nothing": _nothing,
    "pipelines": _pipelines,
    "batches": _batches,
    "explored": _explored,
    "wide": _wide,
}


def units_world() -> World:
    """Subtasks on the units of single nodes."""
    rng = m.drawn("units")
    nodes = []
    for i in range(6):
        nodes.append(m.node(f"u{i}", i % 3, "T4", rng, (2, 4, 8)[i % 3] + i // 3, jobs_per_gpu=4))
    nodes.append(m.node("u6", 1, "T4", rng, 4, state=cluster_pb.Node.DRAINING))
    nodes.append(m.node("u7", 1, "T4", rng, 4, telemetry=m.readings(rng, cpu_celsius=90.0)))
    questions = []
    for i in range(60):
        where = nodes[i % len(nodes)]
        cores, gpus = int(where.capacity.cpu_cores), int(where.capacity.gpus)
        busy = [f"cpu{k}" for k in range(cores)] + [f"gpu{k}" for k in range(gpus)]
        rng.shuffle(busy)
        busy = busy[: max(0, len(busy) - 1)]
        jobs = [
            job_pb.Job(id=f"n{i}-{k}", model="video", subtasks=m.subtasks(rng, rng.randint(1, 7), busy))
            for k in range(rng.choice((1, 1, 2, 3)))
        ]
        questions.append(Question(jobs, is_node_scope=True, node=where.id))
    return World(nodes, questions)


def follow_up(question: Question, answer: decision_pb.PlaceResponse, rng: Random) -> list[cluster_pb.JobEvent]:
    """The host's later reports."""
    if question.is_node_scope or question.stays == "reserved":
        return []
    events = []
    for decision in answer.decisions:
        if decision.outcome != decision_pb.PLACED:
            continue
        began = m.Event(
            job_id=decision.job_id,
            kind=m.Event.STARTED,
            event_time=m.time_of(m.NOW_S - 30),
            reservation_id=decision.reservation_id,
        )
        events.append(began)
        if question.stays == "ends":
            events.append(m.ended(decision.job_id))
        elif rng.random() < 0.4:
            events.append(m.progressed(decision.job_id, round(rng.uniform(0.001, 0.1), 4), 1.5))
    return events
