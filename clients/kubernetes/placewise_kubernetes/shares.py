"""Shares of a divisible task: asked from Partition when its gang has a place, and written on its pods as annotations.

Without an answer the pods run without shares. Their real times are not reported: nobody here measures them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

from placewise.v1.cluster_pb2 import Assignment
from placewise.v1.decision_pb2 import DivisibleTask, PartitionRequest, Share
from placewise_client.adapter.native import AdapterSettings, Placement
from placewise_client.aio import AsyncClient
from placewise_client.errors import PlacewiseError
from placewise_kubernetes.gang.gang import UNREADABLE, Gang, ShareNotes
from placewise_kubernetes.kube import names
from placewise_kubernetes.kube.objects import Pod

log = logging.getLogger(__name__)


class ShareAsker:
    """Asks Partition over the GPUs of a placement."""

    def __init__(self, client: AsyncClient, settings: AdapterSettings) -> None:
        self._client = client
        self._settings = settings

    async def __call__(self, gang: Gang, placement: Placement) -> ShareNotes:
        """Annotations by the id() of each task of the placement; empty if the gang is not divisible or has no GPUs."""
        lead = next(iter((*gang.live(), *gang.templates.values())), None)
        units = [unit for assignment in placement.assignments for unit in units_of(assignment)]
        try:
            task = divisible_task(gang.key, lead) if lead is not None and gang.is_written_to else None
        except UNREADABLE:
            log.warning("gang %s gets no shares, its annotations cannot be read", gang.key)
            return {}
        if task is None or not units:
            return {}
        request = PartitionRequest(cluster=self._settings.cluster, task=task, units=units)
        try:
            answer = await self._client.partition(request, timeout_s=self._settings.decide_budget_s, retry=None)
        except PlacewiseError as error:
            log.warning("gang %s gets no shares: %s", gang.key, error)
            return {}
        by_unit = {f"{share.node}/{share.unit}": share for share in answer.shares}
        return {id(assignment): share_notes(assignment, by_unit) for assignment in placement.assignments}


def divisible_task(key: str, pod: Pod) -> DivisibleTask | None:
    """The task that a pod's annotations describe; None for a pod without, or with numbers that cannot be."""
    try:
        parallel, serial = float(pod.setting(names.DIVISIBLE, "0")), float(pod.setting(names.SERIAL, "0"))
    except ValueError:
        return None
    if not 0 < parallel < math.inf or not 0 <= serial < math.inf:
        return None
    return DivisibleTask(id=key, kind=pod.setting(names.KIND), parallel_scale=parallel, serial_scale=serial)


def units_of(assignment: Assignment) -> list[str]:
    """The computing units of a task, its GPUs: "node/gpu0"."""
    return [f"{assignment.node}/gpu{index}" for index in assignment.gpu_indices]


def share_notes(assignment: Assignment, by_unit: Mapping[str, Share]) -> dict[str, str]:
    """The share of one task as annotations: 0 for one whose GPUs have none; empty if nothing was split."""
    whole = sum(share.scale for share in by_unit.values())
    if whole <= 0:
        return {}
    mine = [by_unit[unit] for unit in units_of(assignment) if unit in by_unit]
    scale = sum(share.scale for share in mine)
    return {
        names.SHARE_SCALE: f"{scale:.9g}",
        names.SHARE_FRACTION: f"{scale / whole:.9g}",
        names.SHARE_UNIT: ",".join(share.unit for share in mine),
        names.SHARE_SECONDS: f"{max((share.predicted_seconds for share in mine), default=0.0):.6g}",
    }
