"""A scheduler in memory: the reference host of the adapter conformance suite.

It starts gangs as a real one would: on the first node that fits when released, on the decided nodes when applied, and
only when their resources are free.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

from placewise.v1.cluster_pb2 import Assignment, Node
from placewise.v1.job_pb2 import Job, Resources, TaskGroup
from placewise_client.adapter.native import (
    Applied,
    End,
    HostState,
    HostUnreachableError,
    NativeJob,
    Placement,
    Stage,
)


@dataclass
class MemoryHost:
    """Implements `NativeScheduler` and the `Host` of the conformance suite."""

    nodes: dict[str, Node] = field(default_factory=dict)
    jobs: dict[str, NativeJob] = field(default_factory=dict)
    changes: list[tuple[str, str]] = field(default_factory=list)
    is_reachable: bool = True
    explained: dict[str, str] = field(default_factory=dict)
    user: str = "ada"
    refusals: int = 0
    answers_to_lose: int = 0

    @property
    def native(self) -> MemoryHost:
        return self

    # --- the suite's actions ------------------------------------------------------------------------------------------

    async def add_nodes(self, count: int, gpus: int) -> None:
        for number in range(1, count + 1):
            capacity = Resources(cpu_cores=64, gpus=gpus, memory_gib=256)
            self.nodes[f"n{number}"] = Node(id=f"n{number}", capacity=capacity, state=Node.READY)

    async def submit(self, tasks: int, gpus: int, *, is_managed: bool = True) -> str:
        key = f"job-{len(self.jobs) + 1}"
        demand = Resources(cpu_cores=1, gpus=gpus)
        group = TaskGroup(role=TaskGroup.WORKER, count=tasks, demand=demand, max_per_node=1)
        stage = Stage.WAITING if is_managed else Stage.RELEASED
        self.jobs[key] = NativeJob(key, Job(id=key, user=self.user, groups=[group]), stage, is_managed=is_managed)
        return key

    async def occupy(self, node: str, gpus: int) -> None:
        """A job of somebody else runs there from now on."""
        key = await self.submit(1, gpus, is_managed=False)
        task = Assignment(node=node, demand=self.jobs[key].job.groups[0].demand)
        self._set(self.jobs[key], stage=Stage.RUNNING, placement=(task,))

    async def run_scheduler(self) -> None:
        """Starts every job that can start."""
        for job in list(self.jobs.values()):
            if job.stage is Stage.APPLIED and self._is_free(job.placement):
                self._set(job, stage=Stage.RUNNING)
            elif job.stage is Stage.RELEASED and (found := self._own_choice(job)):
                self._set(job, stage=Stage.RUNNING, placement=found)

    async def end(self, key: str, end: End) -> None:
        self._set(self.jobs[key], stage=Stage.ENDED, end=end)

    async def start_at(self, key: str, nodes: Sequence[str]) -> None:
        demand = self.jobs[key].job.groups[0].demand
        placement = tuple(Assignment(node=node, demand=demand) for node in nodes)
        self._set(self.jobs[key], stage=Stage.RUNNING, placement=placement)

    async def shrink(self, key: str, tasks: int) -> None:
        job = Job.FromString(self.jobs[key].job.SerializeToString())
        job.groups[0].count = tasks
        self.jobs[key] = dataclasses.replace(self.jobs[key], job=job)

    async def requeue(self, key: str) -> str:
        group = self.jobs[key].job.groups[0]
        await self.end(key, End.FAILED)
        return await self.submit(group.count, int(group.demand.gpus))

    async def forget(self, key: str) -> None:
        del self.jobs[key]

    async def show_unreadable(self) -> None:
        raise NotImplementedError

    def refuse_change(self) -> None:
        self.refusals += 1

    def lose_answer(self) -> None:
        self.answers_to_lose += 1

    async def set_node_state(self, node: str, state: Node.State) -> None:
        self.nodes[node].state = state

    async def lose_node(self, node: str) -> None:
        del self.nodes[node]

    async def set_reachable(self, is_reachable: bool) -> None:
        self.is_reachable = is_reachable

    async def where(self, key: str) -> list[str]:
        """Nodes a job really runs on; empty if it does not run."""
        job = self.jobs[key]
        return sorted(a.node for a in job.placement) if job.stage is Stage.RUNNING else []

    async def stage(self, key: str) -> Stage:
        return self.jobs[key].stage

    # --- NativeScheduler ----------------------------------------------------------------------------------------------

    async def wait(self, timeout_s: float) -> bool:
        return True

    async def observe(self, full: bool) -> HostState:
        if not self.is_reachable:
            raise HostUnreachableError("switched off")
        return HostState(list(self.jobs.values()), list(self.nodes.values()) if full else None, is_complete=full)

    async def apply(self, job: NativeJob, placement: Placement) -> Applied:
        return self._change("apply", job, Stage.APPLIED, placement.assignments)

    async def release(self, job: NativeJob) -> Applied:
        return self._change("release", job, Stage.RELEASED, ())

    async def withdraw(self, job: NativeJob) -> Applied:
        if self.jobs[job.key].stage is not Stage.APPLIED:
            return Applied.GONE
        self.changes.append(("withdraw", job.key))
        self._set(self.jobs[job.key], stage=Stage.WAITING, placement=())
        return Applied.DONE

    async def explain(self, job: NativeJob, text: str) -> None:
        self.explained[job.key] = text

    def _change(self, verb: str, job: NativeJob, stage: Stage, placement: tuple[Assignment, ...]) -> Applied:
        if not self.is_reachable:
            return Applied.UNREACHABLE
        now = self.jobs.get(job.key)
        if now is None or now.stage is not Stage.WAITING:
            return Applied.GONE
        if self.refusals:
            self.refusals -= 1
            return Applied.REFUSED
        self.changes.append((verb, job.key))
        self._set(now, stage=stage, placement=placement)
        if self.answers_to_lose:
            self.answers_to_lose -= 1
            return Applied.UNREACHABLE
        return Applied.DONE

    def _set(self, job: NativeJob, **changes: object) -> None:
        self.jobs[job.key] = dataclasses.replace(job, **changes)  # type: ignore[arg-type]

    def _used(self, node: str) -> float:
        running = (job for job in self.jobs.values() if job.stage is Stage.RUNNING)
        return sum(a.demand.gpus for job in running for a in job.placement if a.node == node)

    def _is_free(self, placement: tuple[Assignment, ...]) -> bool:
        return all(
            a.node in self.nodes
            and self.nodes[a.node].state == Node.READY
            and self._used(a.node) + a.demand.gpus <= self.nodes[a.node].capacity.gpus
            for a in placement
        )

    def _own_choice(self, job: NativeJob) -> tuple[Assignment, ...]:
        group = job.job.groups[0]
        fits = [Assignment(node=node, demand=group.demand) for node in sorted(self.nodes)]
        fits = [assignment for assignment in fits if self._is_free((assignment,))][: group.count]
        return tuple(fits) if len(fits) == group.count else ()
