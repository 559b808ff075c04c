"""What QoS-aware admission and its baselines share: an order, a shape for each job, dispatch until resources end.

These policies keep no queue: they answer from the view alone, so asking twice without a change gives the same answer,
and the Lyapunov state goes back untouched. Jobs that already hold resources keep them.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import numpy as np

from placewise_core.admit import blockers
from placewise_core.admit.backfill import Backfill
from placewise_core.admit.exploring import Draws, with_draw
from placewise_core.admit.facts import FactsCache, PlatformFacts
from placewise_core.admit.policy import AdmissionPolicy, AdmitContext
from placewise_core.admit.pool import Pool
from placewise_core.admit.seen import JobShapes, Seen, ShapeTable, Tables, table_of
from placewise_core.admit.shapes import NO_OPTIONS, Options
from placewise_core.basics.arrays import BoolArray, FloatArray
from placewise_core.basics.bounded import Bounded
from placewise_core.basics.lazy import lazy
from placewise_core.basics.slices import spaced
from placewise_core.domain.cluster import QueueSettings, QueueState
from placewise_core.domain.decision import Admission, AdmitDraw, AdmitPlan, Blocker, Verdict
from placewise_core.domain.job import Job, JobId, Priority
from placewise_core.speed.throughput import Match, MatchKey, ThroughputModel
from placewise_core.view.speeds import match_on
from placewise_core.view.view import ClusterView

# Equation (9), reconstructed (the paper's formula is an image that was lost): expected completion after submission, in
# multiples of the time on one GPU. 1 for Prior is a guess.
EXPECTED_FACTOR = {Priority.URGENT: 0.0, Priority.PRIOR: 1.0, Priority.NORMAL: 2.0}
# θ of equation (10), reconstructed like (9); the paper leaves θ open: GPUs and nodes weigh the same.
THETA = 0.5
_KEPT_RATES = 1024  # kinds of jobs and shapes whose speed is remembered
_Count = TypeVar("_Count", float, FloatArray)
_Rates = Bounded[tuple[MatchKey, int, bytes, int, int], "Rated"]


@dataclass(frozen=True)  # no slots: derived values are cached on it
class Rated:
    """PR(t, s) over PR(t, ⟨1, 1⟩) of every shape (K,), and of those on the fewest nodes."""

    shapes: Options
    facts: PlatformFacts
    every: FloatArray
    few: tuple[float, ...]

    @lazy
    def cer(self) -> FloatArray:
        """(K,) (11) on the reconstructed (10): PR / (θ·GPUs/(N·G) + (1 − θ)·nodes/N), PR relative to one GPU."""
        share = _cost(self.facts, np.maximum(self.shapes.gpus, 1), np.maximum(self.shapes.nodes, 1))
        return np.asarray(self.every / share)

    @lazy
    def table(self) -> ShapeTable:
        """The shapes as the log has them."""
        shapes = self.shapes
        gpus = [gpus for _, gpus in shapes.few]
        few = tuple(zip(gpus, self.few, strict=True))
        return table_of(shapes.nodes, shapes.gpus_per_node, self.every, self.cer, few)


@dataclass(slots=True)
class RoundNotes:
    """The notes of a round for the log. The round itself would keep the jobs and pools. `fitted` has the times on one
    GPU (s) and the shapes that fitted each job when it had its turn, `started` those that it was given one of,
    with the number of other jobs that waited then."""

    queue: QueueState
    settings: QueueSettings
    total_gpus: int
    fitted: dict[JobId, tuple[float, Rated]] = field(default_factory=dict)
    started: dict[JobId, tuple[Rated, int]] = field(default_factory=dict)


@dataclass(slots=True)
class WaitingJob:
    """One job that waits, with its figures from the throughput model. `position` is its place in the request."""

    job: Job
    match: Match
    single_s: float
    expected_s: float  # e of equation (9), as a point in time
    position: int = 0
    rated: tuple[Options, Rated] | None = None  # the shapes asked about last, and their speeds
    timed: tuple[Options, FloatArray] | None = None  # the same with their latencies


@dataclass(slots=True)
class Round:
    """One request while it is decided, and the queue's state. `used` and `blocked` are for policies that count by type
    of job, `waiting` is for those that count the jobs not admitted yet. `met` has those that were looked at, `drawn`
    the draws so far, of exploration or of a policy that draws itself. `notes` is for the log, if that wants any."""

    view: ClusterView
    queue: QueueState
    facts: PlatformFacts
    context: AdmitContext
    throughput: ThroughputModel
    pool: Pool
    whole: Pool
    rates: _Rates
    used: dict[str, int] = field(default_factory=dict)
    blocked: set[str] = field(default_factory=set)
    backfill: Backfill | None = None
    draws: Draws | None = None
    waiting: int = 0
    met: dict[JobId, WaitingJob] = field(default_factory=dict)
    drawn: dict[JobId, AdmitDraw] = field(default_factory=dict)
    left_out: Sequence[Blocker] | None = None
    notes: RoundNotes | None = None

    def pool_for(self, job: Job) -> Pool:
        """The pool, without the nodes that the heads of queues keep from this job."""
        return self.pool if self.backfill is None else self.backfill.pool_for(job, self.pool)

    def take(self, job: Job, pool: Pool, options: Options, i: int) -> None:
        """Takes option i of `pool` from the round's pool."""
        takes = pool.takes(job, options, i)
        self.pool.apply(takes)
        self.waiting -= 1
        if self.backfill is not None:
            self.backfill.start(job, takes, float(options.gpus[i]))

    def no_notes(self) -> RoundNotes:
        """The notes before the first turn."""
        return RoundNotes(self.queue, self.context.settings, max(1, self.facts.total_gpus))

    def latency_s(self, waiting: WaitingJob, options: Options) -> FloatArray:
        """(K,) Lat(t, s) of equation (4), reconstructed. Do not write: it is kept."""
        if waiting.timed is None or waiting.timed[0] is not options:
            waiting.timed = options, self.throughput.latency_at(waiting.single_s, self.rate(waiting, options))
        return waiting.timed[1]

    def few_latencies_s(self, waiting: WaitingJob, options: Options) -> list[float]:
        """Lat(t, s) of each shape in `Options.few`. An array of so few numbers would take longer."""
        return self.throughput.latencies_at(waiting.single_s, self.rated(waiting, options).few)

    def rate(self, waiting: WaitingJob, options: Options) -> FloatArray:
        """(K,) PR(t, s) over PR(t, ⟨1, 1⟩). A rigid job's spread need not be even: its mean per node counts."""
        return self.rated(waiting, options).every

    def rated(self, waiting: WaitingJob, options: Options) -> Rated:
        """The shapes with their speeds, remembered."""
        if waiting.rated is not None and waiting.rated[0] is options:
            return waiting.rated[1]
        facts = self.facts
        key = (waiting.match.key, waiting.job.batch_size, options.key, facts.nodes, facts.gpus_per_node)
        found = self.rates.get(key)
        if found is None:
            nodes = np.maximum(options.nodes, 1)
            per_node = np.maximum(options.gpus, 1) / nodes
            every = self.throughput.speedup(waiting.job, waiting.match, nodes, per_node)
            few = tuple(every[options.on_fewest_nodes].tolist())
            found = self.rates[key] = Rated(options.without_takes, facts, every, few)
        waiting.rated = options, found
        return found

    def cer(self, waiting: WaitingJob, options: Options) -> FloatArray:
        """(K,) computation/expense ratios (11). Do not write: they are kept."""
        return self.rated(waiting, options).cer

    def cost(self, gpus: float, nodes: float) -> float:
        """θ·GPUs/(N·G) + (1 − θ)·nodes/N."""
        return _cost(self.facts, gpus, nodes)


class GreedyAdmission(AdmissionPolicy):
    """Orders the waiting jobs, gives each the shape `choose` wants, until one does not get it."""

    explores_itself = True
    # True: the first job that does not get its resources ends the round. False: later ones may pass it.
    stops_at_first_wait = True
    # True: jobs are tried in the order of the request, so those behind the first that waits need not be looked at.
    keeps_order = False
    # True: the first job that waits reserves its nodes (EASY), and those behind it may start if they do not delay it.
    backfills = False
    # True: a job that waits goes on waiting while the view, the heads and the queue's bounds stay as they are.
    waits_with_view = False
    # False: the policy's answers are limits or draws of its own, which exploration leaves alone.
    is_explored = True

    def __init__(self, throughput: ThroughputModel) -> None:
        self._throughput = throughput
        self._facts = FactsCache()
        self._rates: _Rates = Bounded(_KEPT_RATES)

    @abstractmethod
    def choose(self, waiting: WaitingJob, options: Options, state: Round) -> int | None:
        """Index of the shape to start with now, among those that fit (at least one); None to wait."""

    def order(self, waiting: Sequence[WaitingJob], state: Round) -> Sequence[WaitingJob]:
        """The order of dispatch; the request's own by default."""
        return waiting

    def scores(self, single_s: float, table: ShapeTable, others: int, notes: RoundNotes) -> tuple[float, ...]:
        """S(n) of the table's few shapes while so many other jobs wait; none by default."""
        return ()

    @property
    def reads_progress(self) -> bool:
        return self.backfills

    @property
    def stops_in_order(self) -> bool:
        return self.keeps_order and self.stops_at_first_wait and not self.backfills

    def slack_s(self, waiting: WaitingJob, latency_s: float, state: Round) -> float:
        """w of equation (16)."""
        return waiting.expected_s - (latency_s + state.context.now_s)

    def admit(self, jobs: Sequence[Job], view: ClusterView, queue: QueueState, context: AdmitContext) -> AdmitPlan:
        state = self.begin(jobs, view, queue, context)
        if context.noted is not None:
            state.notes = state.no_notes()
            context.noted.work_out = partial(self._seen, state.notes)
        if self.is_explored and context.exploration.rate > 0:
            state.draws = Draws(view, queue, context)
            state.drawn = state.draws.found
        if state.draws is None and context.starts_only and self.keeps_order and self.stops_at_first_wait:
            behind = state.backfill
            started = self._starts_in_order(jobs, state) if behind is None else self._starts(jobs, state, behind)
            return _planned(started, state)
        found: dict[int, Admission] = {}
        candidates = []
        for position, job in enumerate(spaced(jobs, context.slices, 4)):
            if job.id in view.jobs:
                found[position] = _running(job, view, context)
            elif len(state.whole.options(job)) == 0:
                found[position] = Admission(job.id, Verdict.WAIT, blockers=blockers.no_shape(job, state.whole))
            else:
                candidates.append(waiting := self._waiting(job, state))
                waiting.position = position
        for waiting, admission in self._dispatch(candidates, state):
            found[waiting.position] = with_draw(admission, state.drawn)
        return _planned([found[position] for position in sorted(found)], state)

    def begin(self, jobs: Sequence[Job], view: ClusterView, queue: QueueState, context: AdmitContext) -> Round:
        """The round of one request."""
        return Round(
            view,
            queue,
            self._facts.of(view),
            context,
            self._throughput,
            Pool.free(view, context.now_s),
            self._facts.whole(view),
            self._rates,
            backfill=Backfill(jobs, view, queue, context) if self.backfills else None,
        )

    def _starts_in_order(self, jobs: Sequence[Job], state: Round) -> list[Admission]:
        """The jobs that start, up to the first that has to wait: no later one is prepared or answered."""
        started: list[Admission] = []
        last: tuple[Job, Options, int] | None = None  # takes its GPUs from the pool if another may start behind it
        for job in jobs:
            if job.id in state.view.jobs or len(state.whole.options(job)) == 0:
                continue
            if last is not None:
                if state.pool.lacks_gpus(job, int(last[1].gpus[last[2]])):
                    break
                state.take(last[0], state.pool, last[1], last[2])
            options = state.pool.options(job)
            if not len(options):
                break
            waiting = self._waiting(job, state)
            chosen = self.choose(waiting, options, state)
            if chosen is None:
                break
            last = job, options, chosen
            started.append(self._start(waiting, len(started) + 1, options, chosen, state))
        return started

    def _starts(self, jobs: Sequence[Job], state: Round, backfill: Backfill) -> list[Admission]:
        """The jobs that start while jobs may pass the first that waits: only these are prepared, and that first one."""
        started: list[Admission] = []
        jobs, late = self._late_first(jobs, state, backfill)
        if late is not None:
            self._start_late(late, started, state, backfill)
        for job in self._tried(jobs, state, backfill):
            if job is late:
                continue
            if state.pool.lacks_gpus(job):  # which takes no look at the nodes that heads keep
                self._reserve(self._waiting(job, state), backfill.usable_for(job, state.pool), state)
                continue
            pool = backfill.pool_for(job, state.pool)
            options = pool.options(job)
            if not backfill.needs_head and not len(options):
                continue
            waiting = self._waiting(job, state)
            chosen = self.choose(waiting, options, state) if len(options) else None
            if chosen is None:
                self._reserve(waiting, pool.usable, state)
                continue
            if job is jobs[-1] and not backfill.has_head:  # no job follows
                state.waiting -= 1
            else:
                state.take(job, pool, options, chosen)
            started.append(self._start(waiting, len(started) + 1, options, chosen, state))
        if not started and self.waits_with_view:
            state.context.same_until_s = backfill.same_until_s(jobs)
        return started

    def _tried(self, jobs: Sequence[Job], state: Round, backfill: Backfill) -> Iterator[Job]:
        """The jobs that may start or become the head. Once the head is known, most are passed over unseen."""
        pool, running, whole = state.pool, state.view.jobs, state.whole
        left = iter(jobs)
        fitting = pool.fitting(left)
        while (job := next(left if backfill.needs_head else fitting, None)) is not None:
            if not backfill.needs_head and backfill.keeps_all_from(job, pool):
                continue
            if job.id not in running and len(whole.options(job)):
                yield job

    def _start_late(self, job: Job, started: list[Admission], state: Round, backfill: Backfill) -> None:
        """A job past its bound starts at once, or nothing starts on the nodes that it needs."""
        pool = state.pool if state.pool.lacks_gpus(job) else backfill.pool_for(job, state.pool)
        options = pool.options(job)
        waiting = self._waiting(job, state)
        chosen = self.choose(waiting, options, state) if len(options) else None
        if chosen is None or not backfill.heads_at_once(job):
            self._reserve(waiting, state.pool.usable, state)
        if chosen is not None:
            state.take(job, pool, options, chosen)
            started.append(self._start(waiting, len(started) + 1, options, chosen, state))

    def _late_first(self, jobs: Sequence[Job], state: Round, backfill: Backfill) -> tuple[Sequence[Job], Job | None]:
        """The jobs in the order in which they are tried. The first past its bound, if there is one: nothing starts on
        the nodes that it needs, wherever it stands."""
        jobs, count = backfill.in_turn(jobs)
        running, whole = state.view.jobs, state.whole
        late = (job for job in jobs[:count] if job.id not in running and len(whole.options(job)))
        return jobs, next(late, None)

    def _needs_head(self, state: Round) -> bool:
        """True if the first job that waits was not met yet. Jobs behind it that do not fit are passed over unseen."""
        return state.backfill is None or state.backfill.needs_head

    def _reserve(self, waiting: WaitingJob, usable: BoolArray, state: Round) -> None:
        """Reserves usable nodes (M,) for the first job that waits, if this is it."""
        if state.backfill is not None:
            state.backfill.reserve(waiting.job, usable, lambda options: self.choose(waiting, options, state))

    def _waiting(self, job: Job, state: Round) -> WaitingJob:
        if (known := state.met.get(job.id)) is not None:
            return known
        match = match_on(self._throughput, job, state.facts.gpu_model, state.view)
        single_s = self._throughput.single_gpu_s(job, match, state.context.settings.tau_s)
        submitted = job.submit_time_s if job.submit_time_s > 0 else state.context.now_s
        expected_s = submitted + EXPECTED_FACTOR[job.priority] * single_s
        found = state.met[job.id] = WaitingJob(job, match, single_s, expected_s)
        return found

    def _dispatch(self, candidates: Sequence[WaitingJob], state: Round) -> list[tuple[WaitingJob, Admission]]:
        """Every candidate's answer in the order of dispatch, which is its rank."""
        answers: list[tuple[WaitingJob, Admission]] = []
        waits = 0
        ordered = self.order(candidates, state)
        if state.backfill is not None:
            jobs, late = self._late_first([waiting.job for waiting in ordered], state, state.backfill)
            if late is not None:
                by_id = {waiting.job.id: waiting for waiting in ordered}
                ordered = [by_id[job.id] for job in jobs]
                self._reserve(by_id[late.id], state.pool.usable, state)
        is_explained, notes = not state.context.starts_only, state.notes
        for rank, waiting in enumerate(spaced(ordered, state.context.slices, 1), start=1):
            if waits and self.stops_at_first_wait and not self.backfills:
                answers.append((waiting, self._wait(waiting, rank, state, blockers.behind(waits))))
                waits += 1
                continue
            if not (is_explained or self._needs_head(state)) and state.pool.options(waiting.job) is NO_OPTIONS:
                continue
            pool = state.pool_for(waiting.job)
            options = pool.options(waiting.job)
            if notes is not None and len(options):
                notes.fitted[waiting.job.id] = waiting.single_s, state.rated(waiting, options)
            chosen = self.choose(waiting, options, state) if len(options) else None
            if state.draws is not None and len(options):
                drawn = state.draws.draw(waiting.job, pool, options, chosen)
                pool, options, chosen = drawn.pool, drawn.options, drawn.i
                if drawn.is_held_back and chosen is not None:
                    state.take(waiting.job, pool, options, chosen)
                    answers.append((waiting, self._wait(waiting, rank, state, (blockers.HELD_BACK,))))
                    continue
            if chosen is None:
                self._reserve(waiting, pool.usable, state)
                waits += 1
                if is_explained:
                    answers.append((waiting, self._wait(waiting, rank, state, _blockers(waiting.job, pool, state))))
                continue
            if rank < len(ordered) or (state.backfill is not None and state.backfill.has_head):
                state.take(waiting.job, pool, options, chosen)
            else:  # no job follows
                state.waiting -= 1
            answers.append((waiting, self._start(waiting, rank, options, chosen, state)))
        return answers

    def _seen(self, notes: RoundNotes) -> Seen:
        """The known shapes of the jobs that had their turn."""
        tables, startup_of, jobs = Tables(), self._throughput.startup_of, {}
        for job_id, (single_s, rated) in notes.fitted.items():
            times = single_s, startup_of(single_s), tables.index(rated.table)
            start = notes.started.get(job_id)
            scores = self.scores(single_s, start[0].table, start[1], notes) if start else ()
            scored = tables.index(start[0].table) if start and scores else -1  # another table if chance drew
            jobs[str(job_id)] = JobShapes(*times, scored, scores)
        return Seen(tuple(tables.all), jobs)

    def _start(self, waiting: WaitingJob, rank: int, options: Options, i: int, state: Round) -> Admission:
        gpus, nodes, per_node = int(options.gpus[i]), int(options.nodes[i]), int(options.gpus_per_node[i])
        if state.context.starts_only:
            return Admission(waiting.job.id, Verdict.ADMIT, gpus, nodes, per_node, rank)
        if state.notes is not None:
            state.notes.started[waiting.job.id] = state.rated(waiting, options), state.waiting
        speedup = float(state.rate(waiting, options)[i])
        [latency_s] = state.throughput.latencies_at(waiting.single_s, (speedup,))
        return Admission(
            waiting.job.id,
            Verdict.ADMIT,
            gpus,
            nodes,
            per_node,
            rank,
            expected_finish_time_s=state.context.now_s + latency_s,
            slack_s=self.slack_s(waiting, latency_s, state),
            profile_model=waiting.match.label,
            cer=speedup / state.cost(max(gpus, 1), max(nodes, 1)),
        )

    def _wait(self, waiting: WaitingJob, rank: int, state: Round, why: tuple[Blocker, ...]) -> Admission:
        slack_s = self.slack_s(waiting, waiting.single_s, state)
        label = waiting.match.label
        return Admission(waiting.job.id, Verdict.WAIT, rank=rank, slack_s=slack_s, blockers=why, profile_model=label)


def _cost(facts: PlatformFacts, gpus: _Count, nodes: _Count) -> _Count:
    """θ·GPUs/(N·G) + (1 − θ)·nodes/N."""
    return THETA * gpus / (facts.nodes * facts.gpus_per_node) + (1.0 - THETA) * nodes / facts.nodes


def _blockers(job: Job, pool: Pool, state: Round) -> tuple[Blocker, ...]:
    """Why the job does not fit into the pool."""
    if state.left_out is None:  # for all jobs that wait
        state.left_out = blockers.left_out(state.view, state.context.now_s)
    why = blockers.does_not_fit(job, pool, state.left_out)
    is_kept = pool is not state.pool and len(state.pool.options(job)) > 0
    return (blockers.KEPT_FOR_HEAD, *why) if is_kept else why


def _planned(admissions: Sequence[Admission], state: Round) -> AdmitPlan:
    """The plan, with the queue's head if that is another now."""
    queue = state.queue
    head = state.backfill.head if state.backfill is not None else queue.head
    return AdmitPlan(tuple(admissions), queue if head == queue.head else replace(queue, head=head))


def _running(job: Job, view: ClusterView, context: AdmitContext) -> Admission:
    """The answer for a job that already holds resources: its present shape."""
    assignments = view.jobs[job.id].assignments
    per_node: dict[str, int] = {}
    for assignment in assignments:
        per_node[assignment.node] = per_node.get(assignment.node, 0) + len(assignment.gpu_indices)
    return Admission(
        job.id,
        Verdict.ADMIT,
        gpus=sum(per_node.values()),
        nodes=len(per_node),
        gpus_per_node=max(per_node.values(), default=0),
        expected_finish_time_s=context.now_s,
    )
