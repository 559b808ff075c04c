"""Reports of shares as measurements of how fast units work. Pure; speed/learned/capability.py estimates.

A share counts if its node is known, has the unit, and the host reports its scale and its seconds. Whether the unit
served others at that time, nobody knows: Partition hands shares to idle units. A share is of the type of its node now.
"""

import math
from collections.abc import Iterable
from dataclasses import replace

from placewise_core.domain.commands import JobEvent, JobEventKind, ShareOutcome
from placewise_core.domain.job import NodeId
from placewise_core.speed.learned.capability import CapabilityGroup
from placewise_core.speed.learned.sums import Addition
from placewise_core.view.learned.heat import type_of
from placewise_core.view.view import ClusterView

_CPU = "cpu"
_LEAST, _MOST = 1e-9, 1e9  # scale per second: beyond, a report is wrong


def capability_additions(events: Iterable[JobEvent], view: ClusterView) -> list[Addition]:
    """What shares that ended add to the sums; a repeat of a report adds nothing (Addition.once)."""
    found = []
    for event in events:
        share = event.share
        if event.kind is JobEventKind.SHARE_FINISHED and share is not None:
            addition = capability_of(share, view)
            if addition is not None:
                found.append(replace(addition, once=f"capability {outcome_id(event.job_id, share)}"))
    return found


def outcome_id(task_id: str, share: ShareOutcome) -> str:
    """The same for each report of a share."""
    return f"{task_id}/{share.node}/{share.unit}/{share.scale}"


def capability_of(share: ShareOutcome, view: ClusterView) -> Addition | None:
    """The addition of a share to the sums; None if it says nothing."""
    m = view.nodes.index.get(NodeId(share.node))
    if m is None or share.seconds <= 0 or not _LEAST <= share.scale / share.seconds <= _MOST:
        return None
    node = view.nodes.records[m]
    if share.unit != _CPU and share.unit not in {f"gpu{gpu.index}" for gpu in node.gpus}:
        return None
    group = CapabilityGroup(share.task_kind, type_of(node), _CPU if share.unit == _CPU else "gpu")
    return Addition(group.kind, math.log(share.scale / share.seconds))
