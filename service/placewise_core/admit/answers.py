"""Remembers in the queue's state which shapes were admitted, so that Place honours them. Decides nothing."""

from collections.abc import Sequence

from placewise_core.admit.policies.lyapunov import joined
from placewise_core.domain.decision import AdmitPlan, Verdict
from placewise_core.domain.job import Job

# A shape nobody placed in this many slots is forgotten: the host went its own way.
_KEPT_SLOTS = 8640


def with_shapes(plan: AdmitPlan, jobs: Sequence[Job], slot: int) -> AdmitPlan:
    """The plan with every chosen shape in `queue.admitted`; the same plan if all of them are there already.

    Policies that keep a queue themselves (proteus) have written theirs; for the others this is the only state. A rigid
    job brings its shape along, so nothing is remembered (and nothing written) for it. The slot is that of the job's
    first shape.
    """
    known = plan.queue.admitted
    new: dict[str, tuple[int, int, int]] = {}
    for job, a in zip(jobs, plan.admissions, strict=True):
        is_shaped = a.verdict is Verdict.ADMIT and a.nodes > 0 and not job.is_rigid
        if is_shaped and known.get(a.job_id, (0, 0, 0))[:2] != (a.nodes, a.gpus_per_node):
            _, _, since = known.get(a.job_id, (0, 0, slot))
            new[a.job_id] = (a.nodes, a.gpus_per_node, since)
    if not new:
        return plan
    kept = {job: answer for job, answer in known.items() if slot - answer[2] < _KEPT_SLOTS}
    return AdmitPlan(plan.admissions, joined(plan.queue, {}, {**kept, **new}, plan.queue.decided_slot))
