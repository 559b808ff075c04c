"""Moves a share that timed out, or whose unit asked to hand it over: Scheduler step 7 of the paper.

The rest of that share goes to the units that are still at work, so that all of them finish together; a unit's own
remaining work counts first, and none is given more than its temperature allows. To use new units, ask
Partition again with the rest as the task.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import numpy as np

from placewise_core.basics.frozen import frozen
from placewise_core.basics.slices import ONE_SLICE, Slices, spaced
from placewise_core.domain.decision import Blocker, Outcome, PartitionPlan, Reason, Share
from placewise_core.domain.divisible import ShareProgress
from placewise_core.partition.shares import levelled

# A share that takes twice its prediction, overhead included, is not late by noise: step times repeat within 7 % at p90.
TIMEOUT_FACTOR = 2.0
UnitName = tuple[str, str]  # node, unit


@frozen
class ShareState:
    """How far a share is: part done in [0, 1], and the seconds its unit may still work before it is too hot."""

    done: float = 0.0
    allowed_s: float = float("inf")


def is_late(share: ShareProgress, overhead_s: float) -> bool:
    """True if a share is overdue: elapsed > 2 · (predicted + overhead)."""
    return share.done < 1.0 and share.elapsed_s > TIMEOUT_FACTOR * (share.predicted_s + overhead_s)


def handed_out(progress: Iterable[ShareProgress], overhead_s: float) -> PartitionPlan:
    """The plan those shares were answered with, as far as it matters here."""
    shares = tuple(Share(p.node, p.unit, p.scale, p.predicted_s, 0.0, p.capability) for p in progress)
    return PartitionPlan(Outcome.PLACED, shares, overhead_s=overhead_s)


def how_far(progress: Iterable[ShareProgress], allowed_s: Mapping[UnitName, float]) -> dict[UnitName, ShareState]:
    """Progress by unit, as `allowed_s`."""
    return {(p.node, p.unit): ShareState(p.done, allowed_s[p.node, p.unit]) for p in progress}


def rescheduled(
    plan: PartitionPlan,
    leaving: Collection[UnitName],
    progress: Mapping[UnitName, ShareState],
    slices: Slices = ONE_SLICE,
) -> PartitionPlan:
    """The plan without the leaving units: the rest of their shares is spread over the others.

    Shares of the answer are the work left from now on. WAIT, with the scale that found no unit, if nobody
    stays or heat leaves too little room.
    """
    staying, left, moved = [], {}, 0.0
    for share in spaced(plan.shares, slices):
        unit = (share.node, share.unit)
        left[unit] = share.scale * (1.0 - progress.get(unit, ShareState()).done)
        if unit in leaving:
            moved += left[unit]
        else:
            staying.append(share)
    if not staying:
        return _waiting(plan, moved)
    own = np.array([left[share.node, share.unit] for share in spaced(staying, slices)])
    capability = np.array([share.capability for share in staying])
    allowed = np.array([progress.get((s.node, s.unit), ShareState()).allowed_s for s in spaced(staying, slices)])
    own_s = own / capability
    spare_s = np.maximum(allowed - own_s, 0.0)
    if moved > float((capability * spare_s).sum()):
        return _waiting(plan, moved)
    added = levelled(moved, capability, own_s, spare_s) if moved > 0 else np.zeros(len(staying))
    scales = own + added
    shares = tuple([_moved(s, float(scale)) for s, scale in spaced(zip(staying, scales, strict=True), slices)])
    return replace(plan, shares=shares, predicted_s=max(s.predicted_s for s in shares) + plan.overhead_s, blockers=())


def _moved(share: Share, scale: float) -> Share:
    return replace(share, scale=scale, predicted_s=scale / share.capability)


def _waiting(plan: PartitionPlan, moved: float) -> PartitionPlan:
    message = f"no unit is left that may take a computing scale of {moved:.4g}"
    blocker = Blocker(Reason.UNIT_BUSY, len(plan.shares), moved, "scale", message)
    return replace(plan, outcome=Outcome.WAIT, shares=(), predicted_s=0.0, blockers=(blocker,))
