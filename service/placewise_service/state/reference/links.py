"""Which decisions asked about which jobs, as link_jobs.lua keeps it."""

from collections.abc import Sequence
from dataclasses import dataclass

from placewise_core.domain.asked import Asked, AskedJob, JobLinks
from placewise_service.state.store import MOST_LINKED


@dataclass(slots=True)
class _JobDecisions:
    admitted: str = ""
    placed: str = ""
    refused: str = ""
    refusal: str = ""
    asked: str = ""


class Links:
    """Of one cluster, by job; the older half goes when the newer one is full."""

    def __init__(self) -> None:
        self._newer: dict[str, _JobDecisions] = {}
        self._older: dict[str, _JobDecisions] = {}

    def link(self, questions: Sequence[AskedJob]) -> Sequence[JobLinks]:
        found = []
        for asked in questions:
            kept = self._newer.get(asked.job) or self._older.get(asked.job) or _JobDecisions()
            self._newer[asked.job] = kept
            refused = ""
            if asked.kind is Asked.WAITS:
                kept.admitted = ""
                if asked.refusal and kept.refusal == asked.refusal:
                    refused = kept.refused
                else:
                    kept.refused, kept.refusal = asked.decision, asked.refusal
            elif asked.kind is Asked.ADMITTED:
                kept.admitted = kept.admitted or asked.decision
            found.append(JobLinks(kept.admitted, kept.placed, refused, kept.asked))
            if asked.kind is Asked.PLACED:
                kept.placed = min(kept.placed or asked.decision, asked.decision)
            else:
                kept.asked = min(kept.asked or asked.decision, asked.decision)
            if asked.kind is not Asked.WAITS:
                kept.refused = kept.refusal = ""
        if len(self._newer) > MOST_LINKED:
            self._newer, self._older = {}, self._newer
        return found
