"""What models read at each Place decision of an exported log, and how their forecasts of speed turned out."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from placewise_core.basics.arrays import FloatArray
from placewise_core.inputs.tables import JOB_COLUMNS, PART_COLUMNS, PART_FEATURES
from placewise_log.record import CorruptEntryError, DecisionRecord, decode
from placewise_log.store import LogStore

# Columns of the reward model's tokens: a job's unchanging ones, then those of its tasks on a node.
TOKEN_COLUMNS = tuple(column.name for column in (*JOB_COLUMNS[: PART_FEATURES - len(PART_COLUMNS)], *PART_COLUMNS))


class Asked(NamedTuple):
    """One job that Place placed: `tokens` (PART_FEATURES,) is the mean of the reward model's tokens of it as it was
    placed; None of a decision whose alternatives were not worked out."""

    time_s: float
    model: str
    tokens: FloatArray | None


def asked_jobs(directory: Path) -> Iterator[Asked]:
    """Jobs of every Place decision but dry runs and shadows, in no order. Raises LogError."""
    store = LogStore(directory)
    wanted = (pc.field("rpc") == "Place") & ~pc.field("is_dry_run") & pc.field("shadow_of").is_null()
    for batch in store.batches("decisions", ("rpc", "is_dry_run", "shadow_of", "record"), wanted):
        for data in batch.column("record"):
            try:
                record = decode(data.as_py())
            except CorruptEntryError as error:
                raise store.error(error) from error
            yield from _asked(record)


def residuals(directory: Path) -> tuple[FloatArray, FloatArray]:
    """(N,) time of the decision and (N,) ln(reported / predicted speed) of the jobs that have both. Raises LogError."""
    columns = ("decide_time_s", "predicted_speed_epochs_per_s", "speed_epochs_per_s")
    has_both = (pc.field(columns[1]) > 0.0) & (pc.field(columns[2]) > 0.0)
    schema = pa.schema(dict.fromkeys(columns, pa.float64()))
    table = pa.Table.from_batches(LogStore(directory).batches("joined", columns, has_both), schema)
    time_s, predicted, actual = (table.column(name).to_numpy() for name in columns)
    return time_s, np.log(actual / predicted)


def _asked(record: DecisionRecord) -> Iterator[Asked]:
    parts = {each.job_id: each for each in record.parts}
    for job in record.jobs:
        tokens = None
        if job.id in parts:
            places = [each.is_chosen for each in record.alternatives or () if each.job_id == job.id]
            rows = parts[job.id].tokens.unpack()[places.index(True)]
            tokens = rows[parts[job.id].job.unpack()[places.index(True)] == 0].astype(np.float64).mean(axis=0)
        yield Asked(record.time_s, job.model, tokens)
