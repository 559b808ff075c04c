"""Requests that do not fit, with every blocker of the answer: one per kind first, then combinations drawn at random."""

from collections.abc import Iterator
from random import Random
from typing import Any

from tests.golden.net import messages as m
from tests.golden.net.rows import Names, Row, plain
from tests.golden.net.seams import Service, serving

from placewise.v1 import cluster_pb2 as cluster_pb
from placewise.v1 import decision_pb2 as decision_pb
from placewise.v1 import job_pb2 as job_pb

FILE = "why.jsonl"
POLICY = "consolidate"
DRAWN = 160
DEAD_END = "dead-end-"
STALE_S, HOT = m.NOW_S - 5000.0, 91.0
# The requests have to cause every reason but these: of other calls, of node scope and of queues.
_ELSEWHERE = frozenset(
    (
        *("REASON_UNSPECIFIED", "UNIT_BUSY", "CPU_ONLY", "UTILISATION_LIMIT", "PREDECESSOR_PENDING"),
        *("SHARE_BELOW_THRESHOLD", "BEHIND_IN_QUEUE", "DRIFT_PLUS_PENALTY", "SLOT_TAKEN", "NO_FEASIBLE_SHAPE"),
        "EXPLORATION",
    )
)
KINDS = frozenset(decision_pb.Reason.keys()) - _ELSEWHERE

Case = tuple[list[cluster_pb.Node], list[cluster_pb.JobEvent], job_pb.Job]


async def refused() -> list[Row]:
    """One row per request that finds no place."""
    found: list[Row] = []
    async with serving() as service:
        for name, case in _cases():
            row = await _asked(service, name, case)
            if any(decision["outcome"] != "PLACED" for decision in row["answer"]["decisions"]):
                found.append(row)
    return found


async def _asked(service: Service, name: str, case: Case) -> Row:
    nodes, events, job = case
    await service.ask("ReportNodes", m.nodes_request(name, nodes))
    if events:
        await service.ask("ReportJobEvents", cluster_pb.ReportJobEventsRequest(cluster=name, events=events))
    policy, seed = ("random", int(name.removeprefix(DEAD_END))) if name.startswith(DEAD_END) else (POLICY, 1)
    answer = await service.ask("Place", m.place(name, [job], policy, seed))
    assert isinstance(answer, decision_pb.PlaceResponse)
    return {"id": name, "answer": Names().plain(plain(answer))}


def _cases() -> Iterator[tuple[str, Case]]:
    yield from _one_of_each()
    for seed in range(4):  # a policy that draws finds no way where best fit would
        nodes = [m.node("a", 1, cores=4.0), m.node("b", 1, cores=8.0), *(m.node(c, 0, cores=7.0) for c in "cdef")]
        groups = [m.group(1, m.demand(1.0, 1.0, 1.0)), m.group(1, m.demand(8.0, 0.0, 1.0))]
        yield f"{DEAD_END}{seed}", (nodes, [], m.job("job", groups, m.drawn("dead end"), model=m.MODELS[0]))
    for i in range(DRAWN):
        yield f"drawn-{i:02}", _drawn(m.drawn(f"why/{i}"))


def _job(needs: job_pb.Resources, count: int = 1, **more: Any) -> job_pb.Job:
    sharing, together = more.pop("sharing", None), more.pop("keep_together", 0)
    model = more.pop("job_model", m.MODELS[0])
    return m.job(
        "job", [m.group(count, needs, **more)], m.drawn("why"), gpu_sharing=sharing, model=model, keep_together=together
    )


def _one_of_each() -> Iterator[tuple[str, Case]]:
    small = [m.node("a", 2), m.node("b", 4, "P100", labels={"zone": "b"}, extended={"fpga": 1.0})]
    for name, needs in {
        "cpu": m.demand(100.0),
        "memory": m.demand(1.0, 1.0, 4000.0),
        "gpus": m.demand(1.0, 16.0),
        "gpu-memory": m.demand(1.0, 1.0, gpu_memory_gib=30.0),
        "network": m.demand(1.0, 1.0, network_gbps=100.0),
        "extended": m.demand(1.0, 1.0, extended={"fpga": 3.0}),
        "unknown-resource": m.demand(1.0, 1.0, extended={"tape": 1.0, "quill": 2.0}),
        "cpu-and-memory": m.demand(100.0, 1.0, 4000.0),
        "all": m.demand(100.0, 9.0, 4000.0, gpu_memory_gib=900.0, network_gbps=90.0, extended={"fpga": 2.0}),
    }.items():
        yield name, (small, [], _job(needs))
    yield "empty", ([], [], _job(m.demand()))
    yield "no-label", (small, [], _job(m.demand(), selector={"zone": "z", "disk": "ssd"}))
    yield "no-model", (small, [], _job(m.demand(), gpu_model="H100"))
    yield "label-and-model", (small, [], _job(m.demand(), selector={"zone": "b"}, gpu_model="V100"))
    yield "no-label-no-model", (small, [], _job(m.demand(), selector={"zone": "q"}, gpu_model="H100"))
    yield "per-node", (small, [], _job(m.demand(), 3, max_per_node=1))
    yield "too-many", (small, [], _job(m.demand(), 7))
    for name, state in {"down": cluster_pb.Node.DOWN, "draining": cluster_pb.Node.DRAINING}.items():
        yield name, ([m.node("a", 2, state=state), m.node("b", 0)], [], _job(m.demand()))
    rng = m.drawn("readings")
    stale = m.node("a", 2, telemetry=m.readings(rng, STALE_S))
    hot = m.node("b", 2, telemetry=m.readings(rng, gpu_celsius=HOT))
    hot_cpu = m.node("c", 2, telemetry=m.readings(rng, cpu_celsius=HOT + 1.5))
    yield "stale", ([stale], [], _job(m.demand()))
    yield "hot", ([hot, hot_cpu], [], _job(m.demand()))
    down = m.node("d", 2, state=cluster_pb.Node.DOWN)
    yield "unusable", ([stale, hot, hot_cpu, down], [], _job(m.demand()))
    racks = [m.node(name, 2, rack=name[0]) for name in ("a1", "a2", "b1")]
    yield "no-rack", (racks, [], _job(m.demand(), 5, keep_together=job_pb.Job.RACK))
    yield "no-node", (racks, [], _job(m.demand(), 3, keep_together=job_pb.Job.NODE))
    spread = m.job("old", [m.group(2, m.demand())], m.drawn("old"), exclusive_network=True)
    tasks = [m.assigned(f"worker-{i}", f"a{i + 1}", m.demand(), [0]) for i in range(2)]
    yield "network", (racks, [m.started(spread, tasks)], _job(m.demand(), 3))
    yield "waits", _held(1.0, 2, m.demand(1.0, 2.0))
    yield "fragmented", _held(1.0, 1, m.demand(1.0, 2.0))
    yield "slowdown", _held(0.5, 2, m.demand(1.0, 0.5), job_pb.GpuSharing(allowed=True, max_slowdown=1.0001))
    yield "neighbour", _held(0.5, 2, m.demand(1.0, 0.5), job_pb.GpuSharing(allowed=True, max_slowdown=9.0), 1.0001)
    yield "fraction", _held(0.5, 2, m.demand(1.0, 0.75), job_pb.GpuSharing(allowed=True, max_slowdown=9.0), 9.0)
    yield "alone", _held(0.5, 2, m.demand(1.0, 0.5))


def _held(share: float, gpus: int, needs: job_pb.Resources, sharing: Any = None, theirs: float = 2.0) -> Case:
    """Two nodes of two GPUs, of each of which `gpus` GPUs serve a job."""
    nodes = [m.node(name, 2, jobs_per_gpu=2) for name in "ab"]
    held = m.demand(1.0, share, 2.0)
    events = []
    for node in nodes:
        for g in range(gpus):
            own = job_pb.GpuSharing(allowed=share < 1, max_slowdown=theirs)
            old = m.job(f"old-{node.id}{g}", [m.group(1, held)], m.drawn("old"), gpu_sharing=own, model=m.MODELS[1])
            events.append(m.started(old, [m.assigned("worker-0", node.id, held, [g])]))
    return nodes, events, _job(needs, sharing=sharing)


def _drawn(rng: Random) -> Case:
    """A cluster with something wrong with most nodes, and a gang that asks for much, or for little on a busy one."""
    is_modest = rng.random() < 0.7
    nodes = []
    for i in range(rng.randint(2, 7)):
        more: dict[str, Any] = {}
        trouble = rng.choice(("", "", "down", "draining", "stale", "hot"))
        if trouble == "down":
            more["state"] = cluster_pb.Node.DOWN
        elif trouble == "draining":
            more["state"] = cluster_pb.Node.DRAINING
        elif trouble == "stale":
            more["telemetry"] = m.readings(rng, STALE_S + i)
        elif trouble == "hot":
            more["telemetry"] = m.readings(rng, gpu_celsius=HOT + i)
        model, gib = rng.choice((("V100", 16.0), ("V100", 32.0), ("P100", 16.0)))
        nodes.append(
            m.node(
                f"n{i}", rng.choice((0, 1, 2, 4)), model, None, rng.choice((4.0, 8.0, 16.0)), gib,
                labels={"zone": rng.choice("ab")}, extended={"fpga": float(rng.choice((0, 1)))},
                net=rng.choice((1.0, 10.0)), jobs_per_gpu=rng.choice((1, 2)), **more,
            )
        )  # fmt: skip
    events = []
    for node in nodes:
        for g in range(int(node.capacity.gpus)):
            if rng.random() < (0.85 if is_modest else 0.5):
                held = m.demand(rng.choice((0.5, 1.0, 2.0)), rng.choice((1.0, 0.5)), 4.0)
                sharing = job_pb.GpuSharing(allowed=rng.random() < 0.5, max_slowdown=rng.choice((1.2, 3.0)))
                old = m.job(f"old-{node.id}-{g}", [m.group(1, held)], rng, gpu_sharing=sharing)
                events.append(m.started(old, [m.assigned("worker-0", node.id, held, [g])]))
    wish: dict[str, Any] = {}
    if rng.random() < 0.35:
        wish["gpu_model"] = rng.choice(("V100", "P100"))
    if rng.random() < 0.35:
        wish["selector"] = {"zone": rng.choice("ab")}
    if rng.random() < 0.3:
        wish["max_per_node"] = rng.choice((1, 2))
    needs = m.demand(
        rng.choice((1.0, 3.0, 6.0, 12.0)),
        rng.choice((0.0, 0.5, 1.0, 1.0, 2.0, 4.0)),
        rng.choice((4.0, 30.0, 70.0)),
        network_gbps=rng.choice((0.0, 0.0, 3.0)),
        gpu_memory_gib=rng.choice((0.0, 0.0, 12.0, 24.0)),
        extended={"fpga": 1.0} if rng.random() < 0.15 else {},
    )
    count = rng.choice((2, 4, 8, 12))
    if is_modest:
        needs = m.demand(rng.choice((1.0, 2.0)), rng.choice((0.5, 0.75, 1.0, 1.0, 2.0)), 4.0)
        count = rng.choice((1, 1, 2, 3))
    groups = [m.group(count, needs, **wish)]
    if rng.random() < 0.3:
        groups.append(m.group(rng.choice((1, 2)), m.demand(rng.choice((2.0, 9.0)), 0.0, 8.0), is_ps=True))
    sharing = job_pb.GpuSharing(allowed=rng.random() < 0.4, max_slowdown=rng.choice((1.05, 1.5, 3.0)))
    return nodes, events, m.job("job", groups, rng, gpu_sharing=sharing)


def kinds_of(rows: list[Row]) -> set[str]:
    """Every reason that the rows tell."""
    return {
        blocker["reason"]
        for row in rows
        for decision in row["answer"]["decisions"]
        for blocker in decision.get("blockers", ())
    }
