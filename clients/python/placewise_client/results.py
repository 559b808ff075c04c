"""Readings of the answers. The protobuf messages are the result types; these functions interpret them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from placewise.v1.cluster_pb2 import Assignment
from placewise.v1.decision_pb2 import (
    PLACED,
    Admission,
    AdmitOrWaitResponse,
    Blocker,
    JobDecision,
    PlaceResponse,
    Reason,
)


def is_placed(decision: JobDecision) -> bool:
    return decision.outcome == PLACED


def decisions_by_job(response: PlaceResponse) -> Mapping[str, JobDecision]:
    return {decision.job_id: decision for decision in response.decisions}


def admitted(response: AdmitOrWaitResponse) -> list[Admission]:
    """The jobs that may start now, in the order the policy gave them."""
    return sorted((a for a in response.admissions if a.verdict == Admission.ADMIT), key=lambda a: a.rank)


def nodes_of(decision: JobDecision) -> list[str]:
    """Nodes without repeats, in the order of the tasks."""
    return list(dict.fromkeys(assignment.node for assignment in decision.assignments))


def gpus_by_node(assignments: Iterable[Assignment]) -> Mapping[str, tuple[int, ...]]:
    """Sorted GPU indices that the tasks hold, by node."""
    indices: dict[str, set[int]] = {}
    for assignment in assignments:
        indices.setdefault(assignment.node, set()).update(assignment.gpu_indices)
    return {node: tuple(sorted(held)) for node, held in indices.items()}


def reason_names(blockers: Iterable[Blocker]) -> tuple[str, ...]:
    """Names of the reasons, the first to fix first ("INSUFFICIENT_GPU", "FRAGMENTED")."""
    return tuple(_name(blocker.reason) for blocker in blockers)


def blocker_text(blockers: Iterable[Blocker]) -> str:
    """One line that a user can read."""
    return "; ".join(_one(blocker) for blocker in blockers)


def _one(blocker: Blocker) -> str:
    if blocker.message:
        return blocker.message
    name = _name(blocker.reason).replace("_", " ").lower()
    where = f" on {blocker.nodes} nodes" if blocker.nodes else ""
    short = f", short by {blocker.shortfall:g} {blocker.resource}".rstrip() if blocker.shortfall else ""
    return f"{name}{where}{short}"


def _name(reason: Reason) -> str:
    """A service of a later release may send a reason that this client has no name for."""
    return Reason.Name(reason) if reason in Reason.values() else f"REASON_{int(reason)}"
