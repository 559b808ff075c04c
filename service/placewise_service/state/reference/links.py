"""Which decisions asked about which jobs, as link_jobs.lua keeps it."""

from collections.abc import Sequence

from placewise_core.domain.asked import Asked, AskedJob, JobLinks
from placewise_service.state.store import MOST_LINKED


class Links:
    """Of one cluster: (decision that admitted, first Place) by job; the older half goes when the newer one is full."""

    def __init__(self) -> None:
        self._newer: dict[str, tuple[str, str]] = {}
        self._older: dict[str, tuple[str, str]] = {}

    def link(self, questions: Sequence[AskedJob]) -> Sequence[JobLinks]:
        found = []
        for asked in questions:
            kept = self._newer.get(asked.job) or self._older.get(asked.job)
            admitted, placed = kept or ("", "")
            if asked.kind is Asked.WAITS:
                admitted = ""
            elif asked.kind is Asked.ADMITTED:
                admitted = admitted or asked.decision
            else:
                found.append(JobLinks(admitted, placed))
                placed = min(placed or asked.decision, asked.decision)
            if kept or asked.kind is not Asked.WAITS:
                self._newer[asked.job] = (admitted, placed)
        if len(self._newer) > MOST_LINKED:
            self._newer, self._older = {}, self._newer
        return found
