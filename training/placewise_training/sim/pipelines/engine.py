"""Pipelines on a hybrid cluster: a queue per node, subtasks on CPU cores and shared GPUs (LDWP + IAWP's platform).

Two decisions are asked for: the node of each arriving task (NodeChooser), and the unit of each ready subtask
(units.UnitPolicy). Accounting is exact, runs are deterministic, as in gangs/engine.py. Decides nothing itself.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from placewise_core.basics.clock import ManualClock
from placewise_core.domain.cluster import Assignment, Node, NodeTelemetry, RunningJob
from placewise_core.domain.events import ClusterRecords, JobsChanged, JobsEnded, NodesReported
from placewise_core.domain.job import Job, NodeId, Resources, Role, SubtaskState
from placewise_core.view.view import ClusterView
from placewise_training.sim.events import EventHash, EventKind, EventQueue, QueuedEvent
from placewise_training.sim.faults import Fault, FaultKind
from placewise_training.sim.hardware import NodeSpec
from placewise_training.sim.pipelines.applications import PipelineTask, SubtaskTruth, gpu_relative_speed, subtask_truths
from placewise_training.sim.pipelines.choosers import NodeChooser
from placewise_training.sim.pipelines.queues import NodeQueue, RunningSubtask, Use
from placewise_training.sim.pipelines.units import UnitPolicy
from placewise_training.sim.speed.noise import speed_noise
from placewise_training.sim.speed.profiles import gpu_speed
from placewise_training.sim.statistics import Distribution, TimeAverage

_REFERENCE_GPU = "K80"  # the speedups of applications.py are against one core of the K80 nodes' CPU
_REPORT_EVERY_S = 30.0  # well within the age that the view takes as fresh
_WINDOW = 24  # tasks of one node's queue that are offered to the unit policy at once


@dataclass(frozen=True, slots=True)
class PipelineResult:
    """One run. Throughput in tasks per minute; `per_minute` counts finishes minute by minute."""

    finished: int
    unfinished: int
    makespan_s: float
    throughput_per_min: float
    avg_turnaround_s: float
    p95_turnaround_s: float
    gpu_util: float
    cpu_util: float
    load_balance: float
    node_finished: Mapping[str, int]
    per_minute: tuple[int, ...]
    event_hash: str
    is_partial: bool = False


# Called after every event with the time and the nodes as they are from then on.
Observer = Callable[[float, Mapping[str, NodeQueue]], None]


class PipelineSimulation:
    """One run of pipeline tasks over hybrid nodes."""

    def __init__(
        self,
        nodes: Sequence[NodeSpec],
        tasks: Sequence[PipelineTask],
        truth: str,
        chooser: NodeChooser | None,
        units: UnitPolicy,
        *,
        faults: Sequence[Fault] = (),
        seed: int = 0,
        is_noisy: bool = True,
        observer: Observer | None = None,
    ) -> None:
        self.observer = observer
        self.truth, self.chooser, self.units = truth, chooser, units
        self.clock, self.events, self.hash = ManualClock(), EventQueue(), EventHash()
        self.view = ClusterView(ClusterRecords("sim", 0, "sim", nodes=tuple(spec.node for spec in nodes)))
        self.nodes: dict[str, NodeQueue] = {spec.id: NodeQueue(spec) for spec in nodes}
        self.turnaround = Distribution()
        self.per_minute: list[int] = []
        self.node_finished: dict[str, int] = {spec.id: 0 for spec in nodes}
        self.turnaround_s: dict[int, float] = {}  # by number of the task
        self.unplaced: list[PipelineTask] = []
        self.work_done = 0.0  # tasks' worth of subtasks done; a task that starts again counts again
        self.kinds = subtask_truths(truth)
        self._noise_seed = seed if is_noisy else None
        self._gpu, self._cpu, self._balance = TimeAverage(), TimeAverage(), TimeAverage()
        self._retimings = 0
        self._reported_s = -2.0 * _REPORT_EVERY_S
        self._sent: dict[str, Use] = {}
        self._last_finish_s = 0.0
        self._tasks = len(tasks)
        self._first_s = tasks[0].submit_time_s if tasks else 0.0
        for task in tasks:
            self.events.push(task.submit_time_s, EventKind.ARRIVAL, task)
        for fault in faults:
            self.events.push(fault.time_s, EventKind.FAULT, fault)

    @property
    def now_s(self) -> float:
        return self.clock.now_s()

    def run(self, progress: Callable[[int, float], None] | None = None) -> PipelineResult:
        """Runs to the end; Ctrl-C ends it early, marked partial."""
        is_partial = False
        try:
            while len(self.events):
                self.step()
                if progress is not None and self.turnaround.count % 50 == 0:
                    progress(self.turnaround.count, self.now_s)
        except KeyboardInterrupt:
            is_partial = True
        return self.result(is_partial=is_partial)

    def result(self, *, is_partial: bool = False) -> PipelineResult:
        end_s = self._last_finish_s or self.now_s
        makespan = max(1e-9, end_s - self._first_s)
        return PipelineResult(
            finished=self.turnaround.count,
            unfinished=self._tasks - self.turnaround.count,
            makespan_s=makespan,
            throughput_per_min=60.0 * self.turnaround.count / makespan,
            avg_turnaround_s=self.turnaround.mean,
            p95_turnaround_s=self.turnaround.quantile(0.95),
            gpu_util=self._gpu.mean(end_s),
            cpu_util=self._cpu.mean(end_s),
            load_balance=self._balance.mean(end_s),
            node_finished=dict(self.node_finished),
            per_minute=tuple(self.per_minute),
            event_hash=self.hash.hexdigest(),
            is_partial=is_partial,
        )

    def step(self) -> QueuedEvent:
        """Handles the next event."""
        event = self.events.pop()
        if event.kind is EventKind.FINISH and not self._is_current(event):
            return event
        self.clock.advance(max(0.0, event.time_s - self.now_s))
        if event.kind is EventKind.ARRIVAL:
            self._arrive(event.payload)
        elif event.kind is EventKind.FAULT:
            self._fault(event.payload)
        else:
            self._finish_subtask(*event.payload)
        self._measure()
        return event

    def _is_current(self, event: QueuedEvent) -> bool:
        name, key = event.payload
        found = self.nodes[name].running.get(key) if name in self.nodes else None
        return found is not None and found.version == event.version

    def _arrive(self, task: PipelineTask) -> None:
        self.hash.add(self.now_s, "arrive", task.number)
        if self.chooser is None:
            self.unplaced.append(task)
            return
        self.report_telemetry()
        self.put(task, self.chooser.choose(task, self.view, self.nodes, self.now_s))

    def put(self, task: PipelineTask, node: str) -> None:
        """The task joins the queue of a node. Raises KeyError for one that is not there."""
        self.nodes[node].tasks[task.job.id] = (task, task.job)
        self._tell(task, node, done=0)
        self.hash.add(self.now_s, "put", task.number, (node,))
        self._assign(node)

    def _assign(self, name: str) -> None:
        if self.now_s - self._reported_s > _REPORT_EVERY_S:
            self.report_telemetry()
        queue = self.nodes[name]
        jobs = [job for _, job in itertools.islice(queue.tasks.values(), _WINDOW)]
        if not jobs:
            return
        states = queue.units(self.now_s) if self.units.wants_states else ()
        for job_id, subtask_id, unit in self.units.assign(jobs, name, self.view, states, self.now_s):
            self._start(queue, job_id, subtask_id, unit)

    def _start(self, queue: NodeQueue, job_id: str, subtask_id: str, unit: str) -> None:
        task, job = queue.tasks[job_id]
        truth = self.kinds[next(s.kind for s in job.subtasks if s.id == subtask_id)]
        started = RunningSubtask(
            task, subtask_id, truth, unit, self.base_rate(queue, task, truth, unit), task.size, self.now_s
        )
        queue.begin((job_id, subtask_id), started)
        queue.tasks[job_id] = (task, _with_state(job, subtask_id, SubtaskState.RUNNING, f"{queue.spec.id}/{unit}"))
        self.hash.add(self.now_s, subtask_id, task.number, (queue.spec.id, unit))
        self._retime(queue, unit)

    def base_rate(self, queue: NodeQueue, task: PipelineTask, truth: SubtaskTruth, unit: str) -> float:
        """Units of size per second of a subtask alone on a unit."""
        noise = 1.0 if self._noise_seed is None else speed_noise(self._noise_seed, task.number, 0)
        rate = queue.spec.cpu_speed * noise / truth.core_s
        if unit.startswith("cpu"):
            return rate
        return rate * truth.speedup * gpu_speed(queue.spec.gpu_model) / gpu_speed(_REFERENCE_GPU)

    def _retime(self, queue: NodeQueue, unit: str) -> None:
        """New speeds for everything on one unit: cores hold one subtask, GPUs several that interfere."""
        there = queue.on(unit)
        for running in there:
            others = [r.truth for r in there if r is not running]
            rate = running.base_rate * gpu_relative_speed(running.truth, others, self.truth)
            if rate == running.rate:
                continue
            running.settle(self.now_s)
            running.rate = rate
            self._retimings += 1
            running.version = self._retimings
            key = (queue.spec.id, (running.task.job.id, running.subtask))
            self.events.push(self.now_s + running.left / rate, EventKind.FINISH, key, running.version)

    def _finish_subtask(self, name: str, key: tuple[str, str]) -> None:
        queue = self.nodes[name]
        ended = queue.end(key)
        task, job = queue.tasks[key[0]]
        job = _with_state(job, key[1], SubtaskState.DONE, "")
        queue.tasks[key[0]] = (task, job)
        self.work_done += 1.0 / len(job.subtasks)
        queue.work_done += 1.0 / len(job.subtasks)
        done = sum(s.state is SubtaskState.DONE for s in job.subtasks)
        if done == len(job.subtasks):
            self._finish_task(queue, task)
        else:
            self._tell(task, name, done)
        self._retime(queue, ended.unit)
        self._assign(name)

    def _tell(self, task: PipelineTask, node: str, done: int) -> None:
        """Reports a task's node and progress to the view, as a host would: in shares of its subtasks."""
        share = done / len(task.job.subtasks)
        held = self.view.jobs.get(task.job.id)
        if held is None:
            there = Assignment("worker-0", Role.WORKER, NodeId(node), demand=Resources())
            held = RunningJob(replace(task.job, total_epochs=1.0), (there,), start_time_s=self.now_s)
        self.view.apply_change(JobsChanged((replace(held, epochs_done=share),)))

    def _finish_task(self, queue: NodeQueue, task: PipelineTask) -> None:
        self.view.apply_change(JobsEnded((task.job.id,)))
        del queue.tasks[task.job.id]
        queue.finished += 1
        self.node_finished[queue.spec.id] += 1
        self.turnaround_s[task.number] = self.now_s - task.submit_time_s
        self.turnaround.add(self.turnaround_s[task.number])
        self._last_finish_s = self.now_s
        minute = int((self.now_s - self._first_s) // 60)
        self.per_minute.extend([0] * (minute + 1 - len(self.per_minute)))
        self.per_minute[minute] += 1
        self.hash.add(self.now_s, "done", task.number, (queue.spec.id,))

    def _fault(self, fault: Fault) -> None:
        self.hash.add(self.now_s, fault.kind.value, 0, (fault.node,))
        if fault.kind is FaultKind.ADD and fault.spec is not None:
            self.nodes[fault.node] = NodeQueue(fault.spec)
            self.node_finished.setdefault(fault.node, 0)
            self.view.apply_change(NodesReported((fault.spec.node,)))
        elif fault.kind in (FaultKind.REMOVE, FaultKind.DOWN):
            lost = self.nodes.pop(fault.node)
            self.view.apply_change(JobsEnded(tuple(task.job.id for task, _ in lost.tasks.values())))
            self.view.apply_change(NodesReported((), (NodeId(fault.node),)))
            for task, _ in lost.tasks.values():  # they start again elsewhere
                self._arrive(task)
        else:
            raise ValueError(f"{fault.kind} of {fault.node}: pipelines know ADD, REMOVE and DOWN")

    def report_telemetry(self) -> None:
        """Reports to the view how busy each node is, as a monitoring agent would at this moment. A node that did not
        change is reported only once in _REPORT_EVERY_S."""
        is_due = self.now_s - self._reported_s > _REPORT_EVERY_S
        if is_due:
            self._reported_s = self.now_s
        changed = [q for name, q in self.nodes.items() if is_due or self._sent.get(name) is not q.utilisation()]
        if changed:
            self.view.apply_change(NodesReported(tuple(self._reported(queue) for queue in changed)))

    def _reported(self, queue: NodeQueue) -> Node:
        self._sent[queue.spec.id] = queue.utilisation()
        cpu, memory, gpu, gpu_memory = queue.utilisation()
        telemetry = NodeTelemetry(
            cpu_util=cpu,
            memory_util=memory,
            gpu_util=gpu,
            gpu_memory_util=gpu_memory,
            tx_gbps=0.0,
            rx_gbps=0.0,
            observe_time_s=max(1e-9, self.now_s),
        )
        return replace(queue.spec.node, telemetry=telemetry)

    def _measure(self) -> None:
        now_s, loads, gpus, cores, gpus_busy, cores_busy = self.now_s, [], 0, 0, 0.0, 0.0
        for queue in self.nodes.values():
            use = queue.utilisation()
            loads.append(sum(use) / 4.0)
            gpus, gpus_busy = gpus + queue.gpus, gpus_busy + use[2] * queue.gpus
            cores, cores_busy = cores + queue.cores, cores_busy + use[0] * queue.cores
        self._gpu.set(now_s, gpus_busy / max(1, gpus))
        self._cpu.set(now_s, cores_busy / max(1, cores))
        self._balance.set(now_s, 1.0 - deviation(loads))
        if self.observer is not None:
            self.observer(now_s, self.nodes)


def deviation(loads: Sequence[float]) -> float:
    """Standard deviation of the nodes' loads: (9). numpy takes longer than all the rest for eleven numbers."""
    mean = sum(loads) / len(loads)
    return math.sqrt(sum([(load - mean) ** 2 for load in loads]) / len(loads))


def _with_state(job: Job, subtask_id: str, state: SubtaskState, unit: str) -> Job:
    changed = tuple(replace(s, state=state, unit=unit) if s.id == subtask_id else s for s in job.subtasks)
    return replace(job, subtasks=changed)
