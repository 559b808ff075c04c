"""Jobs that a shadow decided about beside the answer, read from an exported log. Judges nothing.

Reads every day of the log; decisions without a shadow are passed over in Arrow. What it keeps grows with the number of
shadow decisions.
"""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from placewise_core.basics.frozen import frozen
from placewise_core.domain.commands import JobEventKind, Scope
from placewise_core.policies.studies.shadow import Compared
from placewise_log.record import PLACE, CorruptEntryError, DecisionRecord, decode
from placewise_log.store import LogStore
from placewise_service.declog.shadows.differences import difference

_ROWS_AT_ONCE: Final = 4096
_ANSWER: Final = ("id", "bundle", "policy", "is_fallback", "latency_ms")
_FATE: Final = ("decision_id", "job_id", "unit", "start_time_s", "end_time_s", "end", "is_overridden")


@frozen
class Side:
    """Who made a decision, and how long it took (ms)."""

    bundle: str
    policy: str
    is_fallback: bool
    latency_ms: float

    def is_called(self, name: str) -> bool:
        """True for the name of its bundle or policy, or "bundle/policy"."""
        return name in (self.bundle, self.policy, f"{self.bundle}/{self.policy}")


@frozen
class Pair:
    """One job of a decision. `time_s` is when the shadow decided. `has_length`: its time on one GPU is known.
    `realised_per_s` is 1 / (end − start) of a job that finished where it was placed; None for any other."""

    decision_id: str
    time_s: float
    tasks: int
    has_length: bool
    answer: Side
    shadow: Side
    compared: Compared
    realised_per_s: float | None


@frozen
class Beside:
    """One job or task of another call than Place for whole jobs: the same answer by both sides or not, and if not,
    where and why they differ."""

    call: str
    answer: Side
    shadow: Side
    is_same: bool
    where: str = ""
    why: str = ""


def beside(directory: Path, clusters: Collection[str] = ()) -> list[Beside]:
    """Every job and task with a shadow of AdmitOrWait, Partition, or Place with scope NODE, explored ones apart.

    Raises LogError.
    """
    records = _records(directory, clusters, is_placing=False)
    answered = {record.shadow_of for record in records}
    answers = {each.decision_id: each for each in _decoded(directory, "id", pa.array(answered, pa.string()))}
    found = []
    for shadow in records:
        if (answer := answers.get(shadow.shadow_of)) is not None:
            for i, compared in enumerate(shadow.compared):
                if not compared.explorer:
                    words = ("", "") if compared.is_same else difference(answer, shadow, i)
                    found.append(Beside(_call(shadow), _side(answer), _side(shadow), compared.is_same, *words))
    return found


def pairs(directory: Path, clusters: Collection[str] = ()) -> list[Pair]:
    """Every job with a shadow of Place whose answer is in the log, by time; of these clusters, or of all for none.

    Raises LogError.
    """
    records = _records(directory, clusters, is_placing=True)
    answers = _answers(directory, records)
    answered = pa.array({record.shadow_of for record in records}, pa.string())
    rows = _rows(directory, "joined", _FATE, "decision_id", answered)
    fates = {(row["decision_id"], row["job_id"]): row for row in rows if not row["unit"]}  # else of a part of the job
    found: list[Pair] = []
    for record in records:
        answer = answers.get(record.shadow_of)
        if answer is not None:
            found.extend(_pairs(record, answer, fates))
    return sorted(found, key=lambda pair: pair.time_s)


def _records(directory: Path, clusters: Collection[str], *, is_placing: bool) -> list[DecisionRecord]:
    """The shadows of Place for whole jobs, or those of the other calls."""
    found = [each for each in _decoded(directory, "shadow_of") if not clusters or each.cluster in clusters]
    return [each for each in found if (_call(each) == PLACE) is is_placing]


def _call(record: DecisionRecord) -> str:
    return f"{record.rpc} {record.scope}" if record.scope == Scope.NODE else record.rpc


def _side(record: DecisionRecord) -> Side:
    meta = record.meta
    return Side(meta.bundle, meta.policy, meta.is_fallback, record.latency_ms)


def _answers(directory: Path, records: Sequence[DecisionRecord]) -> dict[str, Side]:
    answered = pa.array({record.shadow_of for record in records}, pa.string())
    return {
        row["id"]: Side(row["bundle"], row["policy"], row["is_fallback"], row["latency_ms"])
        for row in _rows(directory, "decisions", _ANSWER, "id", answered)
    }


def _pairs(record: DecisionRecord, answer: Side, fates: dict[tuple[str, str], dict[str, Any]]) -> Iterator[Pair]:
    shadow, jobs = _side(record), {str(job.id): job for job in record.jobs}
    for compared in record.compared:
        job = jobs[compared.job_id]
        realised = _realised_per_s(fates.get((record.shadow_of, job.id)))
        has_length = job.single_gpu_s > 0
        yield Pair(record.shadow_of, record.time_s, job.task_count, has_length, answer, shadow, compared, realised)


def _realised_per_s(fate: dict[str, Any] | None) -> float | None:
    if fate is None or fate["is_overridden"] or fate["end"] != JobEventKind.FINISHED.value:
        return None
    start_s, end_s = fate["start_time_s"], fate["end_time_s"]
    return 1.0 / (end_s - start_s) if start_s and end_s and end_s > start_s else None


def _decoded(directory: Path, column: str, wanted: pa.Array | None = None) -> Iterator[DecisionRecord]:
    """Decisions that have a value in this column, one of these if some are given."""
    store, value = LogStore(directory), pc.field(column)
    is_wanted = value.is_valid() if wanted is None else value.isin(wanted)
    for path in store.paths("decisions"):
        for batch in store.batches_of(path, (column, "record"), is_wanted, _ROWS_AT_ONCE):
            for data in batch.column("record").to_pylist():
                try:
                    yield decode(data)
                except CorruptEntryError as error:
                    raise store.error(error, path) from None


def _rows(directory: Path, table: str, columns: Sequence[str], key: str, wanted: pa.Array) -> Iterator[dict[str, Any]]:
    store = LogStore(directory)
    for path in store.paths(table):
        for batch in store.batches_of(path, columns, pc.field(key).isin(wanted), _ROWS_AT_ONCE):
            yield from batch.to_pylist()
