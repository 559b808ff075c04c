"""Harmony's policy as printed (section V): a row per job, all rows read anew for every task, an action at a time.

Jobs of the batch are rows with their placements so far, so that a decision sees the jobs that were placed before it as
jobs. The rows are as long as the cluster has nodes: for another number than the net's, and without a net, the heuristic
answers, flagged. The net is injected: this module knows no runtime.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from placewise_core.basics.arrays import Float32
from placewise_core.domain.job import Job
from placewise_core.gang.candidates import Candidates
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.gang import Gang
from placewise_core.gang.policy import NetRead, PlacementPolicy, Proposal
from placewise_core.inputs.harmony_paper import ListedJob, PaperRows
from placewise_core.inputs.jobs import NOWHERE
from placewise_core.policies.harmony import Choose, chosen_action, most_likely, note_action
from placewise_core.view.view import ClusterView

_MOST_JOBS = 64  # rows: the batch first, then the running jobs that came last
_LEAST_LEFT_S = 0.002


class PaperNet(Protocol):
    """The net. Any exception makes the heuristic answer."""

    @property
    def nodes(self) -> int:
        """M, the number of nodes that it was trained for."""
        ...

    def logits(self, rows: Float32) -> Float32:
        """(2M,) in the order of actions.py, for the next task of the job in the first row of `rows` (J, columns)."""
        ...


class HarmonyPaper(PlacementPolicy):
    """The most likely action each time. `fallback` answers for the net."""

    name = "harmony-paper"

    def __init__(
        self,
        net: PaperNet | None,
        fallback: PlacementPolicy,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._net, self._fallback, self._monotonic_s = net, fallback, monotonic_s

    def order(self, jobs: Sequence[Job], view: ClusterView, context: PlaceContext) -> Sequence[Job]:
        """As they come: the paper has no order of its own."""
        context.notes[self] = jobs
        return jobs

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        if lack := self._lack(view):
            return self._fall_back(lack, job, view, context)
        if context.deadline_s - self._monotonic_s() < _LEAST_LEFT_S:
            return self._fall_back("deadline", job, view, context)
        try:
            proposal = self.decode(job, view, context, most_likely)
        except Exception as error:  # of any kind: a broken net never fails a call
            return self._fall_back(type(error).__name__, job, view, context)
        return proposal or self._fall_back("dead end", job, view, context)

    def decode(self, job: Job, view: ClusterView, context: PlaceContext, choose: Choose) -> Proposal | None:
        """The gang placed action by action; None for a dead end. Raises the net's own errors."""
        assert self._net is not None
        candidates = Candidates(Gang(job, view, context))
        if candidates.lacks_slots():
            return None
        gang, propensity = candidates.gang, 1.0
        read = NetRead(candidates.rows) if context.is_recording else None
        state = PaperRows(gang, self._others(job, view, context))
        while not candidates.is_stuck():
            logits = self._net.logits(state.rows)
            action, probability = chosen_action(logits, candidates.mask, len(gang.placed), choose)
            if read is not None:
                note_action(read, candidates, state.rows, logits, action)
            if not candidates.take(action):
                continue  # its GPUs are too slow to share: the action is masked now
            propensity *= probability
            if not gang.remaining:
                return Proposal(gang.assignments(), propensity, read=read)
            state.update()
            context.slices.pause()
        return None

    def _others(self, job: Job, view: ClusterView, context: PlaceContext) -> list[ListedJob]:
        """The other jobs of the state: of the batch those that are still to be placed, then all that hold nodes."""
        batch: Sequence[Job] = context.notes.get(self, ())
        ids = {other.id for other in batch}
        new = [ListedJob(other, NOWHERE, is_new=True) for other in batch if other.id not in view.jobs]
        there = [ListedJob.running(held, view, is_new=held.id in ids) for held in view.jobs.values()]
        others = [listed for listed in (*new, *reversed(there)) if listed.job.id != job.id]
        return others[: _MOST_JOBS - 1]

    def _lack(self, view: ClusterView) -> str:
        if self._net is None:
            return "the bundle has no net for it (placewise train harmony-paper)"
        if self._net.nodes != view.nodes.size:
            return f"its net is for {self._net.nodes} nodes, the cluster has {view.nodes.size}"
        return ""

    def _fall_back(self, reason: str, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        proposal = self._fallback.propose(job, view, context)
        return proposal and replace(proposal, is_fallback=True, fallback_reason=f"{self.name}: {reason}")
