"""Remembers in the queue's state which shapes were admitted, so that Place honours them. Decides nothing."""

from dataclasses import replace

from placewise_core.decision import AdmitPlan, Verdict

# A shape nobody placed in this many slots is forgotten: the host went its own way.
_KEPT_SLOTS = 8640


def with_shapes(plan: AdmitPlan, slot: int) -> AdmitPlan:
    """The plan with every admitted shape in `queue.admitted`; the same plan where all of them stand there already.

    Policies that keep a queue themselves (proteus) have written theirs; for the others this is the only state.
    """
    known = plan.queue.admitted
    shapes = {
        a.job_id: (a.nodes, a.gpus_per_node) for a in plan.admissions if a.verdict is Verdict.ADMIT and a.nodes > 0
    }
    new: dict[str, tuple[int, int, int]] = {
        job: (*shape, slot) for job, shape in shapes.items() if known.get(job, (0, 0, 0))[:2] != shape
    }
    if not new:
        return plan
    kept = {job: answer for job, answer in known.items() if slot - answer[2] < _KEPT_SLOTS}
    return replace(plan, queue=replace(plan.queue, admitted={**kept, **new}))
