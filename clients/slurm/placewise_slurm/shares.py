"""Shares of a divisible job: asked from the service when the job is placed, left in a file for TaskProlog.

A job is divisible where its comment says `divisible=<scale>` (and perhaps `serial=<scale>`, `kind=<name>`). Without an
answer there is no file and the tasks divide the work as they would without Placewise.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

from placewise.v1.decision_pb2 import DivisibleTask, PartitionRequest, PartitionResponse
from placewise_client.adapter.native import AdapterSettings, Placement
from placewise_client.aio import AsyncClient
from placewise_client.errors import PlacewiseError
from placewise_slurm.records import SlurmJob
from placewise_slurm.translate import comment_pairs, key

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ShareWriter:
    """Writes `folder/<job id>`: one line "node unit scale predicted_seconds" per share."""

    client: AsyncClient
    settings: AdapterSettings
    folder: Path

    async def __call__(self, job: SlurmJob, placement: Placement) -> None:
        task = divisible_task(job)
        if task is None:
            return
        request = PartitionRequest(cluster=self.settings.cluster, task=task, units=units(placement), dry_run=True)
        try:
            response = await self.client.partition(request, timeout_s=self.settings.decide_budget_s, retry=None)
            self._write(job.id, response)
        except (PlacewiseError, OSError) as error:
            log.warning("job %d gets no shares: %s", job.id, error)

    def _write(self, job_id: int, response: PartitionResponse) -> None:
        """Complete or not at all: a task may read it at any moment."""
        if not response.shares:
            return
        lines = [f"{s.node} {s.unit or '-'} {s.scale:.9g} {s.predicted_seconds:.6g}\n" for s in response.shares]
        partial = self.folder / f".{job_id}.partial"
        partial.write_text("".join(lines))
        partial.chmod(0o644)
        os.replace(partial, self.folder / str(job_id))

    def clean(self, live: Set[int]) -> None:
        """Removes the shares of jobs that are neither pending nor running any more."""
        for path in self.folder.glob("[0-9]*"):
            if path.name.isdigit() and int(path.name) not in live:
                path.unlink(missing_ok=True)


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
