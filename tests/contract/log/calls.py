"""Hosts that ask for admissions, splits, subtasks and large gangs, and their logged decisions made again.

python -m tests.contract.log.calls --records 1000 [CASE …]
"""

import argparse
import asyncio
import logging
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

import structlog
from tests.contract.log.replicas import CLUSTER, EXPLORING, MODELS, POLICIES, Host, run
from tests.contract.log.trials import CanaryHost, KilledHost, UnexploredHost

from placewise_core.admit.registry import admission_policies
from placewise_core.basics.clock import SystemClock
from placewise_core.domain.cluster import ClusterSettings, ExplorerSettings, Node, NodeTelemetry, QueueSettings
from placewise_core.domain.commands import (
    AdmitCommand,
    JobEvent,
    JobEventKind,
    PartitionCommand,
    PlaceCommand,
    Scope,
    ShareOutcome,
    SubtaskOutcome,
)
from placewise_core.domain.decision import PartitionDecision, PlaceDecision, Verdict
from placewise_core.domain.divisible import DivisibleTask, ShareProgress
from placewise_core.domain.job import (
    CoRun,
    ElasticRange,
    GpuSharing,
    Job,
    JobId,
    NodeId,
    Priority,
    Resources,
    Role,
    Subtask,
    SubtaskState,
    TaskGroup,
)
from placewise_core.speed.throughput import ThroughputModel
from placewise_core.subtasks.iawp import subtask_schedulers
from placewise_models.bundle import THROUGHPUT, load
from placewise_models.folder import shipped_bundle
from placewise_service.engine import Engine

SLOT_S = 0.2


class AdmitHost(Host):
    """Jobs queue; those admitted are placed, run and end."""

    rate = 0.0
    options = MappingProxyType({"queue": QueueSettings(slot_s=SLOT_S)})

    def __init__(self, replicas: Sequence[Engine], policy: str, seed: int) -> None:
        super().__init__(replicas, policy, seed)
        self.waiting: dict[str, list[Job]] = {"own": [], "usual": []}

    def settings(self) -> ClusterSettings:
        own = QueueSettings(slot_s=SLOT_S / 2, epsilon_s=30.0, bound_s=3.0)
        return ClusterSettings(queues={"own": own}, admit_exploration_rate=self.rate)

    def waits(self, queue: str) -> Job:
        self.asked += 1
        draw, most = self.draw, self.draw.choice((2, 4, 8))
        is_rigid = draw.random() < 0.4
        group = TaskGroup(Role.WORKER, draw.choice((1, 2, 4, 8)), Resources(2.0, draw.choice((1.0, 2.0)), 4.0))
        return Job(
            JobId(f"q{self.asked}"),
            model=draw.choice(MODELS),
            groups=(group,) if is_rigid else (),
            elastic=None if is_rigid else ElasticRange(1, most),
            queue=queue,
            total_epochs=draw.choice((5.0, 40.0)),
            iterations=draw.choice((200.0, 5000.0)),
            single_gpu_s=draw.choice((2.0, 600.0, 7200.0)),
            priority=draw.choice(tuple(Priority)),
            submit_time_s=SystemClock().now_s() - draw.choice((0.0, 5.0, 50.0)),
            user=draw.choice(("ann", "bob", "eve")),
        )

    async def call(self) -> None:
        engine, draw = draw_of(self)
        if draw.random() < 0.35 and self.running:
            await engine.report_job_events(CLUSTER, [self.event()])
            return
        queue = draw.choice(tuple(self.waiting))
        jobs = self.waiting[queue]
        if len(jobs) < 6:
            jobs.append(self.waits(queue))
        command = AdmitCommand(CLUSTER, queue, tuple(jobs), "" if self.policy == EXPLORING else self.policy)
        command = replace(
            command,
            is_dry_run=draw.random() < 0.1,
            is_explaining=draw.random() < 0.2,
            seed=draw.choice((None, None, 7)),
        )
        decision = await (await engine.admit_or_wait(command)).settled()
        if command.is_dry_run:
            return
        admitted = {a.job_id for a in decision.plan.admissions if a.verdict is Verdict.ADMIT}
        for job in [job for job in jobs if job.id in admitted and draw.random() < 0.6]:
            if job not in jobs:
                continue  # another caller placed it meanwhile
            jobs.remove(job)
            placed: PlaceDecision = await (await engine.place(PlaceCommand(CLUSTER, (job,)))).settled()
            self.running += self.placed(placed)


class ExploringAdmitHost(AdmitHost):
    """On a cluster that explores admission."""

    rate = 0.5


class ReportingHost(Host):
    """Every job starts, reports its speed some times, and ends."""

    def __init__(self, replicas: Sequence[Engine], policy: str, seed: int) -> None:
        super().__init__(replicas, policy, seed)
        self.started: set[str] = set()

    def event(self) -> JobEvent:
        i = self.draw.randrange(len(self.running))
        job, decision = self.running[i]
        if job in self.started and self.draw.random() < 0.7:
            report = {"speed": self.draw.uniform(0.1, 2.0), "epochs_done": self.draw.uniform(1.0, 5.0)}
            return JobEvent(JobId(job), JobEventKind.PROGRESS, SystemClock().now_s(), decision_id=decision, **report)
        kind = JobEventKind.FINISHED if job in self.started else JobEventKind.STARTED
        if kind is JobEventKind.FINISHED:
            del self.running[i]
        self.started.add(job)
        return JobEvent(JobId(job), kind, SystemClock().now_s(), decision_id=decision)


class LearningHost(ReportingHost, AdmitHost):
    """On a cluster that learns lengths and speeds; most jobs declare no length. It has many nodes, as only jobs that
    have theirs to themselves show a speed."""

    nodes = 24

    def settings(self) -> ClusterSettings:
        return replace(super().settings(), learn_durations=True, learn_throughput=True)

    def waits(self, queue: str) -> Job:
        job = replace(super().waits(queue), dataset_size=1000)
        return job if self.draw.random() < 0.2 else replace(job, single_gpu_s=0.0, iterations=0.0)


class DisturbedHost(ReportingHost):
    """Gangs of whole GPUs on several nodes, which report how much they disturb each other. Some spread by chance."""

    nodes, gpus = 8, 2

    def settings(self) -> ClusterSettings:
        return ClusterSettings(exploration_rate=0.5, explorers=(ExplorerSettings("load-balance"),))

    def node(self, i: int, now_s: float) -> Node:
        node = super().node(i, now_s)
        return replace(node, gpus=tuple([replace(gpu, model="V100") for gpu in node.gpus]))

    def job(self) -> Job:
        self.asked += 1
        group = TaskGroup(Role.WORKER, self.draw.choice((2, 3, 3, 3)), Resources(1.0, 1.0, 4.0))
        length = {"total_epochs": 10.0, "single_gpu_s": 600.0, "dataset_size": 1000, "batch_size": 64}
        return Job(JobId(f"j{self.asked}"), model=MODELS[0], groups=(group,), **length)


class PairingHost(ReportingHost):
    """Jobs of one GPU that may share it, on a cluster that learns how they slow each other down."""

    nodes, gpus = 6, 2

    def settings(self) -> ClusterSettings:
        return ClusterSettings(learn_co_runs=True)

    def node(self, i: int, now_s: float) -> Node:
        node = super().node(i, now_s)
        gpus = tuple([replace(gpu, model="V100", memory_gib=32.0) for gpu in node.gpus])
        return replace(node, gpus=gpus, max_jobs_per_gpu=2)

    def job(self) -> Job:
        self.asked += 1
        group = TaskGroup(Role.WORKER, 1, Resources(1.0, 1.0, 4.0))
        length = {"total_epochs": 10.0, "single_gpu_s": 600.0, "dataset_size": 1000, "batch_size": 64}
        sharing = GpuSharing(allowed=True, max_slowdown=20.0)
        return Job(JobId(f"j{self.asked}"), model="own", groups=(group,), gpu_sharing=sharing, **length)


class NodeHost(Host):
    """Subtasks of pipelines run on the units of one node; hosts report how long they took."""

    def pipeline(self) -> Job:
        self.asked += 1
        draw, kinds = self.draw, ("decode", "detect", "track", "encode")
        stages = []
        for i, kind in enumerate(draw.sample(kinds, draw.choice((1, 2, 3)))):
            profile = {"cpu_s": 8.0, "speedup": draw.choice((0.5, 2.0, 9.0)), "gpu_util": draw.random()}
            if draw.random() < 0.4:
                profile = {}
            state = draw.choice((SubtaskState.PENDING, SubtaskState.PENDING, SubtaskState.RUNNING))
            unit = draw.choice(("cpu1", "gpu0", "gpu1")) if state is SubtaskState.RUNNING else ""
            after = (stages[-1].id,) if stages and draw.random() < 0.5 else ()
            after = () if state is SubtaskState.RUNNING else after
            stages.append(Subtask(f"s{i}", kind, after, draw.random() < 0.7, profile, 4.0, state, unit))
        return Job(JobId(f"p{self.asked}"), model="video", subtasks=tuple(stages))

    async def call(self) -> None:
        engine, draw = draw_of(self)
        turn = draw.random()
        if turn < 0.15:  # a gang that takes whole GPUs, and its end
            await super().call()
        elif turn < 0.4:
            kind, unit = draw.choice(("decode", "detect", "track")), draw.choice(("cpu0", "gpu1"))
            done = SubtaskOutcome("s0", kind, unit, draw.uniform(0.1, 5.0), 4.0, f"n{draw.randrange(self.nodes)}")
            event = JobEvent(JobId("p0"), JobEventKind.SUBTASK_FINISHED, SystemClock().now_s(), subtask=done)
            await engine.report_job_events(CLUSTER, [event])
        else:
            jobs = tuple(self.pipeline() for _ in range(draw.choice((1, 2, 4))))
            node = NodeId(f"n{draw.randrange(self.nodes)}")
            command = PlaceCommand(CLUSTER, jobs, policy=self.policy, scope=Scope.NODE, node_id=node)
            command = replace(command, is_dry_run=draw.random() < 0.1, seed=draw.choice((None, 7)))
            await (await engine.place(command)).settled()

    def job(self) -> Job:
        return replace(super().job(), subtasks=())

    @property
    def place_policy(self) -> str:
        return "consolidate"


class PartitionHost(Host):
    """Divisible tasks are split, their shares fall behind, and hosts report overheads, temperatures and ends."""

    def __init__(self, replicas: Sequence[Engine], policy: str, seed: int) -> None:
        super().__init__(replicas, policy, seed)
        self.shares: list[tuple[DivisibleTask, tuple[ShareProgress, ...]]] = []

    async def call(self) -> None:
        engine, draw = draw_of(self)
        turn = draw.random()
        if turn < 0.2:
            await super().call()
        elif turn < 0.4 and self.shares:
            task, shares = draw.choice(self.shares)
            share = draw.choice(shares)
            numbers = (share.scale, draw.uniform(0.5, 9.0), draw.uniform(0.0, 2.0), draw.uniform(40.0, 95.0))
            done = ShareOutcome(task.kind, share.node, share.unit, *numbers)
            event = JobEvent(JobId(task.id), JobEventKind.SHARE_FINISHED, SystemClock().now_s(), share=done)
            await engine.report_job_events(CLUSTER, [event])
        else:
            self.asked += 1
            task, progress = self.task(), tuple[ShareProgress, ...]()
            if self.shares and draw.random() < 0.4:
                task, progress = self.shares.pop(draw.randrange(len(self.shares)))
            units = tuple(f"n{i}" for i in draw.sample(range(self.nodes), 4)) if draw.random() < 0.3 else ()
            command = PartitionCommand(CLUSTER, task, units, progress=progress, policy=self.policy)
            command = replace(command, is_dry_run=draw.random() < 0.1, is_explaining=draw.random() < 0.3)
            self.note(task, await engine.partition(command))

    def task(self) -> DivisibleTask:
        draw = self.draw
        overhead_s, serial = draw.choice((0.0, 1.0)), draw.choice((0.0, 5.0))
        parallel = draw.choice((0.0, 10.0, 400.0, 5000.0))
        return DivisibleTask(f"t{self.asked}", parallel, serial, overhead_s, draw.choice(("render", "sort")))

    def note(self, task: DivisibleTask, decision: PartitionDecision) -> None:
        shares = tuple(
            ShareProgress(
                share.node,
                share.unit,
                share.scale,
                share.predicted_s,
                share.capability,
                self.draw.random(),
                share.predicted_s * self.draw.choice((0.5, 3.0)),
                self.draw.random() < 0.2,
            )
            for share in decision.plan.shares
        )
        if shares:
            self.shares.append((task, shares))

    def node(self, i: int, now_s: float) -> Node:
        draw = self.draw
        heat = {"cpu_celsius": draw.uniform(40.0, 80.0), "gpu_celsius": draw.uniform(40.0, 85.0), "limit_celsius": 90.0}
        reported = NodeTelemetry(cpu_util=draw.random(), ambient_celsius=25.0, observe_time_s=now_s, **heat)
        return replace(super().node(i, now_s), telemetry=reported)

    @property
    def place_policy(self) -> str:
        return "consolidate"


class WarmingHost(PartitionHost):
    """On a cluster that learns heat: nodes work at constant power, and their reports are two seconds apart."""

    def __init__(self, replicas: Sequence[Engine], policy: str, seed: int) -> None:
        super().__init__(replicas, policy, seed)
        self.reported: Counter[int] = Counter()

    def settings(self) -> ClusterSettings:
        return replace(super().settings(), learn_heat=True)

    def node(self, i: int, now_s: float) -> Node:
        found = super().node(i, now_s)
        self.reported[i] += 1
        time_s = now_s - 60.0 + min(60.0, 2.0 * self.reported[i])
        telemetry = replace(found.telemetry, gpu_util=0.9, power_watts=800.0, observe_time_s=time_s)
        return replace(found, telemetry=telemetry)


class SharingHost(PartitionHost):
    """On a cluster that learns capabilities: shares end on its nodes."""

    def settings(self) -> ClusterSettings:
        return replace(super().settings(), learn_capability=True)


class ExploringHost(Host):
    """On a cluster that explores, with a policy in force that each request names."""

    @property
    def is_exploring(self) -> bool:
        return True


class SlicedHost(Host):
    """Requests that take too long for one go: large gangs, many jobs, of which some share GPUs."""

    nodes, gpus = 40, 8

    def job(self) -> Job:
        job, draw = super().job(), self.draw
        if job.subtasks:
            return job
        workers = draw.choice((4, 8, 40, 72))
        groups = (replace(job.groups[0], count=workers), *job.groups[1:])
        co_run = CoRun(draw.choice(MODELS), draw.uniform(0.4, 0.9), draw.uniform(0.4, 0.9))
        sharing = replace(job.gpu_sharing, co_runs=(co_run,)) if draw.random() < 0.2 else job.gpu_sharing
        return replace(job, groups=groups, gpu_sharing=replace(sharing, allowed=draw.random() < 0.7))

    def jobs(self) -> tuple[Job, ...]:
        return tuple(self.job() for _ in range(self.draw.choice((1, 2, 12))))


class SlicedCanaryHost(CanaryHost, SlicedHost):
    """Large requests, of which each arm has its share."""


def draw_of(host: Host) -> tuple[Engine, random.Random]:
    """One of the replicas, and the host's draws."""
    return host.draw.choice(host.replicas), host.draw


def cases() -> dict[str, tuple[str, type[Host]]]:
    """Policy and host by name of the case."""
    found: dict[str, tuple[str, type[Host]]] = {f"place {name}": (name, Host) for name in POLICIES}
    found |= {f"exploring {name}": (name, ExploringHost) for name in POLICIES if name != EXPLORING}
    found |= {f"sliced {name}": (name, SlicedHost) for name in POLICIES}
    found |= {f"node {name}": (name, NodeHost) for name in subtask_schedulers()}
    found |= {f"partition {name}": (name, PartitionHost) for name in ("heat-island", "heat-island-paper")}
    throughput = ThroughputModel(load(shipped_bundle()).document(THROUGHPUT))
    for name in admission_policies(throughput):
        found[f"admit {name}"] = (name, AdmitHost)
        found[f"admit {name} exploring"] = (name, ExploringAdmitHost)
    found["admit proteus-qos learning"] = ("proteus-qos", LearningHost)
    found["partition heat-island learning"] = ("heat-island", WarmingHost)
    found["partition heat-island learning capabilities"] = ("heat-island", SharingHost)
    found |= {f"killed {name}": (name, KilledHost) for name in ("harmony", "search")}
    found["killed load-balance"] = ("load-balance", UnexploredHost)
    found |= {f"canary {name}": (name, CanaryHost) for name in ("harmony", "search", "load-balance")}
    found["canary sliced harmony"] = ("harmony", SlicedCanaryHost)
    found["disturbed search"] = ("search", DisturbedHost)
    return found


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=50, help="Records of one log.")
    parser.add_argument("cases", nargs="*", help="Beginnings of their names; default: all.")
    given = parser.parse_args()
    for case, (chosen, host_type) in cases().items():
        if not given.cases or any(case.startswith(each) for each in given.cases):
            asyncio.run(run(case, chosen, given.records, given.batch, host_type))
