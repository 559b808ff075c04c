"""Shares of a divisible job: asked from the service when the job is placed, left in a file for TaskProlog.

A job is divisible where its comment says `divisible=<scale>` (and perhaps `serial=<scale>`, `kind=<name>`). Without an
answer there is no file and the tasks divide the work as they would without Placewise. How long each share took is heard
from the tasks themselves and reported when the job has ended well; what a restart forgets of that is not reported.

Anybody can send such a datagram. A time counts only where slurmrestd shows the job running on the share's node after
the task began, and where it lies within the job's own. slurmrestd lists no steps, so a step's number is believed.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path

from placewise.v1.cluster_pb2 import ShareOutcome
from placewise.v1.decision_pb2 import DivisibleTask, PartitionRequest, PartitionResponse
from placewise_client.adapter.native import AdapterSettings, Placement, SharesDone
from placewise_client.aio import AsyncClient
from placewise_client.errors import PlacewiseError
from placewise_slurm import hostlist
from placewise_slurm.records import SlurmJob
from placewise_slurm.translate import comment_pairs, key

log = logging.getLogger(__name__)


# Slurm numbers the batch script and other steps of its own from here on; srun's steps count from 0.
_OWN_STEPS = 4_294_967_000
# Steps of one share that are listened to; a divisible job runs one, or a few.
_MOST_STEPS = 16
# Slurm's times are whole seconds, and its clock may differ a little from this machine's.
_CLOCKS_S = 1.0


@dataclass(slots=True)
class _Step:
    """What was heard of one task with a share. Its times are monotonic seconds."""

    began_s: float
    took_s: float | None = None
    is_shown: bool = False
    """slurmrestd has shown the job running on this node since the task began."""


@dataclass(slots=True)
class _Shared:
    """A job whose shares were handed out. `steps` has an entry for each share: (node, rank on the node)."""

    kind: str
    response: PartitionResponse
    steps: dict[tuple[str, int], dict[str, _Step]] = field(init=False)

    def __post_init__(self) -> None:
        ranks = Counter[str]()
        self.steps = {}
        for share in self.response.shares:
            self.steps[share.node, ranks[share.node]] = {}
            ranks[share.node] += 1


@dataclass(slots=True)
class JobShares:
    """Writes `folder/<job id>`, one line "node unit scale predicted_seconds" per share; hears what became of them."""

    client: AsyncClient
    settings: AdapterSettings
    folder: Path
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    _shared: dict[int, _Shared] = field(default_factory=dict)

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
            self._shared[job.id] = _Shared(task.kind, response)

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
        """A task says that it begins or ends, now; True where the job should be looked at, to see whether it runs.

        Each counts once. A begin that slurmrestd has not borne out yet gives way to a later one.
        """
        shared = self._shared.get(job_id)
        steps = shared.steps.get((node, rank)) if shared is not None else None
        if steps is None:
            return False
        known = steps.get(step)
        if what == "begin":
            if known is None and len(steps) >= _MOST_STEPS:
                return False
            if known is None or not (known.is_shown or known.took_s is not None):
                steps[step] = _Step(self.clock())
                return True
        elif known is not None and known.took_s is None:
            known.took_s = self.clock() - known.began_s
        return False

    def see(self, job: SlurmJob) -> None:
        """The job as slurmrestd shows it."""
        shared = self._shared.get(job.id)
        if shared is None or job.state not in ("RUNNING", "COMPLETING"):
            return
        started_s = self.clock() - (self.wall_clock() - job.start_time_s)
        nodes = frozenset(hostlist.expand(job.nodes))
        for (node, _), steps in shared.steps.items():
            for step in steps.values():
                step.is_shown |= node in nodes and step.began_s >= started_s - _CLOCKS_S

    def done(self, job: SlurmJob) -> SharesDone | None:
        """The times of a job's shares, as far as they were heard and can be believed; None where there is none."""
        shared = self._shared.get(job.id)
        if shared is None:
            return None
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
        return SharesDone(shared.response.meta.decision_id, tuple(outcomes)) if outcomes else None

    def clean(self, live: Set[int]) -> None:
        """Forgets jobs that are neither pending nor running any more, and removes their files."""
        for job_id in self._shared.keys() - live:
            del self._shared[job_id]
        for path in self.folder.glob("[0-9]*"):
            if path.name.isdigit() and int(path.name) not in live:
                path.unlink(missing_ok=True)


def _took_s(steps: Mapping[str, _Step], longest_s: float) -> float | None:
    """Time of the step that ended last. The batch script spans the steps it starts: it counts where it starts none."""
    ended = [
        (not _is_own_step(name), step.began_s + step.took_s, step.took_s)
        for name, step in steps.items()
        if step.is_shown and step.took_s is not None and step.took_s <= longest_s
    ]
    return max(ended)[2] if ended else None


def _is_own_step(step: str) -> bool:
    return not step.isdigit() or int(step) >= _OWN_STEPS


def divisible_task(job: SlurmJob) -> DivisibleTask | None:
    """The task a job's comment describes; None for every other job."""
    said = comment_pairs(job.comment)
    try:
        parallel, serial = float(said.get("divisible", 0)), float(said.get("serial", 0))
    except ValueError:
        return None
    if not 0 < parallel < float("inf") or not 0 <= serial < float("inf"):
        return None
    return DivisibleTask(id=key(job), kind=said.get("kind", ""), parallel_scale=parallel, serial_scale=serial)


def units(placement: Placement) -> list[str]:
    """Computing units of the placement: its GPUs, or whole nodes where it has none."""
    gpus = [f"{task.node}/gpu{index}" for task in placement.assignments for index in task.gpu_indices]
    return gpus or list(placement.nodes)
