"""Asks an admission policy which waiting jobs start now, and gives those it admits their shape. Decides nothing."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from placewise_core.admit.head import renewed
from placewise_core.admit.policy import AdmissionPolicy, AdmitContext
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

    def __init__(self, policy: AdmissionPolicy, seed: int, settings: QueueSettings) -> None:
        self.policy = policy
        self.settings = settings
        self.queues: dict[str, QueueState] = {}
        # Queues whose first job waits until something is given back: only free resources matter to it.
        self._blocked = set[str]()
        self._waits: dict[str, _Waits] = {}
        self._heads_changed = 0
        self._is_in_order = policy.stops_in_order
        self._rng = np.random.default_rng(seed)

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
        numbers.
        """
        ranked: list[tuple[int, int, SimJob, Admission]] = []
        for name, jobs in queues:
            if name in self._blocked:
                continue
            new = self._new(name, jobs, view, now_s)
            for job, admission in self._ask(name, new, view, now_s, has_gpu_jobs_in_order) if new else ():
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

    def _new(self, name: str, jobs: list[SimJob], view: ClusterView, now_s: float) -> list[SimJob]:
        """Those that may start. The queue's head goes on being kept, as it would be if the others were asked about."""
        waits = self._waits.get(name)
        if waits is None or now_s >= waits.until_s or waits.stamp != (view.usage.stamp, self._heads_changed):
            self._waits.pop(name, None)
            return jobs
        queue = self.queues[name]
        head = queue.head and renewed(queue.head, view, now_s)
        if head is not queue.head:
            self._show(replace(queue, head=head), view)
        return jobs[waits.jobs :]

    def _ask(
        self, name: str, jobs: list[SimJob], view: ClusterView, now_s: float, needs_idle_gpus: bool
    ) -> list[tuple[SimJob, Admission]]:
        context = AdmitContext(
            now_s=now_s,
            slot=int(now_s // self.settings.slot_s),
            settings=self.settings,
            randomness=self._rng,
            starts_only=True,
            needs_idle_gpus=needs_idle_gpus,
        )
        state = self.queues.get(name) or QueueState(queue=name)
        plan = self.policy.admit([job.job for job in jobs], view, state, context)
        if plan.queue is not state:
            self._heads_changed += plan.queue.head is not state.head
            self._show(plan.queue, view)
        if not plan.admissions:
            self._wait(name, len(jobs), view, context)
            return []
        admitted = {a.job_id: a for a in plan.admissions if a.verdict is Verdict.ADMIT}
        self._waits.pop(name, None)
        if self._is_in_order and jobs[0].job.id not in admitted:
            self._blocked.add(name)
        found = ((job, admitted[job.job.id]) for job in jobs if job.job.id in admitted)
        return list(itertools.islice(found, len(admitted)))  # mostly the first alone

    def _wait(self, name: str, jobs: int, view: ClusterView, context: AdmitContext) -> None:
        """None of these jobs starts, which were asked about behind those that waited already."""
        if self._is_in_order:
            self._blocked.add(name)
        elif context.same_until_s > context.now_s:
            waits = self._waits.get(name)
            before, until_s = (waits.jobs, waits.until_s) if waits is not None else (0, context.same_until_s)
            stamp = (view.usage.stamp, self._heads_changed)
            self._waits[name] = _Waits(before + jobs, min(until_s, context.same_until_s), stamp)
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
