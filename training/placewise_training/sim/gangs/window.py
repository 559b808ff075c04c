"""The waiting jobs that one request may hold, by queue. Kept from event to event; never decides."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import count

from placewise_core.admit.needs import own_gpus
from placewise_training.sim.jobs import SimJob


class Window:
    """The first `most` of the waiting jobs."""

    def __init__(self, most: int) -> None:
        self._room = most
        self._places = count()
        self._inside: dict[str, dict[str, SimJob]] = {}  # by queue and id
        self._place: dict[str, int] = {}  # of those inside, among all jobs
        self._behind = OrderedDict[str, SimJob]()
        self._lists: dict[str, tuple[int, list[SimJob]]] = {}  # by queue, with the first place; of those unchanged
        self._without_gpus = set[str]()  # of those inside: jobs that may start while no GPU is idle
        self._last_number = -1
        self._is_by_number = True

    @classmethod
    def of(cls, most: int, jobs: Iterable[SimJob]) -> "Window":
        """With these jobs, in their order."""
        window = cls(most)
        for job in jobs:
            window.append(job)
        return window

    def append(self, job: SimJob) -> None:
        """One more job waits, behind all others."""
        self._is_by_number &= job.number > self._last_number
        self._last_number = job.number
        if self._room and not self._behind:
            self._let_in(job)
        else:
            self._behind[job.id] = job

    def remove(self, job: SimJob) -> None:
        """The job waits no more."""
        if self._behind.pop(job.id, None) is not None:
            return
        queue = job.job.queue
        there = self._inside[queue]
        del there[job.id], self._place[job.id]
        self._without_gpus.discard(job.id)
        self._lists.pop(queue, None)
        if not there:
            del self._inside[queue]
        self._room += 1
        if self._behind:
            self._let_in(self._behind.popitem(last=False)[1])

    def _let_in(self, job: SimJob) -> None:
        queue = job.job.queue
        self._inside.setdefault(queue, {})[job.id] = job
        self._place[job.id] = next(self._places)
        if not own_gpus(job.job):
            self._without_gpus.add(job.id)
        self._lists.pop(queue, None)
        self._room -= 1

    @property
    def has_gpu_jobs_in_order(self) -> bool:
        """True if the jobs came in the order of their numbers, and none may start while no GPU is idle."""
        return self._is_by_number and not self._without_gpus

    def by_queue(self) -> Iterator[tuple[str, list[SimJob]]]:
        """The jobs of each queue in their order; the queue whose first job came first is the first. Do not write."""
        lists = self._lists
        for queue, there in self._inside.items():
            if queue not in lists:
                jobs = list(there.values())
                lists[queue] = self._place[jobs[0].id], jobs
        for queue, (_, jobs) in sorted(lists.items(), key=_first_place):
            yield queue, jobs


def _first_place(entry: tuple[str, tuple[int, list[SimJob]]]) -> int:
    return entry[1][0]
