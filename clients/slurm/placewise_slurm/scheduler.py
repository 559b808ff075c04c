"""Slurm as a `NativeScheduler`: looks through slurmrestd, changes held jobs with one update each.

It changes node list, node count and GPUs per node of a job that the submit hook held, together with its release. It
never changes a job without the hook's mark, one that is not pending, or one that somebody else released.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Protocol

from placewise.v1.cluster_pb2 import Node
from placewise.v1.job_pb2 import Job
from placewise_client.adapter.native import (
    Applied,
    End,
    HostState,
    HostUnreachableError,
    NativeJob,
    Placement,
    SharesDone,
    Stage,
)
from placewise_client.backoff import Backoff
from placewise_slurm import gres, hostlist
from placewise_slurm.http import TransportError
from placewise_slurm.pokes import Hints, PokeListener
from placewise_slurm.records import SlurmJob, SlurmNode
from placewise_slurm.rest import NoVersionError, RefusedError, SlurmRest
from placewise_slurm.rest.known import KnownJobs
from placewise_slurm.translate import (
    SiteNames,
    gpus_per_node,
    gpus_per_task,
    is_outranked,
    key,
    stage,
    to_job,
    to_native,
    to_node,
)
from placewise_slurm.versions import Update

log = logging.getLogger(__name__)

# The submit hook runs before Slurm has made the job: the first look may come too early by a fraction of a millisecond.
_EARLY_WAITS_S = (0.0, 0.0005, 0.001, 0.002, 0.005, 0.01)
# A controller under load may need longer than that: everything is looked at again so many times.
_LATE_WAITS = Backoff(0.05, 0.8)
_LATE_LOOKS = 5
# A record read so recently need not be read again before a change: reading takes a good part of this time itself.
_FRESH_S = 0.03
# Jobs that are read side by side: slurmrestd serves each connection by a thread of its own.
_READ_AT_ONCE = 4
# How soon a job that is still leaving its nodes is looked at again.
_COMPLETING_WAIT_S = 0.05
# How soon a released job that has not started is looked at: Slurm has said by then if it would not start it.
_UNSTARTED_WAITS = Backoff(2.0, 30.0)
# Slurm's reason for a job may be of before its last look. The third look of ours comes six seconds after the release.
_LOOKS_UNTIL_OUTRANKED = 3


class Preparation(Protocol):
    """Work for a job before its release, at its end, and after it."""

    async def __call__(self, job: SlurmJob, placement: Placement) -> None: ...
    def see(self, job: SlurmJob) -> None: ...
    def finish(self, job: SlurmJob) -> None: ...
    def take(self) -> list[tuple[SlurmJob, SharesDone]]: ...
    def clean(self, live: Set[int]) -> None: ...


@dataclass(slots=True)
class SlurmScheduler:
    """`preparation` is awaited before a job is released (it writes the shares of a divisible job).

    `_missing` counts the jobs that the submit hook has announced and that Slurm has not shown yet.
    """

    rest: SlurmRest
    pokes: PokeListener
    names: SiteNames = field(default_factory=SiteNames)
    preparation: Preparation | None = None
    _last_id: int = 0
    _types: tuple[str, ...] = ()
    _completing: set[int] = field(default_factory=set)
    _left_to_slurm: set[int] = field(default_factory=set)
    """Watched jobs of a dry run that have been answered for."""
    _has_looked: bool = False
    _late_looks: int = 0
    _missing: int = 0
    _read: dict[int, tuple[float, SlurmJob]] = field(default_factory=dict)
    _known: KnownJobs = field(init=False)
    _natives: dict[int, tuple[SlurmJob, NativeJob | None]] = field(default_factory=dict)
    _others: dict[str, int] = field(default_factory=dict)
    """Highest priority by partition of the jobs that wait there and are not ours."""
    _inventory: tuple[Sequence[SlurmNode], Sequence[Node]] = ((), ())
    _queued_again: list[NativeJob] = field(default_factory=list)
    """Earlier runs of jobs that Slurm has queued again since the last look."""
    _unstarted: dict[int, tuple[float, int]] = field(default_factory=dict)
    """When a released job is looked at, and the number of looks at it."""

    def __post_init__(self) -> None:
        self._known = KnownJobs(self.rest)

    async def wait(self, timeout_s: float) -> bool:
        limits_s = [timeout_s]
        if self._has_looked:  # else slurmrestd is away, and not to be asked twenty times a second
            late_s = [_LATE_WAITS.pause_s(_LATE_LOOKS + 1 - self._late_looks)] if self._late_looks else []
            limits_s += [*late_s, *([_COMPLETING_WAIT_S] if self._completing else ()), *self._until_unstarted_s()]
        return await self.pokes.wait(min(limits_s))

    async def observe(self, full: bool) -> HostState:
        """Raises NoVersionError, too: a bridge that waited for a version would hold jobs that nobody releases."""
        hints = self.pokes.take()
        self._missing += len(hints.passed_by)
        is_complete = full or not self._has_looked
        try:
            if not self._has_looked:
                await self.rest.agree()
            if not is_complete and not hints.is_flood:
                found, is_certain = await self._look_at_hints(hints)
                if is_certain and not self._late_looks:
                    return self._state(found, found)
            return await self._look_at_all(is_complete, are_announced=bool(hints.passed_by) or not self._has_looked)
        except NoVersionError:
            raise
        except TransportError as error:
            self._has_looked = False  # the hints are lost: look at everything
            raise HostUnreachableError(str(error)) from error

    async def apply(self, job: NativeJob, placement: Placement) -> Applied:
        return await self._change(job, lambda slurm: self._apply_to(job, slurm, placement), placement)

    async def release(self, job: NativeJob) -> Applied:
        return await self._change(job, self._release_it)

    async def withdraw(self, job: NativeJob) -> Applied:
        """Holds it first: Slurm refuses to hold a job that has started, so this cannot touch one."""
        return await self._change(job, self._hold_again, wanted=(Stage.APPLIED, Stage.WAITING))

    async def explain(self, job: NativeJob, text: str) -> None:
        """Slurm shows its own reason (JobHeldUser) and has no free text that leaves the job otherwise untouched."""
        log.info("job %s: %s", job.key, text)

    # --- looking ------------------------------------------------------------------------------------------------------

    async def _look_at_all(self, is_complete: bool, *, are_announced: bool) -> HostState:
        jobs, fresh = await self._known.look(afresh=not self._has_looked)
        self._expect_late(sum(job.id > self._last_id and _is_ours(job) for job in jobs), are_announced)
        self._others = _waiting_others(jobs)
        if not is_complete:
            return self._state(jobs, fresh)
        nodes = await self._nodes()
        self._has_looked = True
        self._left_to_slurm &= {job.id for job in jobs}
        state = self._state(jobs, fresh)
        self._natives = {job.id: self._natives[job.id] for job in jobs if job.id in self._natives}
        if self.preparation is not None:
            self.preparation.clean({job.id for job in jobs if stage(job) is not Stage.ENDED})
        return replace(state, nodes=nodes, is_complete=True)

    async def _nodes(self) -> Sequence[Node]:
        shown = await self.rest.nodes()
        if shown is not self._inventory[0]:
            self._inventory = shown, [to_node(node, self.names) for node in shown]
            types = next((types for node in shown if (types := gres.index_types(node.gres))), ())
            if types != self._types:
                self._types = types
                self._natives.clear()
        return self._inventory[1]

    def _expect_late(self, found: int, are_announced: bool) -> None:
        """Where jobs that were announced are not there yet, everything is looked at again in a moment, and again.

        Some never come: Slurm refuses a job after the hook has run, too.
        """
        self._missing = max(0, self._missing - found)
        has_moved = are_announced or found > 0
        self._late_looks = _LATE_LOOKS if has_moved and self._missing else max(0, self._late_looks - 1)
        if not self._late_looks:
            self._missing = 0

    async def _look_at_hints(self, hints: Hints) -> tuple[list[SlurmJob], bool]:
        """The jobs of the hints. False if some could not be found this way."""
        gate = asyncio.Semaphore(_READ_AT_ONCE)
        wanted = sorted(hints.job_ids | self._completing | self._due_unstarted())
        known = [self._named_job(job_id, gate) for job_id in wanted]
        named, (new, is_certain) = await asyncio.gather(asyncio.gather(*known), self._new_jobs(hints.passed_by))
        self._missing -= len(new)
        for job_id, job in zip(wanted, named, strict=True):
            if job is None:
                self._unstarted.pop(job_id, None)
        found = [job for job in named if job is not None]
        return await self._known.note([*found, *new]), is_certain and len(found) == len(known)

    async def _named_job(self, job_id: int, gate: asyncio.Semaphore) -> SlurmJob | None:
        async with gate:
            return await self.rest.job(job_id)

    async def _new_jobs(self, passed_by: Sequence[int]) -> tuple[list[SlurmJob], bool]:
        """Jobs of ours that were submitted since the last look. False if some could not be found by number."""
        found: list[SlurmJob] = []
        for others in passed_by:
            job = await self._next_of_ours(others)
            if job is None:
                # Refused after the hook ran, or numbered out of order: the whole list knows.
                return found, False
            found.append(job)
        return found, True

    async def _next_of_ours(self, others: int) -> SlurmJob | None:
        """The next job that the hook has marked, most likely right behind `others` that it has let pass."""
        if others:
            likely = await self.rest.job(self._last_id + others + 1)
            if likely is not None and _is_ours(likely):
                self._last_id = likely.id
                return likely
        while True:
            job = await self._next_job()
            if job is None or _is_ours(job):
                return job

    async def _next_job(self) -> SlurmJob | None:
        for wait_s in _EARLY_WAITS_S:
            await asyncio.sleep(wait_s)
            job = await self.rest.job(self._last_id + 1)
            if job is not None:
                self._last_id += 1
                return job
        return None

    def _state(self, jobs: list[SlurmJob], fresh: list[SlurmJob]) -> HostState:
        now_s = time.monotonic()
        self._read = {job.id: (now_s, job) for job in fresh if job.is_pending}
        for job in fresh:
            self._note_unstarted(job, now_s)
        highest = max([self._last_id, *(job.id for job in jobs)])
        self.pokes.discount(highest - self._last_id)
        self._last_id = highest
        for job in jobs:
            if self.preparation is not None:
                self.preparation.see(job)
            (self._completing.add if job.state == "COMPLETING" else self._completing.discard)(job.id)
        native = [self._native(job) for job in sorted(jobs, key=lambda job: job.id)]
        ended, self._queued_again = self._queued_again, []
        return HostState([*ended, *(job for job in native if job is not None)], late=self._late())

    def _until_unstarted_s(self) -> list[float]:
        """Seconds until the first of the released jobs is looked at."""
        now_s = time.monotonic()
        return [max(0.0, min(at_s for at_s, _ in self._unstarted.values()) - now_s)] if self._unstarted else []

    def _due_unstarted(self) -> set[int]:
        now_s = time.monotonic()
        return {job_id for job_id, (at_s, _) in self._unstarted.items() if at_s <= now_s}

    def _note_unstarted(self, job: SlurmJob, now_s: float) -> None:
        at_s, looks = self._unstarted.get(job.id, (math.inf, 0))
        if stage(job) is not Stage.APPLIED:
            self._unstarted.pop(job.id, None)
        elif at_s <= now_s or not looks:
            self._unstarted[job.id] = now_s + _UNSTARTED_WAITS.pause_s(looks + 1), looks + 1

    def _is_outranked(self, job: SlurmJob) -> bool:
        """Whether Slurm has had time to look at the job, and does not start it for others' sake."""
        looks = self._unstarted.get(job.id, (0.0, 0))[1]
        return looks >= _LOOKS_UNTIL_OUTRANKED and is_outranked(job, self._others.get(job.partition, -1))

    def _late(self) -> list[NativeJob]:
        """Divisible jobs whose shares' times have become known."""
        settled = self.preparation.take() if self.preparation is not None else []
        native = [(to_native(job, self.names, self._types), shares) for job, shares in settled]
        return [replace(job, shares=shares) for job, shares in native if job is not None]

    def _native(self, job: SlurmJob) -> NativeJob | None:
        """One job that cannot be understood must not hide all the others."""
        read, native = self._natives.get(job.id, (None, None))
        job = _still_on_nodes(job, read)
        if read is not None and read.restarts < job.restarts and native is not None and native.stage is Stage.RUNNING:
            again = replace(native, stage=Stage.ENDED, end=End.CANCELLED, end_reason="queued again by Slurm")
            self._queued_again.append(again)
        if read is not job:
            try:
                native = to_native(job, self.names, self._types)
            except ValueError:
                log.exception("job %d is passed over", job.id)
                native = None
            self._natives[job.id] = job, native
        if native is not None and native.stage is Stage.APPLIED and self._is_outranked(job):
            native = replace(native, is_outranked=True)
        if native is not None and native.stage is Stage.WAITING and job.id in self._left_to_slurm:
            native = replace(native, stage=Stage.RELEASED)
        if native is not None and native.end is End.FINISHED and self.preparation is not None:
            self.preparation.finish(job)
        return native

    # --- changing -----------------------------------------------------------------------------------------------------

    async def _change(
        self,
        job: NativeJob,
        change: Callable[[SlurmJob], Awaitable[Applied]],
        placement: Placement | None = None,
        *,
        wanted: Sequence[Stage] = (Stage.WAITING,),
    ) -> Applied:
        """Reads the job again and changes it only if it is still in one of the `wanted` stages.

        A job that has its `placement` already got it by an update whose answer was lost.
        """
        try:
            slurm = await self._current(_job_id(job))
            if slurm is None or key(slurm) != job.key:
                return Applied.GONE
            if slurm.is_watched:
                self._left_to_slurm.add(slurm.id)
                return Applied.DONE
            if placement is not None and stage(slurm) is Stage.APPLIED and _is_placed(slurm, placement):
                return Applied.DONE
            if stage(slurm) not in wanted:
                return Applied.GONE
            return await change(slurm)
        except TransportError as error:
            log.warning("job %s: %s", job.key, error)
            return Applied.UNREACHABLE

    async def _current(self, job_id: int) -> SlurmJob | None:
        """The job as it is now. Used once: after a change, the next one reads again."""
        read_s, slurm = self._read.pop(job_id, (-math.inf, None))
        self._known.expire(job_id)  # it is about to change, or has
        return slurm if time.monotonic() - read_s < _FRESH_S else await self.rest.job(job_id)

    async def _apply_to(self, native: NativeJob, job: SlurmJob, placement: Placement) -> Applied:
        if not _asks_for(to_job(job, self.names, self._types), native.job):
            log.info("job %s was changed while it waited: it is decided again", native.key)
            self._unstarted[job.id] = time.monotonic(), 0  # looked at next
            return Applied.REFUSED
        if self.preparation is not None:
            await self.preparation(job, placement)
        return await self._update(job, Update(False, placement.nodes, self._gres(job, placement)))

    async def _release_it(self, job: SlurmJob) -> Applied:
        # A withdrawn job still has the node list of its last placement; an empty one takes that back.
        nodes = () if job.required_nodes else None
        return await self._update(job, Update(False, nodes, job.set_aside if not job.tres_per_node else None))

    async def _hold_again(self, job: SlurmJob) -> Applied:
        return Applied.DONE if job.is_held else await self._update(job, Update(True))

    async def _update(self, job: SlurmJob, change: Update) -> Applied:
        try:
            await self.rest.update(job.id, change)
        except RefusedError as error:
            if error.is_gone:
                return Applied.GONE
            log.warning("job %d: Slurm refused %s: %s", job.id, change, error)
            if not change.is_held:
                # A refused update may have been done in part: it must not leave the job free to start anywhere.
                await self._update(job, Update(True))
            return Applied.REFUSED
        if change.nodes:
            self._unstarted[job.id] = time.monotonic() + _UNSTARTED_WAITS.pause_s(1), 1
        return Applied.DONE

    def _gres(self, job: SlurmJob, placement: Placement) -> str | None:
        """GPUs per node to ask for; None if the job asks for them already.

        Slurm takes one request for all nodes of a job: exact indices are possible only if they are the same on every
        node.
        """
        if gpus_per_task(job):
            return None
        per_node = {node: _indices(placement, node) for node in placement.nodes}
        indices = next(iter(per_node.values()), ())
        is_uniform = all(other == indices for other in per_node.values())
        if indices and is_uniform and self._can_name_indices(job):
            return gres.typed_gres(self._types, indices)
        count = len(indices)
        is_as_asked = bool(job.tres_per_node) and gpus_per_node(job) == count
        return None if is_as_asked or not count else f"gres:gpu:{count}"

    def _can_name_indices(self, job: SlurmJob) -> bool:
        """Slurm refuses to turn an untyped request into a typed one; without a request, or with a typed one, it may."""
        asked = {entry.type for entry in gres.gpu_entries(job.tres_per_node)}
        return bool(self._types) and asked <= set(self._types)


def _still_on_nodes(job: SlurmJob, read: SlurmJob | None) -> SlurmJob:
    """A job that Slurm queues again counts as such before it has left its nodes: until then it is the run before."""
    earlier = job.restarts - 1 if read is None else read.restarts
    return replace(job, restarts=earlier) if job.state == "COMPLETING" and earlier < job.restarts else job


def _waiting_others(jobs: Sequence[SlurmJob]) -> dict[str, int]:
    found: dict[str, int] = {}
    for job in jobs:
        if job.is_pending and not job.is_held and not job.is_marked:
            for partition in job.partition.split(","):
                found[partition] = max(job.priority, found.get(partition, 0))
    return found


def _asks_for(now: Job, decided: Job) -> bool:
    """Whether the job still asks for what was decided about: its user may have changed it."""
    return now.groups == decided.groups and now.elastic == decided.elastic


def _is_placed(job: SlurmJob, placement: Placement) -> bool:
    return sorted(hostlist.expand(job.required_nodes)) == sorted(placement.nodes)


def _is_ours(job: SlurmJob) -> bool:
    return job.is_marked or job.is_watched


def _indices(placement: Placement, node: str) -> tuple[int, ...]:
    return tuple(sorted(index for task in placement.tasks_on(node) for index in task.gpu_indices))


def _job_id(job: NativeJob) -> int:
    return int(job.key.partition(".")[0])
