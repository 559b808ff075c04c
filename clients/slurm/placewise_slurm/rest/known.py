"""Every job of Slurm as it was last read, so that a look at all of them reads only those that have changed.

slurmrestd sends 8 KB for each job that it shows, and 80 bytes in its list of states. A job whose state is the same is
read again after `_WHOLE_S`: a change of its priority, partition or node list is seen then, or as soon as the bridge
reads the job before it changes it.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from placewise_slurm.records import SlurmJob
from placewise_slurm.rest import SlurmRest
from placewise_slurm.translate import gpus_per_node

# Everything is read again this often.
_WHOLE_S = 300.0
# More jobs with another state than one in so many, and than so many: everything is read at once.
_ONE_IN = 20
_MOST_CHANGED = 32
# Layouts of so many jobs are asked for in one look; the others' GPUs are read from their own records.
_MOST_LAYOUTS = 64
_GROUP = re.compile(r"\d+")


@dataclass(slots=True)
class KnownJobs:
    """`look` reads the jobs that changed, `note` takes in jobs that were read one by one. `clock` counts seconds."""

    rest: SlurmRest
    clock: Callable[[], float] = time.monotonic
    _jobs: dict[int, SlurmJob] = field(default_factory=dict)
    _states: dict[str, str] = field(default_factory=dict)
    _whole_at_s: float = float("-inf")

    async def look(self, *, afresh: bool) -> tuple[list[SlurmJob], list[SlurmJob]]:
        """All jobs, and those of them that were read just now. `afresh` reads all. Raises TransportError."""
        states = await self.rest.states() if self.rest.has_states else {}
        if afresh or not states or self.clock() - self._whole_at_s >= _WHOLE_S:
            return await self._read_all(states)
        groups = {_group(name) for name in states}
        changed = {_group(name) for name, state in states.items() if self._states.get(name) != state}
        changed |= {_group(name) for name in self._states.keys() - states.keys()} & groups
        if len(changed) > max(_MOST_CHANGED, len(groups) // _ONE_IN):
            return await self._read_all(states)
        fresh = await self._read(changed)
        kept = [job for job in self._jobs.values() if job.group in groups and job.group not in changed]
        self._jobs, self._states = {job.id: job for job in [*kept, *fresh]}, states
        return list(self._jobs.values()), fresh

    async def note(self, jobs: Iterable[SlurmJob]) -> list[SlurmJob]:
        """The jobs, with the GPUs that slurmrestd shows beside their records."""
        jobs = await self._with_layouts(list(jobs))
        for job in jobs:
            self._jobs[job.id] = job
            if job.group == job.id:
                self._states[str(job.id)] = job.state
        return jobs

    def expire(self, job_id: int) -> None:
        """The job is read again at the next look, even if its state is the same."""
        self._states.pop(str(job_id), None)

    async def _read_all(self, states: dict[str, str]) -> tuple[list[SlurmJob], list[SlurmJob]]:
        jobs = [self._kept(job) for job in await self._with_layouts(await self.rest.jobs())]
        self._jobs, self._states, self._whole_at_s = {job.id: job for job in jobs}, states, self.clock()
        return jobs, jobs

    def _kept(self, job: SlurmJob) -> SlurmJob:
        """The same object as before for a job that has not changed: nothing is worked out for it again."""
        known = self._jobs.get(job.id)
        return known if known is not None and known == job else job

    async def _read(self, groups: Iterable[int]) -> list[SlurmJob]:
        found = await asyncio.gather(*(self.rest.group(number) for number in sorted(groups)))
        return await self._with_layouts([job for jobs in found for job in jobs])

    async def _with_layouts(self, jobs: Sequence[SlurmJob]) -> list[SlurmJob]:
        """A job keeps its GPUs while it runs: they are asked for once."""
        if not self.rest.has_layouts:
            return list(jobs)
        jobs = [self._with_known_layout(job) for job in jobs]
        asked = [job for job in jobs if job.gpu_layout is None and job.state == "RUNNING" and _has_gpus(job)]
        asked = asked[:_MOST_LAYOUTS]
        layouts = await asyncio.gather(*(self.rest.layout(job.id) for job in asked))
        found = {job.id: layout for job, layout in zip(asked, layouts, strict=True) if layout}
        return [replace(job, gpu_layout=found[job.id]) if job.id in found else job for job in jobs]

    def _with_known_layout(self, job: SlurmJob) -> SlurmJob:
        known = self._jobs.get(job.id)
        is_same = known is not None and (known.restarts, known.nodes) == (job.restarts, job.nodes)
        return replace(job, gpu_layout=known.gpu_layout) if known is not None and is_same and job.nodes else job


def _has_gpus(job: SlurmJob) -> bool:
    return bool(job.gres_detail) or gpus_per_node(job) > 0


def _group(name: str) -> int:
    """ "8_[4-9]" is of the array 8, "9+1" of the heterogeneous job 9."""
    match = _GROUP.match(name)
    return int(match[0]) if match else 0
