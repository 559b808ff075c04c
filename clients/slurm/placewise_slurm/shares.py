"""Shares of a divisible job: asked from the service when the job is placed, left in a file for TaskProlog.

A job is divisible where its comment says `divisible=<scale>` (and perhaps `serial=<scale>`, `kind=<name>`). Without an
answer there is no file and the tasks divide the work as they would without Placewise. How long each share took is heard
from the tasks themselves and reported when the job has ended well; what a restart forgets of that is not reported.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from pathlib import Path

from placewise.v1.cluster_pb2 import ShareOutcome
from placewise.v1.decision_pb2 import DivisibleTask, PartitionRequest, PartitionResponse
from placewise_client.adapter.native import AdapterSettings, Placement, SharesDone
from placewise_client.aio import AsyncClient
from placewise_client.errors import PlacewiseError
from placewise_slurm.records import SlurmJob
from placewise_slurm.translate import comment_pairs, key

log = logging.getLogger(__name__)


# Slurm numbers the batch script and other steps of its own from here on; srun's steps count from 0.
_OWN_STEPS = 4_294_967_000


@dataclass(slots=True)
class _Shared:
    """A job whose shares were handed out. Times are monotonic seconds, by (node, rank on the node)."""

    kind: str
    response: PartitionResponse
    began_s: dict[tuple[str, str, int], float] = field(default_factory=dict)
    took_s: dict[tuple[str, int], float] = field(default_factory=dict)


@dataclass(slots=True)
class JobShares:
    """Writes `folder/<job id>`, one line "node unit scale predicted_seconds" per share; hears what became of them."""

    client: AsyncClient
    settings: AdapterSettings
    folder: Path
    clock: Callable[[], float] = time.monotonic
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

    def hear(self, what: str, job_id: int, step: str, node: str, rank: int) -> None:
        """A task of a job begins or ends, by this machine's clock. Jobs without shares are not listened to."""
        shared = self._shared.get(job_id)
        if shared is None:
            return
        if what == "begin":
            shared.began_s[step, node, rank] = self.clock()
            return
        began_s = shared.began_s.pop((step, node, rank), None)
        # The batch script spans the steps it starts: its own time counts only where it starts none.
        is_span = _is_own_step(step) and (node, rank) in shared.took_s
        if began_s is not None and not is_span:
            shared.took_s[node, rank] = self.clock() - began_s

    def done(self, job_id: int) -> SharesDone | None:
        """What became of the shares of a job, as far as it was heard; None where nothing was."""
        shared = self._shared.get(job_id)
        if shared is None or not shared.took_s:
            return None
        outcomes, ranks = [], dict[str, int]()
        for share in shared.response.shares:
            rank = ranks[share.node] = ranks.get(share.node, -1) + 1
            took_s = shared.took_s.get((share.node, rank))
            if took_s is not None:
                outcomes.append(
                    ShareOutcome(
                        task_kind=shared.kind, node=share.node, unit=share.unit, scale=share.scale, seconds=took_s
                    )
                )
        return SharesDone(shared.response.meta.decision_id, tuple(outcomes))

    def clean(self, live: Set[int]) -> None:
        """Forgets jobs that are neither pending nor running any more, and removes their files."""
        for job_id in self._shared.keys() - live:
            del self._shared[job_id]
        for path in self.folder.glob("[0-9]*"):
            if path.name.isdigit() and int(path.name) not in live:
                path.unlink(missing_ok=True)


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
