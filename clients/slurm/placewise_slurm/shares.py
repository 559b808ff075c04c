"""Shares of a divisible job: asked from the service when the job is placed, left in a file for TaskProlog.

A job is divisible if its comment says `divisible=<scale>` (and perhaps `serial=<scale>`, `kind=<name>`). Without an
answer there is no file and the tasks divide the work as they would without Placewise. The tasks
themselves send the time of each share; it is reported when the job has ended well. A restart forgets these times.

Anybody can send such a datagram. A time counts only where Slurm's accounting shows its step on the share's node,
running when the task began and not yet over when it ended, and if it lies within the job's own. A site without
accounting may trust the tasks of a running job: a time then counts if Slurm showed the job running on the node after
the task began.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

from placewise.v1.cluster_pb2 import ShareOutcome
from placewise.v1.decision_pb2 import DivisibleTask, PartitionRequest, PartitionResponse
from placewise_client.adapter.metrics import AdapterMetrics
from placewise_client.adapter.native import AdapterSettings, Placement, SharesDone
from placewise_client.aio import AsyncClient
from placewise_client.errors import PlacewiseError
from placewise_slurm import hostlist
from placewise_slurm.records import SlurmJob, SlurmStep
from placewise_slurm.steps import StepLookups
from placewise_slurm.translate import comment_pairs, key

log = logging.getLogger(__name__)


# Slurm numbers the batch script and other steps of its own from here on; srun's steps count from 0.
_OWN_STEPS = 4_294_967_000
_NAMES = {"4294967290": "interactive", "4294967291": "batch", "4294967292": "extern"}
# Steps of one share that are listened to; a divisible job runs one, or a few.
_MOST_STEPS = 16
# A task that Slurm has not confirmed in this time makes room.
_UNSHOWN_S = 30.0
# Slurm's times are whole seconds, and its clock may differ a little from this machine's.
_CLOCKS_S = 1.0


@dataclass(slots=True)
class _ShareTask:
    """One task with a share, by its datagrams. Times are monotonic seconds."""

    began_s: float
    took_s: float | None = None
    is_shown: bool = False
    """Slurm has confirmed that the task began. Only then is a later begin ignored."""
    is_confirmed: bool = False
    """The last look-up in accounting confirmed all datagrams."""


@dataclass(slots=True)
class _Shared:
    """A job whose shares were handed out. `steps` has an entry for each share: (node, rank on the node)."""

    kind: str
    response: PartitionResponse
    cluster: str
    steps: dict[tuple[str, int], dict[str, _ShareTask]] = field(init=False)
    ended: SlurmJob | None = None

    def __post_init__(self) -> None:
        ranks = Counter[str]()
        self.steps = {}
        for share in self.response.shares:
            self.steps[share.node, ranks[share.node]] = {}
            ranks[share.node] += 1

    def begun_steps(self) -> Iterable[tuple[str, str, _ShareTask]]:
        """Node, name of the step and task, for each task that sent a datagram."""
        return [(node, name, step) for (node, _), steps in self.steps.items() for name, step in steps.items()]


@dataclass(slots=True)
class JobShares:
    """Writes `folder/<job id>`, one line "node unit scale predicted_seconds" per share. Collects their times.

    `lookups` asks Slurm's accounting; None trusts the tasks of a running job. `wake` is called when `take` has news.
    """

    client: AsyncClient
    settings: AdapterSettings
    folder: Path
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    lookups: StepLookups | None = None
    metrics: AdapterMetrics = field(default_factory=AdapterMetrics)
    wake: Callable[[], None] = lambda: None
    _shared: dict[int, _Shared] = field(default_factory=dict)
    _settled: list[tuple[SlurmJob, SharesDone]] = field(default_factory=list)

    async def __call__(self, job: SlurmJob, placement: Placement) -> None:
        task = divisible_task(job)
        if task is None:
            return
        request = PartitionRequest(cluster=self.settings.cluster, task=task, units=units(placement))
        try:
            response = await self.client.partition(request, timeout_s=self.settings.decide_budget_s, retry=None)
            self._write(job.id, response)
        except (PlacewiseError, OSError) as error:
            log.warning("job %d gets no shares: %s", job.id, error)
        else:
            self._shared[job.id] = _Shared(task.kind, response, job.cluster)

    def _write(self, job_id: int, response: PartitionResponse) -> None:
        """Complete or not at all: a task may read it at any moment."""
        if not response.shares:
            return
        lines = [f"{s.node} {s.unit or '-'} {s.scale:.9g} {s.predicted_seconds:.6g}\n" for s in response.shares]
        partial = self.folder / f".{job_id}.partial"
        partial.write_text("".join(lines))
        partial.chmod(0o644)
        os.replace(partial, self.folder / str(job_id))

    def hear(self, what: str, job_id: int, step: str, node: str, rank: int) -> bool:
        """A task begins or ends, now. True if the job should be looked at, to see whether it runs.

        Each counts once. A later begin replaces one that Slurm has not confirmed.
        """
        shared = self._shared.get(job_id)
        steps = shared.steps.get((node, rank)) if shared is not None and shared.ended is None else None
        if steps is None:
            return False
        if what == "begin":
            is_news = self._hear_begin(steps, _NAMES.get(step, step))
            if is_news and self.lookups is not None:
                self.lookups.want(job_id)
            return is_news and self.lookups is None
        known = steps.get(_NAMES.get(step, step))
        if known is not None and known.took_s is None:
            known.took_s = self.clock() - known.began_s
        return False

    def _hear_begin(self, steps: dict[str, _ShareTask], name: str) -> bool:
        now_s, known = self.clock(), steps.get(name)
        if known is not None and (known.is_shown or known.took_s is not None or now_s - known.began_s <= _CLOCKS_S):
            return False
        if known is None and len(steps) >= _MOST_STEPS:
            stale = [each for each, step in steps.items() if not step.is_shown and now_s - step.began_s > _UNSHOWN_S]
            for each in stale:
                del steps[each]
            if not stale:
                return False
        steps[name] = _ShareTask(now_s)
        return True

    def see(self, job: SlurmJob) -> None:
        """The job as slurmrestd shows it."""
        shared = self._shared.get(job.id)
        if shared is None or self.lookups is not None or job.state not in ("RUNNING", "COMPLETING"):
            return
        started_s = self.clock() - (self.wall_clock() - job.start_time_s)
        nodes = frozenset(hostlist.expand(job.nodes))
        for node, _, step in shared.begun_steps():
            step.is_shown |= node in nodes and step.began_s >= started_s - _CLOCKS_S
            step.is_confirmed = step.is_shown

    def finish(self, job: SlurmJob) -> None:
        """The job has finished: `take` gives its times, at once or when accounting has answered."""
        shared = self._shared.get(job.id)
        if shared is None or shared.ended is not None:
            return
        shared.ended = job
        has_ended = any(step.took_s is not None for _, _, step in shared.begun_steps())
        if self.lookups is None or not has_ended or not self.lookups.want(job.id):
            self._settle(shared, job)

    def learn(self, job_id: int, steps: Sequence[SlurmStep] | None, *, is_last: bool) -> bool:
        """Takes the steps of a job from accounting, None if it does not answer. True if no more are needed."""
        shared = self._shared.get(job_id)
        if shared is None:
            return True
        ahead_s = self.wall_clock() - self.clock()
        known = {step.id: step for step in steps or () if not shared.cluster or step.cluster == shared.cluster}
        is_all_known = steps is not None
        for node, name, step in shared.begun_steps():
            found = known.get(name)
            step.is_confirmed = found is not None and _confirms(found, node, step, ahead_s)
            step.is_shown |= step.is_confirmed
            is_over = found is not None and found.end_time_s > 0
            is_all_known &= step.is_confirmed and (is_over or shared.ended is None)
        if shared.ended is not None and (is_all_known or is_last):
            self._settle(shared, shared.ended, was_asked=steps is not None)
            self.wake()
        return is_all_known

    def take(self) -> list[tuple[SlurmJob, SharesDone]]:
        """Jobs whose times have become known since the last call, as far as they can be believed."""
        settled, self._settled = self._settled, []
        return settled

    def _settle(self, shared: _Shared, job: SlurmJob, *, was_asked: bool = True) -> None:
        del self._shared[job.id]
        longest_s = job.end_time_s - job.start_time_s + _CLOCKS_S
        outcomes = []
        for share, steps in zip(shared.response.shares, shared.steps.values(), strict=True):
            took_s = _took_s(steps, longest_s)
            if took_s is not None:
                outcomes.append(
                    ShareOutcome(
                        task_kind=shared.kind, node=share.node, unit=share.unit, scale=share.scale, seconds=took_s
                    )
                )
            is_heard = any(step.took_s is not None for step in steps.values())
            refusal = "refused" if was_asked else "no_accounting"
            result = "reported" if took_s is not None else refusal if is_heard else "unheard"
            self.metrics.shares.labels(result).inc()
        if outcomes:
            self._settled.append((job, SharesDone(shared.response.meta.decision_id, tuple(outcomes))))

    def clean(self, live: Set[int]) -> None:
        """Forgets jobs that are neither pending nor running any more, and removes their files."""
        for job_id in self._shared.keys() - live:
            if self._shared[job_id].ended is None:  # else accounting is being asked
                del self._shared[job_id]
        for path in self.folder.glob("[0-9]*"):
            if path.name.isdigit() and int(path.name) not in live:
                path.unlink(missing_ok=True)


def _took_s(steps: Mapping[str, _ShareTask], longest_s: float) -> float | None:
    """Time of the step that ended last. The batch script spans the steps it starts: it counts if it starts none."""
    ended = [
        (not _is_own_step(name), step.began_s + step.took_s, step.took_s)
        for name, step in steps.items()
        if step.is_confirmed and step.took_s is not None and step.took_s <= longest_s
    ]
    return max(ended)[2] if ended else None


def _confirms(shown: SlurmStep, node: str, sent: _ShareTask, ahead_s: float) -> bool:
    """Whether the step was on this node from when the task began until it ended. `ahead_s` makes wall time of ours."""
    began_s = sent.began_s + ahead_s
    last_s = began_s + (sent.took_s or 0.0)
    is_not_over = shown.is_running or (shown.end_time_s > 0 and last_s <= shown.end_time_s + _CLOCKS_S)
    return node in shown.nodes and 0 < shown.start_time_s <= began_s + _CLOCKS_S and is_not_over


def _is_own_step(step: str) -> bool:
    return not step.isdigit() or int(step) >= _OWN_STEPS


def divisible_task(job: SlurmJob) -> DivisibleTask | None:
    """The task a job's comment describes; None for every other job."""
    settings = comment_pairs(job.comment)
    try:
        parallel, serial = float(settings.get("divisible", 0)), float(settings.get("serial", 0))
    except ValueError:
        return None
    if not 0 < parallel < float("inf") or not 0 <= serial < float("inf"):
        return None
    return DivisibleTask(id=key(job), kind=settings.get("kind", ""), parallel_scale=parallel, serial_scale=serial)


def units(placement: Placement) -> list[str]:
    """Computing units of the placement: its GPUs, or whole nodes without GPUs."""
    gpus = [f"{task.node}/gpu{index}" for task in placement.assignments for index in task.gpu_indices]
    return gpus or list(placement.nodes)
