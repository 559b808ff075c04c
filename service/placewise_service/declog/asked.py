"""Jobs that were asked about: whether a question is a repeat, and which decision admitted a job.

This process knows its own questions at once. The store has those of all replicas: it is asked when a record is written
(`linked`), not when a call is answered.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Final, Protocol

from placewise_core.basics.bounded import Bounded
from placewise_core.domain.asked import Asked, AskedJob, JobLinks
from placewise_core.domain.cluster import QueueState
from placewise_core.domain.decision import AdmitDecision, Verdict
from placewise_core.domain.job import Job
from placewise_log.record import AdmitSeen, DecisionRecord, Entry, PlaceSeen
from placewise_service.declog.refusals import refusals_of

_MOST: Final = 16_384  # jobs remembered
_NONE: Final = JobLinks("", "")


class AskedJobs:
    """Bounded, and gone with the process. The queues in the shared state also know who admitted a shaped job."""

    def __init__(self, most: int = _MOST) -> None:
        self._placed: Bounded[tuple[str, str], None] = Bounded(most)
        self._admitted: Bounded[tuple[str, str], str] = Bounded(most)
        self._asked: Bounded[tuple[str, str], None] = Bounded(most)

    def has_asked(self, cluster: str, job: str) -> bool:
        """Whether AdmitOrWait was asked about the job."""
        return (cluster, job) in self._asked

    def admit(self, cluster: str, decision: AdmitDecision) -> None:
        """Remembers the jobs, and who admitted them: the first decision, until one says WAIT."""
        for given in decision.plan.admissions:
            key = (cluster, given.job_id)
            self._asked[key] = None
            if given.verdict is Verdict.WAIT:
                self._admitted.pop(key, None)
            elif key not in self._admitted:
                self._admitted[key] = decision.meta.decision_id

    def admitted_by(self, cluster: str, jobs: Sequence[Job], queues: Mapping[str, QueueState]) -> Mapping[str, str]:
        """The AdmitOrWait decision of each job that was admitted."""
        found: dict[str, str] = {}
        for job in jobs:
            known = [queue.decisions[job.id] for queue in queues.values() if job.id in queue.decisions]
            if decision_id := known[0] if known else self._admitted.get((cluster, job.id), ""):
                found[job.id] = decision_id
        return found

    def repeats(self, cluster: str, jobs: Sequence[Job]) -> tuple[str, ...]:
        """Those of the jobs that Place was asked about before. Remembers them all."""
        again = []
        for job in jobs:
            if (cluster, job.id) in self._placed:
                again.append(job.id)
            else:
                self._placed[cluster, job.id] = None
        return tuple(again)


class Linking(Protocol):
    """The part of the state store that knows the questions of all replicas."""

    async def link_jobs(self, cluster: str, questions: Sequence[AskedJob]) -> Sequence[JobLinks]:
        """See StateStore."""
        ...


async def linked(store: Linking, cluster: str, entries: Sequence[Entry]) -> list[Entry]:
    """The entries of a cluster in their order, with the store's links of their jobs. The store learns these jobs."""
    asked = [_questions(entry) for entry in entries]
    questions = [question for of_entry in asked for question in of_entry]
    if not questions:
        return list(entries)
    found = iter(await store.link_jobs(cluster, questions))
    return [_with_links(entry, of_entry, found) for entry, of_entry in zip(entries, asked, strict=True)]


def _questions(entry: Entry) -> list[AskedJob]:
    if not isinstance(entry, DecisionRecord) or entry.is_dry_run or entry.shadow_of:
        return []
    if entry.admit is not None:
        kinds = {Verdict.ADMIT: Asked.ADMITTED, Verdict.WAIT: Asked.WAITS}
        given = zip(entry.admit.plan.admissions, refusals_of(entry), strict=True)
        return [AskedJob(kinds[each.verdict], each.job_id, entry.decision_id, refusal) for each, refusal in given]
    return [AskedJob(Asked.PLACED, job.id, entry.decision_id) for job in entry.jobs] if entry.place is not None else []


def _with_links(entry: Entry, questions: Sequence[AskedJob], found: Iterator[JobLinks]) -> Entry:
    links = {asked.job: next(found, _NONE) for asked in questions}
    if not links or not isinstance(entry, DecisionRecord):
        return entry
    if entry.admit is not None:
        return _with_earlier_answers(entry, links)
    seen = entry.asked or PlaceSeen()
    again = {job for job, known in links.items() if known.first_place not in ("", entry.decision_id)}
    stored = {job: known.admit_decision for job, known in links.items() if known.admit_decision}
    if not (stored or again) and entry.asked is not None:  # as with most: the store knows nothing more
        return entry
    repeats = _repeats(entry, again, seen.repeats)
    return replace(entry, asked=replace(seen, repeats=repeats, admit_decisions={**stored, **seen.admit_decisions}))


def _with_earlier_answers(entry: DecisionRecord, links: Mapping[str, JobLinks]) -> DecisionRecord:
    """An AdmitOrWait with the jobs that any replica was asked about before, and who refused them alike."""
    seen = entry.seen or AdmitSeen()
    refused = {job: known.refused for job, known in links.items() if known.refused}
    again = {job for job, known in links.items() if "" < known.first_admit < entry.decision_id}
    if not refused and again <= set(seen.repeats):  # as with most: the store knows nothing more
        return entry
    return replace(entry, seen=replace(seen, repeats=_repeats(entry, again, seen.repeats), refused_before=refused))


def _repeats(entry: DecisionRecord, again: Set[str], known: Sequence[str]) -> tuple[str, ...]:
    """The jobs, in their order, that the store or the process knew."""
    return tuple([job.id for job in entry.jobs if job.id in again or job.id in known])
