"""Capacity: every type of job has a guaranteed part of the GPUs and may not use another type's.

A type is a network (the job's model). The GPUs are split evenly over the types that run or wait. Within a type jobs go
first in, first out; a type that is at its capacity does not hold up another. A job larger than its type's part may
start while its type runs nothing else: it could never start otherwise.
"""

from collections.abc import Sequence

from placewise_core.admit.greedy import GreedyAdmission, Round, WaitingJob
from placewise_core.admit.needs import requested_gpus
from placewise_core.admit.shapes import Options, at_most
from placewise_core.domain.job import Job
from placewise_core.speed.params import normalised


class Capacity(GreedyAdmission):
    """The capacity scheduler, with job types as its queues."""

    name = "capacity"
    is_explored = False
    stops_at_first_wait = False

    def order(self, waiting: Sequence[WaitingJob], state: Round) -> Sequence[WaitingJob]:
        for running in state.view.jobs.values():
            gpus = sum(len(a.gpu_indices) for a in running.assignments)
            state.used[_type(running.job)] = state.used.get(_type(running.job), 0) + gpus
        for w in waiting:
            state.used.setdefault(_type(w.job), 0)
        return waiting

    def choose(self, waiting: WaitingJob, options: Options, state: Round) -> int | None:
        kind = _type(waiting.job)
        if kind in state.blocked:
            return None
        used, part = state.used[kind], state.facts.total_gpus // len(state.used)
        wanted = requested_gpus(waiting.job, state.facts.total_gpus)
        chosen = at_most(options, min(wanted, part - used))
        if chosen is None and used == 0:
            chosen = 0 if options.gpus[0] <= wanted else None
        if chosen is None:
            state.blocked.add(kind)
            return None
        state.used[kind] = used + int(options.gpus[chosen])
        return chosen


def _type(job: Job) -> str:
    return normalised(job.model)
