"""Answers as bytes, to be given again for a repeated request_id. Knows the three decisions and nothing else."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import msgspec

from placewise_core.basics.frozen import frozen
from placewise_core.domain.cluster import RunningJob
from placewise_core.domain.decision import AdmitDecision, JobDecision, Outcome, PartitionDecision, PlaceDecision
from placewise_core.domain.job import JobId
from placewise_core.view.standing import held
from placewise_service import pieces

Decision = TypeVar("Decision", PlaceDecision, PartitionDecision, AdmitDecision)

_ENCODER = msgspec.msgpack.Encoder()


async def encode_answer(decision: pieces.Decision, reservations: Sequence[str] = ()) -> bytes:
    """msgpack of the decision, tagged by the caller's use: one request_id belongs to one RPC. Others have their turn
    while a large one is encoded.

    `reservations` are those it makes; their expiry is known only when the store has made them, see `decode_answer`.
    """
    if not pieces.is_large(decision):
        return _ENCODER.encode([type(decision).__name__, decision, reservations])
    return bytes(await pieces.packed([type(decision).__name__, await pieces.pack_in_turns(decision), reservations]))


async def decode_answer(answer: bytes, kind: type[Decision], expire_time_s: float = 0.0) -> Decision | None:
    """The remembered decision marked as repeated, its own reservations with their expiry; None if the id was used for
    another RPC. Others have their turn while a large one is decoded."""
    name, body, reservations = msgspec.msgpack.decode(answer, type=tuple[str, msgspec.Raw, list[str]])
    if name != kind.__name__:
        return None
    if pieces.is_long(answer):
        decision = await pieces.unpack_in_turns(body, kind)
    else:
        decision = msgspec.msgpack.decode(body, type=kind)
    decision = replace(decision, meta=replace(decision.meta, is_repeated=True))
    return held_until(decision, reservations, expire_time_s) if isinstance(decision, PlaceDecision) else decision


@frozen
class Standing:
    """The answer to a repeat: `decision`, or, if None, a new one in place of the first `answer` in which
    the jobs of `settled` keep theirs."""

    answer: bytes
    decision: PlaceDecision | None
    settled: Mapping[JobId, JobDecision]


def standing_of(
    answer: bytes, first: PlaceDecision, now: Mapping[JobId, RunningJob | None], asked: Collection[JobId]
) -> Standing:
    """Compares the first answer with its placed jobs' present holdings (StateStore.look_up), and with the jobs `asked`
    for.

    A job that holds resources gets its present placement: its host may have moved it, or it was decided again. A job
    that has ended keeps the first answer, as a record. If a job holds nothing and has not ended, its reservation ended
    before it started: the request is decided again, for it and for the jobs that were not placed. The same goes if
    there are more jobs than before: AdmitOrWait asks for those that are admitted by now.
    """
    settled: dict[JobId, JobDecision] = {}
    for decision in first.decisions:
        if decision.outcome is not Outcome.PLACED:
            continue
        if decision.job_id in now:
            known = now[decision.job_id]
            settled[decision.job_id] = decision if known is None else _as_held(decision, known)
    is_over = any(d.outcome is Outcome.PLACED and d.job_id not in settled for d in first.decisions)
    if is_over or {d.job_id for d in first.decisions} < set(asked):
        return Standing(answer, None, settled)
    decisions = tuple([settled.get(d.job_id, d) for d in first.decisions])
    return Standing(answer, PlaceDecision(decisions, first.meta), settled)


def _as_held(decision: JobDecision, known: RunningJob) -> JobDecision:
    if known.assignments == decision.assignments and known.reservation_id == decision.reservation_id:
        return decision.held_until(known.expire_time_s)
    return held(known)


def held_until(decision: PlaceDecision, reservations: Collection[str], expire_time_s: float) -> PlaceDecision:
    """The decision, its reservations of these ids with their expiry."""
    decisions = [d.held_until(expire_time_s) if d.reservation_id in reservations else d for d in decision.decisions]
    return PlaceDecision(tuple(decisions), decision.meta)
