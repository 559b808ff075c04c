"""Two replicas on one Redis that write a log, and the log's decisions made again from it.

tests/contract/log/calls.py has hosts that ask more, and the command line.
"""

import asyncio
import random
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from tests.fakes.cluster import make_node
from tests.fakes.servers.redis_server import RedisServer

from placewise_core.basics.clock import SystemClock
from placewise_core.domain.cluster import Assignment, ClusterSettings, ExplorerSettings, Node, NodeTelemetry
from placewise_core.domain.commands import JobEvent, JobEventKind, PlaceCommand, Scope
from placewise_core.domain.decision import Outcome, PlaceDecision
from placewise_core.domain.errors import PlacewiseError
from placewise_core.domain.job import GpuSharing, Job, JobId, KeepTogether, Resources, Role, Subtask, TaskGroup
from placewise_core.policies.registry import placement_policies
from placewise_log.reading import ExportedLog
from placewise_log.rebuilding import NotRebuiltError
from placewise_log.record import DecisionRecord
from placewise_log.repeating import Policies, decide_again
from placewise_log.repeating_calls import admit_again, assign_again, partition_again
from placewise_models.learned import LEARNED_POLICIES
from placewise_service.declog.export import export
from placewise_service.engine import Engine, EngineOptions
from placewise_service.engine.build import build_engine
from placewise_service.state.redis.connection import RedisOptions
from placewise_service.state.redis.redis_store import RedisStore
from placewise_service.telemetry import Telemetry as Metrics

CLUSTER = "lab"
NODES, GPUS = 12, 4
EXPLORING = "exploring"  # consolidate, and explorers of all kinds
CALLERS = 8
POLICIES = (*placement_policies(), *LEARNED_POLICIES, EXPLORING)
GPU_MODELS = ("V100", "T4", "P100")
MODELS = ("ResNet-50", "VGG16", "BERT", "LSTM")


@dataclass
class RepeatCounts:
    """What became of the decisions of one run."""

    same: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    sliced: int = 0
    armed: int = 0  # by a canary, in part or whole
    killed: int = 0
    cut: int = 0
    conflicts: int = 0
    in_flight: int = 0
    learned: int = 0
    sped: int = 0  # with learned speeds
    problems: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.same + len(self.problems)

    def add(self, other: "RepeatCounts") -> None:
        """Counts the decisions of another run as well."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


class Host:
    """Jobs come, run and end, on both replicas at once."""

    nodes, gpus = NODES, GPUS
    options: Mapping[str, Any] = {}
    deadlines_s = (10.0, 10.0, 0.01)
    """Of policies that the clock may stop."""

    def __init__(self, replicas: Sequence[Engine], policy: str, seed: int) -> None:
        self.replicas = replicas
        self.policy = policy
        self.draw = random.Random(seed)
        self.running: list[tuple[str, str]] = []  # job, decision
        self.asked = 0

    @classmethod
    def bundles(cls, folder: Path) -> Path | None:
        """Makes bundles in a folder beside the shipped one. None: there are no others."""
        return None

    async def begin(self) -> None:
        """Once the cluster is there."""

    def settings(self) -> ClusterSettings:
        """The cluster's."""
        if not self.is_exploring:
            return ClusterSettings()
        named = ("harmony-sample", "random", "load-balance", "search")
        return ClusterSettings(exploration_rate=0.6, explorers=tuple(ExplorerSettings(name) for name in named))

    @property
    def is_exploring(self) -> bool:
        return self.policy == EXPLORING

    @property
    def place_policy(self) -> str:
        """Of the gangs that it places; "" for the cluster's."""
        return "" if self.policy == EXPLORING else self.policy

    def jobs(self) -> tuple[Job, ...]:
        return tuple(self.job() for _ in range(self.draw.choice((1, 1, 2, 3))))

    def job(self) -> Job:
        self.asked += 1
        draw = self.draw
        if draw.random() < 0.25:  # a pipeline: one worker without resources of its own
            size, speedup = draw.choice((50.0, 400.0)), draw.choice((2.0, 10.0))
            stages = (
                Subtask("decode", "decode", size=size, profile={"cpu_s": size / 10}),
                Subtask("detect", "detect", ("decode",), True, {"cpu_s": size, "speedup": speedup}, size),
            )
            return Job(JobId(f"j{self.asked}"), model="video", subtasks=stages, total_epochs=2.0)
        is_sharing = draw.random() < 0.3
        gpus = 0.5 if is_sharing and draw.random() < 0.5 else 1.0
        demand = Resources(draw.choice((1.0, 2.0, 3.0)), gpus, 4.0, network_gbps=draw.choice((0.0, 1.0)))
        groups = [TaskGroup(Role.WORKER, draw.choice((1, 2, 3, 4)), demand)]
        if draw.random() < 0.3:
            groups.append(TaskGroup(Role.PARAMETER_SERVER, 1, Resources(1.0, 0.0, 2.0)))
        return Job(
            JobId(f"j{self.asked}"),
            model=draw.choice(MODELS),
            groups=tuple(groups),
            total_epochs=draw.choice((0.0, 10.0, 90.0)),
            single_gpu_s=draw.choice((0.0, 600.0, 7200.0)),
            gpu_sharing=GpuSharing(is_sharing, 3.0),
        )

    async def call(self) -> None:
        """One call on one of the replicas; a refusal is an answer as well."""
        engine = self.draw.choice(self.replicas)
        if self.draw.random() < 0.45 and self.running:
            await engine.report_job_events(CLUSTER, [self.event()])
            return
        jobs = self.jobs()
        if self.running and self.draw.random() < 0.05:
            jobs = (*jobs, replace(self.job(), id=JobId(self.draw.choice(self.running)[0])))
        command = PlaceCommand(CLUSTER, jobs, policy=self.place_policy)
        command = replace(command, is_dry_run=self.draw.random() < 0.1, seed=self.draw.choice((None, None, 7)))
        started_s = engine._parts.clock.monotonic_s()
        left_s = self.draw.choice(self.deadlines_s) if self.is_exploring or self.policy == "search" else 10.0
        pending = await engine.place(command, started_s + left_s)
        decision = await pending.settled()
        if not command.is_dry_run:
            self.running += self.placed(decision)

    def placed(self, decision: PlaceDecision) -> list[tuple[str, str]]:
        known = {job for job, _ in self.running}
        return [
            (given.job_id, decision.meta.decision_id)
            for given in decision.decisions
            if given.outcome is Outcome.PLACED and given.job_id not in known
        ]

    def event(self) -> JobEvent:
        i = self.draw.randrange(len(self.running))
        job, decision = self.running[i]
        now_s = SystemClock().now_s()
        if self.draw.random() < 0.6 or len(self.running) > 14:
            del self.running[i]
            return JobEvent(JobId(job), JobEventKind.FINISHED, now_s, decision_id=decision)
        kind = self.draw.choice((JobEventKind.STARTED, JobEventKind.PROGRESS))
        speed = self.draw.choice((0.5, 1.0, 2.0))
        return JobEvent(JobId(job), kind, now_s, speed=speed, epochs_done=self.draw.random(), decision_id=decision)

    async def report(self) -> None:
        """Telemetry of some nodes; now and then a node drains or comes."""
        now_s = SystemClock().now_s()
        reported = [self.node(i, now_s) for i in self.draw.sample(range(self.nodes), 3)]
        await self.draw.choice(self.replicas).report_nodes(CLUSTER, reported, full=False)

    def node(self, i: int, now_s: float) -> Node:
        node = make_node(f"n{i}", self.gpus, gpu_model=GPU_MODELS[i % 3], max_jobs_per_gpu=3, rack=f"r{i % 4}")
        return replace(node, telemetry=NodeTelemetry(cpu_util=self.draw.random(), observe_time_s=now_s))


class CrowdedHost(Host):
    """A few nodes, so that two replicas give away the same GPUs."""

    nodes, gpus = 3, 8


class WishfulHost(CrowdedHost):
    """Gangs that want to be kept together, or a network for themselves."""

    nodes, gpus = 6, 4

    def job(self) -> Job:
        job, draw = super().job(), self.draw
        together = draw.choice((KeepTogether.NONE, KeepTogether.NONE, KeepTogether.NODE, KeepTogether.RACK))
        return replace(job, keep_together=together, exclusive_network=draw.random() < 0.4)


async def engines(url: str, bundles: Path | None = None, **options: Any) -> tuple[Engine, Engine]:
    made = []
    for _ in range(2):
        store = RedisStore(RedisOptions(url, timeout_s=30.0))
        usual = {"stale_telemetry_after_s": 3600.0, "place_policy": "consolidate", "observe_share": 0.0}
        chosen = EngineOptions(**{**usual, **options})
        made.append(build_engine(store, SystemClock(), Metrics(), chosen, further_bundles=bundles))
        await made[-1].start()
    return made[0], made[1]


async def write_log(
    url: str, policy: str, records: int, directory: Path, seed: int = 1, host_type: type[Host] | None = None
) -> tuple[Engine, Engine]:
    """Runs both replicas until there are so many decisions, and exports their log."""
    hosts = host_type or Host
    replicas = await engines(url, hosts.bundles(directory / "bundles"), **hosts.options)
    host = hosts(replicas, policy, seed)
    now_s = SystemClock().now_s()
    await replicas[0].report_nodes(CLUSTER, [host.node(i, now_s) for i in range(host.nodes)], full=True)
    await replicas[0].update_settings(CLUSTER, host.settings())
    await host.begin()
    store = replicas[0]._parts.store
    assert isinstance(store, RedisStore)
    decided, position = 0, "0"
    while decided < records:
        calls = [host.call() for _ in range(CALLERS)] + [host.report()]
        done = await asyncio.gather(*calls, return_exceptions=True)
        for error in done:
            if isinstance(error, BaseException) and not isinstance(error, PlacewiseError):
                raise error
        for engine in replicas:
            engine._parts.telemetry.afterwards.run()
        more, position = await appended(replicas, store, position)
        decided += more
    for engine in replicas:
        await engine.drain(30.0)
    await export(store, directory)
    return replicas


async def appended(replicas: Sequence[Engine], store: RedisStore, position: str) -> tuple[int, str]:
    """Decisions in the log after a position, and the position after them."""
    for engine in replicas:
        await engine._parts.sink.flush()
    found = await store.read_decisions(CLUSTER, position, 100_000)
    return len([1 for _, data in found if b"decision" in data[:16]]), found[-1][0] if found else position


def policies_of(engine: Engine) -> dict[str, Policies]:
    """Of every bundle that the engine finds."""
    placer, registry = engine._placing.placer, engine._parts.registry
    found = {registry.active: placer}
    for name in {status.name for status in registry.list()} - found.keys():
        found[name] = placer.of(registry.serving(registry.verified(name)).policies)
    return {
        name: Policies(each.policies, each.explorers, each.interference, each.fallback) for name, each in found.items()
    }


def check(log: ExportedLog, engine: Engine, most: int = 0) -> RepeatCounts:
    """Makes every decision again, with the policies of the engine."""
    found, policies = RepeatCounts(), policies_of(engine)
    for record in log.records():
        if most and found.total >= most:
            break
        try:
            problem = _problem(log, record, engine, policies)
        except NotRebuiltError as error:
            problem = str(error)
        if problem:
            found.problems.append(f"{record.rpc} {record.decision_id}: {problem}")
        else:
            found.same += 1
        found.calls[f"{record.rpc} {record.meta.policy}"] += 1
        found.refused += record.outcome in ("WAIT", "NO_FIT")
        found.sliced += len(record.reads) > 1
        found.armed += record.canary is not None and any(each.arm == "canary" for each in record.canary.arms)
        found.killed += any(draw.fallback_reason.endswith(": kill switch") for draw in record.draws)
        found.cut += any(draw.stops for draw in record.draws)
        found.conflicts += bool(record.asked and record.asked.conflicts)
        found.learned += bool(record.meta.lengths)
        found.sped += bool(record.meta.speeds)
        found.in_flight += bool(record.reads and record.reads[0].assumed)
    return found


def _problem(log: ExportedLog, record: DecisionRecord, engine: Engine, policies: Mapping[str, Policies]) -> str:
    if record.admit is not None:
        given = record.admit.plan
        again = admit_again(record, log.view_at(record), engine._parts.registry.shadows.active.admission)
        return "" if given == again else f"{record.meta.policy}: {again} and not {given}"
    if record.partition is not None:
        shares = partition_again(record, log.view_at(record), engine._parts.registry.shadows.active.partition)
        return "" if record.partition.plan == shares else f"{shares} and not {record.partition.plan}"
    if record.scope == Scope.NODE:
        assert record.place is not None
        units = tuple(assign_again(record, log.view_at(record), engine._parts.registry.shadows.active.subtasks))
        return "" if record.place.decisions == units else f"{units} and not {record.place.decisions}"
    return _problem_of_place(log, record, policies)


def _problem_of_place(log: ExportedLog, record: DecisionRecord, policies: Mapping[str, Policies]) -> str:
    assert record.place is not None
    again = decide_again(record, log.views_of(record), policies)
    given = {decided.job_id: decided for decided in record.place.decisions}
    drawn = {draw.job_id for draw in record.draws}
    for each in again:
        logged = given[JobId(each.job_id)]
        tasks = logged.assignments if each.job_id in drawn else None
        if each.tasks != tasks:
            return f"{each.job_id} is placed on {_nodes(each.tasks)} and not on {_nodes(tasks)}"
        if each.tasks is None and (each.outcome, each.blockers) != (logged.outcome, logged.blockers):
            return f"{each.job_id} is refused for {each.blockers} and not for {logged.blockers}"
        if each.tasks is not None and each.propensity != logged.propensity:
            return f"{each.job_id} has probability {each.propensity} and not {logged.propensity}"
    missing = drawn - {each.job_id for each in again}
    return f"not decided again: {missing}" if missing else ""


def _nodes(tasks: Sequence[Assignment] | None) -> object:
    return None if tasks is None else [(task.task, task.node, task.gpu_indices) for task in tasks]


async def run(name: str, policy: str, records: int, batch: int, host_type: type[Host]) -> RepeatCounts:
    """Writes logs of `batch` records, each with other draws, checks them, and prints a line for all. To rebuild a view
    takes a step for each event since its snapshot, so that one long log would take longer."""
    server, found = RedisServer().start(), RepeatCounts()
    try:
        while found.total < records:
            server.client().flushall()
            left = min(batch, records - found.total)
            with tempfile.TemporaryDirectory() as directory:
                folder = Path(directory)
                replicas = await write_log(server.url, policy, left, folder, seed=1 + found.total, host_type=host_type)
                found.add(check(ExportedLog(folder), replicas[0], left))
                for engine in replicas:
                    await engine.close()
        notes = {"refused": found.refused, "in slices": found.sliced, "after conflicts": found.conflicts}
        notes |= {"by a canary": found.armed, "under a kill switch": found.killed}
        notes |= {"beside gangs in flight": found.in_flight, "searches cut by the clock": found.cut}
        reported = [f"{count} {what}" for what, count in {**found.calls, **notes}.items() if count]
        print(f"{name:28} {found.same} of {found.total} the same:", ", ".join(reported), flush=True)
        print(*found.problems[:5], sep="\n    ", flush=True)
        return found
    finally:
        server.stop()
