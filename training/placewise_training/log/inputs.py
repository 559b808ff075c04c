"""What models read at each Place decision of an exported log, and how their forecasts of speed turned out."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from placewise_core.basics.arrays import FloatArray
from placewise_log.record import CorruptEntryError, DecisionRecord, decode
from placewise_log.store import LogStore
from placewise_training.log.nodes import NodeKey, gpu_models


class LoggedJob(NamedTuple):
    """One job that Place placed: `tokens` (PART_FEATURES,) is the mean of the reward model's tokens of it as it was
    placed; None of a decision whose alternatives were not worked out. `gpu_models`: of its nodes, empty without GPUs
    there, without a placement, and without a log of views."""

    time_s: float
    model: str
    tokens: FloatArray | None
    gpu_models: frozenset[str] = frozenset()


def asked_jobs(directory: Path, bundle: str = "", cluster: str = "") -> Iterator[LoggedJob]:
    """Jobs of every Place decision but dry runs and shadows, in no order; with a name only those of that bundle, or
    cluster. Raises LogError."""
    store = LogStore(directory)
    gpus = gpu_models(store)
    wanted = (pc.field("rpc") == "Place") & ~pc.field("is_dry_run") & pc.field("shadow_of").is_null()
    for batch in store.batches("decisions", ("rpc", "is_dry_run", "shadow_of", "record"), wanted):
        for data in batch.column("record"):
            try:
                record = decode(data.as_py())
            except CorruptEntryError as error:
                raise store.error(error) from error
            if _is_wanted(record.meta.bundle, bundle) and _is_wanted(record.cluster, cluster):
                yield from _asked(record, gpus)


def residuals(directory: Path, bundle: str = "", cluster: str = "") -> tuple[FloatArray, FloatArray]:
    """(N,) time of the decision and (N,) ln(reported / predicted speed) of the jobs that have both; with a name only
    those of that bundle, or cluster. Raises LogError."""
    columns = ("decide_time_s", "predicted_speed_epochs_per_s", "speed_epochs_per_s")
    has_both = (pc.field(columns[1]) > 0.0) & (pc.field(columns[2]) > 0.0)
    for name, wanted in (("bundle", bundle), ("cluster", cluster)):
        if wanted:
            has_both &= pc.field(name) == wanted
    schema = pa.schema(dict.fromkeys(columns, pa.float64()))
    table = pa.Table.from_batches(LogStore(directory).batches("joined", columns, has_both), schema)
    time_s, predicted, actual = (table.column(name).to_numpy() for name in columns)
    return time_s, np.log(actual / predicted)


def _is_wanted(name: str, wanted: str) -> bool:
    return not wanted or name == wanted


def _asked(record: DecisionRecord, gpus: Mapping[NodeKey, str]) -> Iterator[LoggedJob]:
    tokens = record.placed_tokens()
    nodes = {
        each.job_id: {task.node for task in each.assignments}
        for each in (record.place.decisions if record.place is not None else ())
    }
    for job in record.jobs:
        keys = {NodeKey(record.cluster, node) for node in nodes.get(job.id, ())}
        yield LoggedJob(
            record.time_s, job.model, tokens.get(job.id), frozenset(gpus[key] for key in keys if key in gpus)
        )
