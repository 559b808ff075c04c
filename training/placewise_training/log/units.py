"""Shares of divisible tasks and subtasks of pipelines from a log, each with the time that it took on its unit.

Subtask times, by kind and unit, are the entries that the NCF completes. One that has not ended took at least as long as
is known.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import pyarrow.compute as pc

from placewise_core.domain.commands import JobEventKind, Scope
from placewise_core.domain.decision import Outcome
from placewise_log.record import PLACE, CorruptEntryError, OutcomeRecord, decode_entry
from placewise_log.store import LogStore
from placewise_training.log.index import LogIndex, Part
from placewise_training.log.places import records


class ShareHeat(NamedTuple):
    """A share that ended, as its host reported it: the decision, seconds, seconds of overhead, and the highest °C of
    its unit meanwhile. 0: not reported."""

    time_s: float
    kind: str
    unit: str
    scale: float
    seconds: float
    overhead_s: float
    peak_celsius: float
    decision_id: str


class SubtaskTime(NamedTuple):
    """A subtask of a kind and size on a unit ("node/unit"): seconds taken, None while it has not ended, which took
    `at_least_s` until the log's end then, 0 if that is unknown. `is_on_gpu` is its version, `profile` its metrics as
    the request has them."""

    time_s: float
    job_id: str
    kind: str
    size: float
    unit: str
    is_on_gpu: bool
    actual_s: float | None
    at_least_s: float = 0.0
    profile: Mapping[str, float] = MappingProxyType({})


def share_heat(store: LogStore) -> Iterator[ShareHeat]:
    """Every report of the end of a share. Raises LogError."""
    for batch in store.batches("outcomes", ("kind", "record"), pc.field("kind") == JobEventKind.SHARE_FINISHED.value):
        for data in batch.column("record"):
            try:
                entry = decode_entry(data.as_py())
            except CorruptEntryError as error:
                raise store.error(error) from error
            if isinstance(entry, OutcomeRecord) and entry.event.share is not None:
                share = entry.event.share
                yield ShareHeat(
                    entry.event.event_time_s or entry.receive_time_s, share.task_kind, f"{share.node}/{share.unit}",
                    share.scale, share.seconds, share.overhead_s, share.peak_celsius, entry.decision_id,
                )  # fmt: skip


def subtask_times(store: LogStore, index: LogIndex) -> Iterator[SubtaskTime]:
    """Of every Place with scope NODE but dry runs. Raises LogError."""
    for record in records(store, PLACE):
        if record.place is None or record.scope != Scope.NODE or record.is_dry_run:
            continue
        subtasks = {(job.id, each.id): each for job in record.jobs for each in job.subtasks}
        for decided in record.place.decisions:
            if decided.outcome is not Outcome.PLACED:
                continue
            for task in decided.assignments:
                known = subtasks.get((decided.job_id, task.subtask))
                if known is None:
                    continue
                part = index.subtask(record.decision_id, decided.job_id, task.subtask)
                unit, is_on_gpu = f"{task.node}/{task.cpu_unit}", task.cpu_unit.startswith("gpu")
                yield SubtaskTime(
                    record.time_s, decided.job_id, known.kind, known.size, unit, is_on_gpu, part.seconds,
                    at_least_s(part, record.time_s, index), known.profile,
                )  # fmt: skip


def at_least_s(part: Part, decide_time_s: float, index: LogIndex) -> float:
    """Seconds that a share or subtask has run for when the log ends; 0 if it has ended, or if its host fell silent."""
    return max(0.0, index.end_s - decide_time_s) if part.is_open and part.seconds is None else 0.0
