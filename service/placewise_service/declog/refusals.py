"""Refusals of AdmitOrWait that repeat themselves. The log has the first of them and counts the others."""

import hashlib
from typing import Final

import msgspec

from placewise_core.basics.bounded import Bounded
from placewise_core.domain.commands import AdmitCommand
from placewise_core.domain.decision import Admission, AdmitPlan, DecisionMeta, Verdict
from placewise_log.record import DecisionRecord

_MOST: Final = 4096  # lists of jobs remembered
_SHORT: Final = 64  # bytes of a list that is kept as it is
_encode: Final = msgspec.msgpack.Encoder().encode

_Question = tuple[str, str, bytes]


class Refusals:
    """The last refusal of each list of jobs, by this process.

    A refusal is unchanged if the same caller asks the same about the same jobs, and all of them wait for the same
    reasons under the same policy and bundle. Q, Z and the wording of a reason may have moved on. Of a cluster that
    explores admission, each slot has its own draws and so its own refusal.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._last: Bounded[_Question, tuple[bytes, str]] = Bounded(most)
        self._left_out: Bounded[tuple[str, str], int] = Bounded(most)

    def first(self, command: AdmitCommand, plan: AdmitPlan, meta: DecisionMeta) -> str:
        """Id of the decision in the log that this one repeats; "" if it has to be logged itself."""
        if not _is_refusal(plan):
            return ""
        known = self._last.get(_question(command))  # most questions are new
        return known[1] if known is not None and known[0] == _content_of(command, plan, meta) else ""

    def leave_out(self, command: AdmitCommand) -> None:
        """Counts an unchanged refusal."""
        queue = (command.cluster, command.queue)
        self._left_out[queue] = self._left_out.get(queue, 0) + 1

    def take_up(self, command: AdmitCommand, plan: AdmitPlan, meta: DecisionMeta) -> int:
        """Remembers a decision that is logged; how many refusals of its queue were left out since the last one."""
        if _is_refusal(plan):
            self._last[_question(command)] = (_content_of(command, plan, meta), meta.decision_id)
        elif self._last:
            self._last.pop(_question(command), None)
        return self._left_out.pop((command.cluster, command.queue), 0) if self._left_out else 0


def refusals_of(record: DecisionRecord) -> list[str]:
    """For each job of AdmitOrWait, in the answer's order: a digest of all that a refusal says about it and why; "" if
    it was admitted."""
    if record.admit is None:
        return []
    how = _how(record.meta, record.is_dry_run, record.is_explaining)
    jobs = {job.id: job for job in record.jobs}
    return [
        "" if given.verdict is Verdict.ADMIT else _digest(_encode((jobs[given.job_id], _reasons(given), how))).hex()
        for given in record.admit.plan.admissions
    ]


def _is_refusal(plan: AdmitPlan) -> bool:
    return Verdict.ADMIT not in [given.verdict for given in plan.admissions]


def _question(command: AdmitCommand) -> _Question:
    ids = "\n".join([job.id for job in command.jobs]).encode()
    return command.cluster, command.queue, ids if len(ids) <= _SHORT else _digest(ids)


def _content_of(command: AdmitCommand, plan: AdmitPlan, meta: DecisionMeta) -> bytes:
    reasons = [_reasons(given) for given in plan.admissions]
    return _digest(_encode((command.jobs, reasons, _how(meta, command.is_dry_run, command.is_explaining))))


def _reasons(given: Admission) -> tuple[object, ...]:
    return [(why.reason, why.resource) for why in given.blockers], given.draw


def _how(meta: DecisionMeta, is_dry_run: bool, is_explaining: bool) -> tuple[object, ...]:
    return meta.policy, meta.bundle_digest, meta.caller, is_dry_run, is_explaining


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
