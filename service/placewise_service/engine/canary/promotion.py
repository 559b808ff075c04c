"""The gate's word on a promotion, and the audit record of a canary that the service ended by itself. Pure."""

from collections.abc import Collection, Mapping
from typing import Final

from placewise_log.audit import AuditRecord
from placewise_service.state.store import BundleChange

PASSED: Final = "promoted"  # the gate's verdict on a bundle that may serve
UNGATED_REMEDY: Final = (
    "Judge it on a log of that cluster (`placewise gate --record`) and try the bundle that has the verdict, or promote "
    "this one all the same with allow_ungated (`placewise bundle promote --ungated`)"
)


def why_ungated(gate: Mapping[str, str], clusters: Collection[str]) -> str:
    """Why the verdict in a bundle's manifest does not let it answer for these clusters; "" if it does."""
    verdict, judged_on = gate.get("verdict", ""), gate.get("cluster", "")
    if not verdict:
        return "has no verdict of the gate"
    if verdict != PASSED:
        return f"was refused by the gate on cluster {judged_on!r}"
    others = sorted(set(clusters) - {judged_on})
    if others:
        return f"passed the gate on cluster {judged_on!r}; no gate has judged it on {', '.join(map(repr, others[:3]))}"
    return ""


def rolled_back(change: BundleChange) -> AuditRecord:
    """Nobody called: a guard, or a replica that cannot use the bundle, ended the canary."""
    return AuditRecord(
        change.time_s, "canary guard", "OK", method="guard", cluster=change.cluster, subject=change.bundle,
        reason=change.reason,
    )  # fmt: skip
