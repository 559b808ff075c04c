"""The simulator: a cluster on a manual clock, hosting the policies the service serves. Decides nothing itself.

Exact accounting: a job's speed is constant between events that touch its nodes; at each such event the work done so
far is settled and the finish moved. Deterministic: equal seed, jobs and policies give an equal event hash.
"""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from placewise_core.admit.policy import AdmissionPolicy
from placewise_core.basics.clock import ManualClock
from placewise_core.domain.cluster import Assignment, NodeState, RunningJob
from placewise_core.domain.events import ClusterRecords, JobsEnded, NodesReported
from placewise_core.domain.job import Job, JobId, NodeId
from placewise_core.domain.truth import IDLE_TICKS, TICK_S
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.greedy import can_fit
from placewise_core.gang.policy import PlacementPolicy, Proposal
from placewise_core.policies.explore import seed_of_question
from placewise_core.view.heads import barred
from placewise_core.view.lengths import with_lengths
from placewise_core.view.standing import with_groups
from placewise_core.view.view import ClusterView
from placewise_training.sim.events import EventHash, EventKind, EventQueue, QueuedEvent
from placewise_training.sim.faults import Fault, FaultKind
from placewise_training.sim.gangs.admission import Admitter
from placewise_training.sim.gangs.heat import HeatMap
from placewise_training.sim.gangs.learning import SiteReports
from placewise_training.sim.gangs.live import LiveJob, per_gpu, spots_of
from placewise_training.sim.gangs.metrics import MetricsCollector
from placewise_training.sim.gangs.results import Observer, SimOptions, SimResult
from placewise_training.sim.gangs.window import Window
from placewise_training.sim.hardware import NodeSpec
from placewise_training.sim.jobs import SimJob
from placewise_training.sim.speed.base import Footprint, NodeLoad, SpeedModel

__all__ = ["LiveJob", "Observer", "SimOptions", "SimResult", "Simulation", "spots_of"]

Decide = Callable[[Job, ClusterView, PlaceContext], Proposal | None]

_CLOCKED_IDLE_TICKS = 20_000  # ticks without any start while nothing runs: after so many the waiting jobs never start


class Simulation:
    """One run of one workload on one cluster under one policy.

    With `policy=None` nothing is started by itself: the caller starts what waits (the environment does), or sets a
    policy that has to see the simulation.
    """

    def __init__(
        self,
        nodes: Sequence[NodeSpec],
        jobs: Iterable[SimJob],
        speed: SpeedModel,
        policy: PlacementPolicy | None,
        *,
        admission: AdmissionPolicy | None = None,
        options: SimOptions | None = None,
        seed: int = 0,
        fits: dict[tuple[object, ...], bool] | None = None,
    ) -> None:
        """`fits`: which gangs could ever fit these nodes, by earlier runs on them; this one adds its findings."""
        self.options = options or SimOptions()
        self.speed = speed
        self.policy = policy
        self.clock = ManualClock()
        self.events = EventQueue()
        self.hash = EventHash()
        self.metrics = MetricsCollector()
        specs = tuple(spec.node for spec in nodes)
        records = ClusterRecords("sim", 0, "sim", settings=self.options.settings, nodes=specs)
        self.view = ClusterView(records)
        self.reports = SiteReports(self.view)
        self.nodes: dict[str, NodeLoad] = {spec.id: NodeLoad(spec) for spec in nodes}
        self.waiting: dict[str, SimJob] = {}
        self.running: dict[str, LiveJob] = {}
        self.footprints: dict[str, Footprint] = {}
        self.context = PlaceContext(0.0, np.random.default_rng(seed), interference=self.options.belief)
        self._seed = seed
        self.admitter = Admitter(admission, self.options.queue_settings) if admission is not None else None
        self._tells_speeds = admission is not None and admission.reads_progress
        self._window = Window(self.options.discipline.window)  # jobs that the admitter is asked about
        self.heat = HeatMap(nodes) if self.options.telemetry_every_s > 0 else None
        self._source: Iterator[SimJob] = iter(jobs)
        self._more_arrivals = True
        self._dirty: dict[str, None] = {}
        self._failed: set[tuple[object, ...]] = set()  # of jobs that found no room since some was given back
        self._is_new_question = True
        self._fits = {} if fits is None else fits
        self._emptied: ClusterView | None = None  # without jobs: could a job ever fit? Until nodes change
        self._impossible: list[str] = []
        self._tick_pushed = False
        self._idle_ticks = 0
        self._retimings = 0
        self._events_done = self._decisions = 0
        self._decide_s = 0.0
        self._last_submit_s = 0.0
        self._faults_left = len(self.options.faults)
        self.metrics.cluster_changed(0.0, self.view)
        self._push_arrival()
        for fault in self.options.faults:
            self.events.push(fault.time_s, EventKind.FAULT, fault)
        if self.heat is not None:
            self.events.push(0.0, EventKind.TELEMETRY)

    @property
    def now_s(self) -> float:
        return self.clock.now_s()

    def run(self, until_s: float = float("inf"), progress: Callable[[int, float], None] | None = None) -> SimResult:
        """Runs to the end, or to `until_s`. Ctrl-C ends it early: the results so far, marked partial."""
        began = time.perf_counter()
        is_partial = False
        try:
            self.run_until(until_s, progress)
        except KeyboardInterrupt:
            is_partial = True
        if self.heat is not None:
            self.metrics.peak_celsius = self.heat.peak_celsius()
        return SimResult(
            metrics=self.metrics.result(self.now_s),
            event_hash=self.hash.hexdigest(),
            events=self._events_done,
            decisions=self._decisions,
            decide_s=self._decide_s,
            wall_s=time.perf_counter() - began,
            impossible=tuple(self._impossible),
            is_partial=is_partial or len(self.events) > 0,
        )

    @property
    def is_over(self) -> bool:
        """True when no job is left: none to come, none waiting, none running."""
        return not (self._more_arrivals or self.waiting or self.running)

    def progress(self) -> float:
        """Jobs' worth of work done so far: 1 for each that finished, its share for each that runs."""
        now_s = self.now_s
        running = sum(min(1.0, live.done_at(now_s) / live.sim.samples) for live in self.running.values())
        return self.metrics.jct.count + running

    def run_until(self, until_s: float, progress: Callable[[int, float], None] | None = None) -> None:
        """Handles every event up to `until_s`, and moves the clock there unless it is infinite."""
        while self.events.next_time_s <= until_s and len(self.events):
            self._handle(self.events.pop())
            if progress is not None and self._events_done % 1000 == 0:
                progress(self.metrics.jct.count, self.now_s)
        if self.now_s < until_s < float("inf"):
            self.clock.advance(until_s - self.now_s)

    def step(self) -> QueuedEvent | None:
        """Handles the next event up to the point where jobs may start; None if no event is left.

        For a caller that decides by itself: it starts the jobs of its choice, then calls `refresh`.
        """
        while len(self.events):
            event = self.events.pop()
            if self._take(event):
                return event
        return None

    def _handle(self, event: QueuedEvent) -> None:
        if self._take(event):
            self._after(event.kind)
            self.refresh()

    def _take(self, event: QueuedEvent) -> bool:
        """Moves the clock to the event and carries it out; False for a finish that was moved since."""
        if event.kind is EventKind.FINISH and not self._is_current(event):
            return False
        self.clock.advance(max(0.0, event.time_s - self.now_s))
        self._events_done += 1
        match event.kind:
            case EventKind.FINISH:
                self._finish(event.payload)
            case EventKind.FAULT:
                self._fault(event.payload)
            case EventKind.TELEMETRY:
                self._telemetry()
            case EventKind.ARRIVAL:
                self._arrive(event.payload)
            case EventKind.TICK:
                self._tick_pushed = False
        return True

    def _is_current(self, event: QueuedEvent) -> bool:
        live = self.running.get(event.payload)
        return live is not None and live.version == event.version

    def _push_arrival(self) -> None:
        job = next(self._source, None)
        if job is None:
            self._more_arrivals = False
            return
        if job.submit_time_s < self._last_submit_s:
            raise ValueError(f"job {job.id} arrives before the one ahead of it: workloads are in order of arrival")
        self._last_submit_s = job.submit_time_s
        self.events.push(job.submit_time_s, EventKind.ARRIVAL, job)

    def _arrive(self, job: SimJob) -> None:
        self._push_arrival()
        self.metrics.count_arrival(self.now_s)
        self.hash.add(self.now_s, "arrive", job.number)
        if not self._could_ever_fit(job):
            self.metrics.impossible += 1
            self._impossible.append(job.id)
            self._tell("impossible", job, ())
            return
        self.waiting[job.id] = job
        self._window.append(job)

    def _could_ever_fit(self, job: SimJob) -> bool:
        found = self._fits.get(job.signature)
        if found is None:
            if self._emptied is None:
                self._emptied = self.view.emptied()
            emptied = self._emptied
            if job.job.elastic is not None:
                found = float(emptied.nodes.gpu_exists.sum()) >= job.job.elastic.min_gpus
            else:
                found = can_fit(job.job, emptied, self.context)
            self._fits[job.signature] = found
        return found

    def _after(self, kind: EventKind) -> None:
        if self.policy is None:
            return
        every_s = self.options.discipline.every_s
        if every_s <= 0 or kind is EventKind.TICK:
            started = self._schedule()
            is_clocked = kind in (EventKind.TICK, EventKind.TELEMETRY)
            self._idle_ticks = 0 if started or self.running else self._idle_ticks + is_clocked
        self._push_tick(every_s)

    def _push_tick(self, every_s: float) -> None:
        if self._tick_pushed or not self.waiting or self._is_hopeless():
            return
        if every_s > 0:
            self._tick_pushed = True
            self.events.push((int(self.now_s // every_s) + 1) * every_s, EventKind.TICK)
        elif self.admitter is not None and not self.running and not len(self.events):  # time alone may let a job start
            self.events.push(self.now_s + TICK_S, EventKind.TICK)

    def _is_hopeless(self) -> bool:
        """True once nothing but time passes and time alone has changed nothing for long."""
        limit = 1
        if self.heat is not None or self.admitter is not None:
            limit = _CLOCKED_IDLE_TICKS if self.heat is not None or self.options.discipline.every_s > 0 else IDLE_TICKS
        is_quiet = not self.running and not self._more_arrivals and not self._faults_left
        return is_quiet and self._idle_ticks >= limit

    def _schedule(self) -> int:
        """Starts the waiting jobs that the policy places; their number."""
        if not self.waiting:
            return 0
        self.context.now_s = self.now_s
        if self.options.reports_progress:
            self.report_progress()
        self._report_speeds()
        started = 0
        self._is_new_question = True
        for job in self._candidates():
            if self._failed and job.signature in self._failed:
                if self.options.discipline.backfills:
                    continue
                break
            if self._try(job):
                started += 1
            elif not self.options.discipline.backfills:
                break
        return started

    def _candidates(self) -> Iterable[SimJob]:
        if self.admitter is not None:
            queues = ((name, self._with_lengths(jobs)) for name, jobs in self._window.by_queue())
            return self.admitter.admitted(
                queues, self.view, self.now_s, has_gpu_jobs_in_order=self._window.has_gpu_jobs_in_order
            )
        assert self.policy is not None
        window = self.options.discipline.window
        jobs = self._with_lengths(list(itertools.islice(self.waiting.values(), window)))
        return self.options.discipline.ordered(jobs, self.policy, self.view, self.context)

    def _with_lengths(self, jobs: list[SimJob]) -> list[SimJob]:
        """The jobs with the lengths that the view has learned."""
        if not self.options.learns_durations:
            return jobs
        filled, _ = with_lengths([job.job for job in jobs], self.view)
        return [replace(sim, job=job) for sim, job in zip(jobs, filled, strict=True)]

    def _try(self, job: SimJob) -> bool:
        assert self.policy is not None
        asked = with_groups(job.job, self.view)
        if self.policy.is_drawing and (self._is_new_question or self.admitter is not None):
            self.context.randomness = seed_of_question(self._seed, self.now_s, asked)
        self._is_new_question = False
        began = time.perf_counter()
        self.context.barred = barred(self.view, asked, asked.gpus, self.now_s)
        proposal = self.policy.propose(asked, self.view, self.context)
        self._decide_s += time.perf_counter() - began
        if proposal is None:
            self._decisions += 1
            if self.context.barred is None and not self.policy.is_drawing:  # another draw may find room
                self._failed.add(job.signature)
            return False
        self._decisions += len(proposal.assignments)
        self.start(job, proposal.assignments)
        return True

    def start(self, job: SimJob, assignments: tuple[Assignment, ...], *, is_claimed: bool = False) -> LiveJob:
        """Starts a waiting job where `assignments` say, which the view may hold for it already. Raises KeyError if it
        does not wait."""
        now_s = self.now_s
        self._window.remove(self.waiting.pop(job.id))
        spots = spots_of(per_gpu(job.job, assignments))
        places = tuple(spot.node for spot in spots)
        footprint = self.speed.footprint(job, spots, self.nodes)
        live = LiveJob(
            sim=job,
            footprint=footprint,
            assignments=assignments,
            start_s=now_s,
            settled_s=now_s,
            done=job.samples_done,
            gpus=sum(len(spot.gpu_indices) for spot in spots),
        )
        self.running[job.id] = live
        self.footprints[job.id] = footprint
        for part in footprint.parts:
            self.nodes[part.node].add(job.id, part)
            self._dirty[part.node] = None
        running = RunningJob(with_groups(job.job, self.view), assignments, start_time_s=now_s)
        if is_claimed:
            self.view.hold(running)
        else:
            self.view.add_job(running)
        self.hash.add(now_s, "start", job.number, places)
        self._tell("start", job, places)
        return live

    def _finish(self, job_id: str) -> None:
        self._report_speeds()
        if self.options.learns_durations:
            self.reports.note_end(self.view.jobs[JobId(job_id)], self.now_s)
        live = self._take_down(job_id)
        job = live.sim
        ideal_s = job.ideal_s or job.samples / self._alone_rate(live)
        self.metrics.count_end(
            self.now_s,
            job.submit_time_s,
            live.start_s - job.submit_time_s,
            ideal_s,
            job.deadline_s,
            job.job.queue,
        )
        places = tuple(part.node for part in live.footprint.parts)
        self.hash.add(self.now_s, "finish", job.number, places)
        self._tell("finish", job, places)

    def _report_speeds(self) -> None:
        """Every job that runs reports its speed, if the cluster learns from that."""
        if self.options.learns_from_speeds:
            for job_id, live in self.running.items():
                per_epoch = max(1, live.sim.job.dataset_size)
                done = live.done_at(self.now_s) / per_epoch
                self.reports.note_progress(self.view.jobs[JobId(job_id)], live.rate / per_epoch, done, self.now_s)

    def _alone_rate(self, live: LiveJob) -> float:
        part = live.footprint.parts[0]
        return self.speed.alone_rate(live.sim, part.gpu_model, max(1, len(self.nodes[part.node].spec.node.gpus)))

    def _take_down(self, job_id: str) -> LiveJob:
        live = self.running.pop(job_id)
        live.settle(self.now_s)
        del self.footprints[job_id]
        self.reports.forget(JobId(job_id))
        for part in live.footprint.parts:
            if part.node in self.nodes:
                self.nodes[part.node].remove(job_id)
                self._dirty[part.node] = None
        self.view.apply_change(JobsEnded((JobId(job_id),)))
        self._try_all_again()
        return live

    def _try_all_again(self) -> None:
        """Jobs that did not fit may fit now."""
        self._failed.clear()
        if self.admitter is not None:
            self.admitter.ask_all_again()

    def _fault(self, fault: Fault) -> None:
        self._faults_left -= 1
        self.hash.add(self.now_s, fault.kind.value, 0, (fault.node,))
        if fault.kind is FaultKind.ADD:
            assert fault.spec is not None
            self.nodes[fault.node] = NodeLoad(fault.spec)
            if self.heat is not None:
                self.heat.add(fault.spec, self.now_s)
            self.view.apply_change(NodesReported((fault.spec.node,)))
        elif fault.kind is FaultKind.REMOVE:
            self._restart_jobs_on(fault.node, fault.keeps_progress)
            self.view.apply_change(NodesReported((), (NodeId(fault.node),)))
            del self.nodes[fault.node]
            self._dirty.pop(fault.node, None)
            if self.heat is not None:
                self.heat.remove(fault.node)
        else:
            self._set_state(fault)
        self._try_all_again()
        self._fits = {}
        self._emptied = None
        self.metrics.cluster_changed(self.now_s, self.view)

    def _set_state(self, fault: Fault) -> None:
        state = {FaultKind.DOWN: NodeState.DOWN, FaultKind.DRAIN: NodeState.DRAINING}.get(fault.kind, NodeState.READY)
        node = replace(self.view.nodes.records[self.view.nodes.index[fault.node]], state=state)
        self.view.apply_change(NodesReported((node,)))
        if state is NodeState.DOWN:
            self._restart_jobs_on(fault.node, fault.keeps_progress)

    def _restart_jobs_on(self, node: str, keeps_progress: bool) -> None:
        """The node's jobs go back to the head of the queue, from their last checkpoint or from the beginning."""
        stopped: dict[str, SimJob] = {}
        for job_id in list(self.nodes[node].parts):
            live = self._take_down(job_id)
            live.sim.samples_done = min(live.done, live.sim.samples) if keeps_progress else live.sim.samples_done
            live.sim.attempt += 1
            attained = live.sim.job.attained_gpu_s + live.gpus * (self.now_s - live.start_s)
            live.sim.job = replace(live.sim.job, attained_gpu_s=attained)
            stopped[job_id] = live.sim
            self.metrics.restarts += 1
            self.hash.add(self.now_s, "restart", live.sim.number)
            self._tell("restart", live.sim, (node,))
        self.waiting = {**stopped, **self.waiting}
        self._window = Window.of(self.options.discipline.window, self.waiting.values())

    def _telemetry(self) -> None:
        assert self.heat is not None
        self.refresh()
        self.view.apply_change(NodesReported(self.heat.report(self.now_s, self.view)))
        self.metrics.note_heat(self.heat.celsius())
        self._try_all_again()
        if self._more_arrivals or self.running or (self.waiting and not self._is_hopeless()):
            self.events.push(self.now_s + self.options.telemetry_every_s, EventKind.TELEMETRY)

    def report_progress(self) -> None:
        """Tells the view how fast its jobs run and how far they are, as a host's progress events would."""
        self.view.update_jobs(self._progress(self.running.values()))

    def _progress(self, lives: Iterable[LiveJob]) -> Iterator[RunningJob]:
        jobs, now_s = self.view.jobs, self.now_s
        return (live.running(jobs[live.sim.job.id].job, now_s) for live in lives)

    def refresh(self) -> None:
        """Settles and re-times every job that shares a node with a change since the last call."""
        if not self._dirty:
            return
        affected: dict[str, None] = {}
        for name in self._dirty:
            affected.update(dict.fromkeys(self.nodes[name].parts))
        now_s = self.now_s
        retimed = [live for live in map(self.running.__getitem__, affected) if self._retime(live, now_s)]
        if self._tells_speeds:
            self.view.update_jobs(self._progress(retimed))
        if self.heat is not None:
            self.heat.loads_changed(now_s, self._dirty, self.nodes)
        self.metrics.usage_changed(now_s, self.view, self._dirty)
        self._dirty.clear()

    def _retime(self, live: LiveJob, now_s: float) -> bool:
        """False if its speed is the same as before."""
        rate = self.speed.rate(live.footprint, self.nodes, self.footprints)
        if rate == live.rate:
            return False
        live.settle(now_s)
        live.rate = rate
        self._retimings += 1  # counts over all jobs: a restarted job must not take its old finish for the new one
        live.version = self._retimings
        left_s = max(0.0, live.sim.samples - live.done) / rate
        self.events.push(now_s + left_s, EventKind.FINISH, live.sim.id, live.version)
        return True

    def _tell(self, what: str, job: SimJob, places: tuple[str, ...]) -> None:
        for observer in self.options.observers:
            observer(self.now_s, what, job, places)
