"""Asks an admission policy which waiting jobs start now, and gives those it admits their shape. Decides nothing."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from operator import attrgetter

from placewise_core.admit.head import renewed
from placewise_core.admit.policy import AdmissionPolicy, AdmitContext
from placewise_core.admit.turns import Turns
from placewise_core.domain.cluster import QueueSettings, QueueState
from placewise_core.domain.decision import Admission, Verdict
from placewise_core.domain.job import Shape
from placewise_core.view.view import ClusterView
from placewise_training.sim.jobs import SimJob, with_shape


@dataclass(slots=True)
class _Waits:
    """A queue of which no job started when it was asked: the first `jobs` wait on before `until_s`, as long as the
    view and the heads are those of `stamp`."""

    jobs: int
    until_s: float
    stamp: tuple[int, int]


class Admitter:
    """One admission policy over all queues of a run. Q and Z live here, as they live in the store of a service."""

    def __init__(self, policy: AdmissionPolicy, settings: QueueSettings) -> None:
        self.policy = policy
        self.settings = settings
        self.queues: dict[str, QueueState] = {}
        # Queues whose first job waits until something is given back: only free resources matter to it.
        self._blocked = set[str]()
        self._waits: dict[str, _Waits] = {}
        self._heads_changed = 0
        self._is_in_order = policy.stops_in_order
        self._passes_in_order = policy.passes_in_order

    def ask_all_again(self) -> None:
        """Something was given back: every queue is asked again."""
        self._blocked.clear()
        self._waits.clear()

    def admitted(
        self,
        queues: Iterable[tuple[str, list[SimJob]]],
        view: ClusterView,
        now_s: float,
        *,
        has_gpu_jobs_in_order: bool = False,
    ) -> Iterator[SimJob]:
        """The jobs of each queue to start now, with their shape, by rank. The caller starts each, or finds no place for
        it, before the next one.

        All queues are asked about the view as it is at first. But once no GPU is idle, no other job can start if each
        needs an idle GPU: none is tried, and queues that keep no state are asked no more once the first of all these
        jobs has taken every GPU. `has_gpu_jobs_in_order` says so, and that queues come in the order of their jobs'
        numbers. A policy that passes in order is then asked by turns (admit/turns.py).
        """
        if has_gpu_jobs_in_order and self._passes_in_order:
            yield from self._by_turns(queues, view, now_s)
            return
        ranked: list[tuple[int, int, SimJob, Admission]] = []
        for name, jobs in queues:
            if name in self._blocked:
                continue
            first = self._waiting_on(name, view, now_s)
            if first == len(jobs):
                continue
            for job, admission in self._ask(name, jobs[first:], first, view, now_s):
                ranked.append((admission.rank, job.number, job, admission))
            if has_gpu_jobs_in_order and self._is_in_order and len(ranked) == 1 and _takes_all(ranked[0][3], view):
                _, _, job, admission = ranked.pop()
                yield shaped(job, admission)
                if not view.usage.free_gpus.any():
                    return
        for _, _, job, admission in sorted(ranked, key=lambda entry: entry[:2]):
            if has_gpu_jobs_in_order and not view.usage.free_gpus.any():
                return
            yield shaped(job, admission)

    def _by_turns(
        self, waiting: Iterable[tuple[str, list[SimJob]]], view: ClusterView, now_s: float
    ) -> Iterator[SimJob]:
        """As long as a GPU is idle, each question is asked on the view with the starts before."""
        if not view.usage.free_gpus.any():
            return
        queues = dict(waiting)
        turns = Turns(queues, attrgetter("number"))
        while (turn := turns.take()) is not None:
            if not turn.first and (behind := self._waiting_on(turn.queue, view, now_s)):
                turns.end(turn._replace(behind=behind), has_started=False)
                continue
            asked = queues[turn.queue][turn.first : turn.behind]
            starts = self._ask(turn.queue, asked, turn.first, view, now_s)
            turns.end(turn, has_started=bool(starts))
            for job, admission in sorted(starts, key=lambda start: start[1].rank):
                yield shaped(job, admission)
            if starts and not view.usage.free_gpus.any():
                return

    def _waiting_on(self, name: str, view: ClusterView, now_s: float) -> int:
        """How many of the queue's jobs, its first, wait on. Its head goes on, as if they were asked about."""
        waits = self._waits.get(name)
        if waits is None or now_s >= waits.until_s or waits.stamp != (view.usage.stamp, self._heads_changed):
            self._waits.pop(name, None)
            return 0
        known = view.heads.get(name)
        if known is not None and known.job not in view.jobs:
            head = renewed(known, view, now_s)
            if head is not known:
                self._show(replace(self.queues[name], head=head), view)
        return waits.jobs

    def _ask(
        self, name: str, jobs: list[SimJob], first: int, view: ClusterView, now_s: float
    ) -> list[tuple[SimJob, Admission]]:
        context = AdmitContext(
            now_s=now_s,
            slot=int(now_s // self.settings.slot_s),
            settings=self.settings,
            randomness=0,  # nothing is explored, and no policy draws from it
            starts_only=True,
        )
        state = self.queues.get(name) or QueueState(queue=name)
        plan = self.policy.admit([job.job for job in jobs], view, state, context)
        if plan.queue is not state:
            self._heads_changed += plan.queue.head is not state.head
            self._show(plan.queue, view)
        if not plan.admissions:
            self._wait(name, first, len(jobs), view, context)
            return []
        admitted = {a.job_id: a for a in plan.admissions if a.verdict is Verdict.ADMIT}
        self._waits.pop(name, None)
        if self._is_in_order and jobs[0].job.id not in admitted:
            self._blocked.add(name)
        found = ((job, admitted[job.job.id]) for job in jobs if job.job.id in admitted)
        return list(itertools.islice(found, len(admitted)))  # mostly the first alone

    def _wait(self, name: str, first: int, jobs: int, view: ClusterView, context: AdmitContext) -> None:
        """None of these jobs starts, which were asked about behind the `first` ones."""
        if self._is_in_order:
            self._blocked.add(name)
        elif context.same_until_s > context.now_s:
            waits = self._waits.get(name)
            stamp = (view.usage.stamp, self._heads_changed)
            if not first:
                self._waits[name] = _Waits(jobs, context.same_until_s, stamp)
            elif waits is not None and (waits.jobs, waits.stamp) == (first, stamp):
                waits.jobs, waits.until_s = first + jobs, min(waits.until_s, context.same_until_s)
        else:
            self._waits.pop(name, None)

    def _show(self, queue: QueueState, view: ClusterView) -> None:
        """Keeps the queue's next state, and shows it to the view as the events of a service do."""
        queue = self.queues[queue.queue] = replace(queue, seq=queue.seq + 1)
        view.show_queue(queue)


def _takes_all(admission: Admission, view: ClusterView) -> bool:
    return admission.gpus >= int(view.usage.free_gpus.sum())


def shaped(job: SimJob, admission: Admission) -> SimJob:
    """The job as admitted: rigid ones stay as they are, elastic ones become a gang of the shape given."""
    if job.job.is_rigid or admission.nodes <= 0:
        return job
    return replace(job, job=with_shape(job.job, Shape(admission.nodes, admission.gpus_per_node)))
