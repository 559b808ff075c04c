"""Rows of exported tables as the join reads them: one per job, share or subtask of a decision. Knows no file.

Works on whole columns, since a log has millions of rows.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from placewise_core.domain.commands import JobEventKind, Scope
from placewise_core.domain.decision import Outcome
from placewise_log.record import ADMIT_OR_WAIT, PARTITION, PLACE
from placewise_service.declog.derived import JOINED_SCHEMA, PLACED_REWARDS, PROGRESS_SCHEMA, REWARDS
from placewise_service.declog.outcomes import Decided, Key, Report

_OF_JOIN: Final = {
    "nodes": pa.list_(pa.string()),
    "reservation_id": pa.string(),
    "is_tried": pa.bool_(),
    "total_epochs": pa.float64(),
    "alternative_nodes": pa.list_(pa.string()),
    "first_refusal": pa.string(),
    "file": pa.int32(),
}
# Columns of `joined` that the decision alone fills, and others that the join reads.
DECIDED: Final = pa.schema(
    [
        *(JOINED_SCHEMA.field(name) for name in (
            "decision_id", "job_id", "unit", "subtask", "rpc", "cluster", "decide_time_s", "policy", "bundle",
            "bundle_digest", "caller", "propensity", "is_explored", "is_fallback", "outcome", "planned",
            "submit_time_s", "predicted_s", "own_propensity", "exploration_rate", "explorer", "guard",
            "predicted_speed_epochs_per_s", "predicted_speed_samples_per_s", "gpus", "admit_decision_id",
            "canary_bundle", "canary_salt", "canary_share", "is_washout", "arm", "mixed_propensity",
        )),
        *(pa.field(name, kind) for name, kind in _OF_JOIN.items()),
    ]
)  # fmt: skip
FOUND: Final = pa.schema([field for field in JOINED_SCHEMA if field.name not in (*REWARDS, *PLACED_REWARDS)])
REPORTED: Final = pa.schema(
    {
        "id": pa.string(),
        "decision_id": pa.string(),
        "job_id": pa.string(),
        "unit": pa.string(),
        "subtask": pa.string(),
        "cluster": pa.string(),
        "kind": pa.string(),
        "time_s": pa.float64(),
        "placement": pa.list_(pa.string()),
        "nodes": pa.list_(pa.string()),
        "speed": pa.float64(),
        "epochs_done": pa.float64(),
        "actual_s": pa.float64(),
        "file": pa.int32(),
        "neighbours": pa.list_(pa.string()),
    }
)
_WHOLE: Final = ("rpc", "cluster", "policy", "bundle", "bundle_digest", "caller")
_PLACE: Final = {
    "job_id": "job_ids",
    "outcome": "job_outcomes",
    "planned": "job_planned",
    "nodes": "job_nodes",
    "reservation_id": "job_reservations",
    "submit_time_s": "job_submit_times_s",
    "total_epochs": "job_total_epochs",
    "predicted_speed_epochs_per_s": "job_predicted_speeds_epochs_per_s",
    "predicted_speed_samples_per_s": "job_predicted_speeds",  # until those in epochs are taken out
    "propensity": "job_answered_propensities",
    "own_propensity": "job_own_propensities",
    "exploration_rate": "job_exploration_rates",
    "explorer": "job_explorers",
    "guard": "job_guards",
    "job_is_explored": "job_is_explored",
    "job_fallback_reason": "job_fallback_reasons",
    "admit_decision_id": "job_admit_decisions",
}
_ADMIT: Final = {
    "job_id": "job_ids",
    "outcome": "job_verdicts",
    "gpus": "job_gpus",
    "submit_time_s": "job_submit_times_s",
    "total_epochs": "job_total_epochs",
    "job_propensity": "job_propensities",
    "own_propensity": "job_own_propensities",
    "exploration_rate": "job_exploration_rates",
    "explorer": "job_explorers",
    "guard": "job_guards",
    "job_is_explored": "job_is_explored",
}
_SHARES: Final = {"job_id": "unit_jobs", "unit": "units", "predicted_s": "unit_predicted_s"}
_SUBTASKS: Final = {"job_id": "unit_jobs", "unit": "units", "subtask": "unit_subtasks"}
_LISTS: Final = {name for lists in (_PLACE, _ADMIT, _SHARES, _SUBTASKS) for name in lists.values()}
DECISION_COLUMNS: Final = (
    "id", "time", "propensity", "is_explored", "is_fallback", "is_dry_run", "shadow_of", "scope", *_WHOLE,
    *sorted(_LISTS),
)  # fmt: skip
# Of each alternative, which is a wide struct; absent from files of older versions.
ALTERNATIVE_COLUMNS: Final = ("alternatives.list.element.job_id", "alternatives.list.element.nodes")
OUTCOME_COLUMNS: Final = (
    "id", "decision_id", "job_id", "unit", "subtask", "cluster", "kind", "time", "placement", "nodes",
    "speed_epochs_per_s", "epochs_done", "actual_s",
)  # fmt: skip
# Of Place while a canary ran, null without one.
_TRIAL: Final = {
    name: DECIDED.field(name).type for name in ("canary_bundle", "canary_salt", "canary_share", "is_washout")
}
_ARMS: Final = {"arm": "job_arms", "mixed_propensity": "job_mixed_propensities"}
# Null in files of before they came, and in those of the other table.
LATER_COLUMNS: Final = {
    "neighbours": pa.list_(pa.string()),
    "first_refusal": pa.string(),
    "job_first_refusals": pa.list_(pa.string()),
    **_TRIAL,
    **{column: pa.list_(DECIDED.field(name).type) for name, column in _ARMS.items()},
}


def decided_of(batch: pa.RecordBatch, file: int) -> pa.Table:
    """The rows of decisions, by DECIDED, of the file of that number. Raises pa.ArrowInvalid for lists of unequal
    length."""
    is_of = {rpc: pc.equal(batch["rpc"], rpc) for rpc in (PLACE, PARTITION, ADMIT_OR_WAIT)}
    is_node = pc.and_(is_of[PLACE], pc.fill_null(pc.equal(batch["scope"], Scope.NODE.value), False))
    parts = (
        _exploded(batch.filter(is_of[PLACE]), _PLACE),
        _exploded(batch.filter(is_node), _SUBTASKS),
        _exploded(batch.filter(is_of[PARTITION]), _SHARES),
        _exploded(batch.filter(is_of[ADMIT_OR_WAIT]), _ADMIT),
    )
    found = pa.concat_tables([DECIDED.empty_table(), *(part for part in parts if part is not None)])
    return found.set_column(DECIDED.get_field_index("file"), DECIDED.field("file"), _same(file, len(found)))


def reported_of(batch: pa.RecordBatch, file: int) -> pa.Table:
    """The rows of outcomes, by REPORTED, of the file of that number."""
    columns = {name: batch[name] for name in (*OUTCOME_COLUMNS, *LATER_COLUMNS)}
    columns["file"] = _same(file, len(batch))
    columns["time_s"] = _seconds(columns.pop("time"))
    columns["speed"] = columns.pop("speed_epochs_per_s")
    return _as(columns, REPORTED)


def rows_of(decided: pa.Table) -> Iterator[Decided]:
    """Rows of DECIDED as objects."""
    columns = _lists(decided, (
        "decision_id", "job_id", "unit", "subtask", "rpc", "cluster", "decide_time_s", "outcome", "is_tried",
        "reservation_id", "admit_decision_id", "planned", "nodes", "submit_time_s", "predicted_speed_epochs_per_s",
        "total_epochs", "alternative_nodes", "first_refusal",
    ))  # fmt: skip
    for decision_id, job_id, unit, subtask, rpc, cluster, time_s, outcome, is_tried, held, admit, *rest in columns:
        planned, nodes, submit_time_s, predicted, total_epochs, alternative_nodes, first_refusal = rest
        key = Key(decision_id, job_id, unit, subtask or "")
        yield Decided(
            key, rpc, cluster, time_s, outcome, is_tried, held or "", admit or "", planned or (), nodes or (),
            submit_time_s or 0.0, predicted, total_epochs or 0.0, alternative_nodes, first_refusal or "",
        )  # fmt: skip


def reports_of(reported: pa.Table) -> Iterator[Report]:
    """Rows of REPORTED as objects."""
    names = (
        "decision_id", "job_id", "unit", "subtask", "kind", "time_s", "placement", "nodes", "speed", "epochs_done",
        "actual_s", "file",
    )  # fmt: skip
    for decision_id, job_id, unit, subtask, kind, time_s, placement, nodes, *rest in _lists(reported, names):
        key = Key(decision_id or "", job_id, unit or "", subtask or "")
        yield Report(key, kind, time_s, placement or (), nodes or (), *rest)


def unrepeated(reported: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The first row of each id, and the others."""
    firsts = {row_id: i for i, row_id in reversed(list(enumerate(reported.column("id").to_pylist())))}
    if len(firsts) == len(reported):
        return reported, reported.slice(len(reported))
    is_first = np.isin(np.arange(len(reported)), list(firsts.values()))
    return reported.filter(pa.array(is_first)), reported.filter(pa.array(~is_first))


def progress_of(reported: pa.Table) -> pa.Table:
    """Rows of `progress`: the reports of progress among those of REPORTED."""
    rows = reported.filter(pc.equal(reported.column("kind"), JobEventKind.PROGRESS.value))
    columns = {"speed_epochs_per_s": rows.column("speed"), "epochs_done": _unless_zero(rows.column("epochs_done"))}
    arrays = [columns[name] if name in columns else rows.column(name) for name in PROGRESS_SCHEMA.names]
    return pa.Table.from_arrays(arrays, schema=PROGRESS_SCHEMA)


def _unless_zero(values: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.if_else(pc.equal(values, 0.0), None, values)


def _lists(table: pa.Table, names: Iterable[str]) -> Iterator[tuple[Any, ...]]:
    return zip(*(table.column(name).to_pylist() for name in names), strict=True)


def _exploded(rows: pa.RecordBatch, lists: Mapping[str, str]) -> pa.Table | None:
    """A row for each element of the lists, which are of equal length in each row; None for no rows."""
    rows = rows.filter(pc.is_valid(rows[lists["job_id"]]))
    if not rows.num_rows:
        return None
    of = pc.list_parent_indices(rows[lists["job_id"]])
    found = {name: pc.list_flatten(rows[column]) for name, column in lists.items()}
    found |= {name: rows[name].take(of) for name in _WHOLE}
    found["decision_id"] = rows["id"].take(of)
    found["decide_time_s"] = _seconds(rows["time"]).take(of)
    found |= {name: rows[name].take(of) for name in _TRIAL}
    if lists is _ADMIT:
        firsts = _where_known(rows["job_first_refusals"], of)
        found["first_refusal"] = pc.coalesce(firsts, rows["first_refusal"].take(of))
    if lists is _PLACE:
        found |= {name: _where_known(rows[column], of) for name, column in _ARMS.items()}
        is_in_epochs = pc.is_valid(found["predicted_speed_epochs_per_s"])
        found["predicted_speed_samples_per_s"] = pc.if_else(is_in_epochs, None, found["predicted_speed_samples_per_s"])
    found["is_tried"] = pc.or_(rows["is_dry_run"], pc.is_valid(rows["shadow_of"])).take(of)
    for name in ("propensity", "is_explored", "is_fallback"):
        found.setdefault(name, rows[name].take(of))
    if "job_propensity" in found:  # null if the policy had no choice
        found["propensity"] = pc.fill_null(found.pop("job_propensity"), 1.0)
    if "job_is_explored" in found:
        found["is_explored"] = pc.coalesce(found.pop("job_is_explored"), found["is_explored"])
    if "job_fallback_reason" in found:
        is_fallback = pc.not_equal(found.pop("job_fallback_reason"), "")
        found["is_fallback"] = pc.coalesce(is_fallback, found["is_fallback"])
    found.setdefault("outcome", pa.repeat(Outcome.PLACED.value, len(of)))
    found["unit"] = found.get("unit", pa.repeat("", len(of)))
    if lists is _PLACE and "alternatives" in rows.schema.names:
        found["alternative_nodes"] = _alternative_nodes(rows["alternatives"].take(of), found["job_id"])
    if lists is not _PLACE and "unit" in lists:  # one share or subtask is planned on its unit
        found["planned"] = pa.ListArray.from_arrays(pa.array(np.arange(len(of) + 1, dtype=np.int32)), found["unit"])
    return _as(found, DECIDED)


def _where_known(lists: pa.Array, of: pa.Array) -> pa.Array:
    """The elements of the lists, flattened. `of` has the row of each; a row without a list gives nulls."""
    is_known = pc.is_valid(lists).take(of)
    return pc.replace_with_mask(pa.nulls(len(of), lists.type.value_type), is_known, pc.list_flatten(lists))


def _alternative_nodes(alternatives: pa.Array, job_ids: pa.Array) -> pa.Array:
    """(rows,) per job the nodes of all its alternatives; null without alternatives."""
    found: list[list[str] | None] = [None] * len(job_ids)
    for i in np.flatnonzero(pc.fill_null(pc.list_value_length(alternatives), 0)):
        job_id = job_ids[i].as_py()
        nodes = [row["nodes"] for row in alternatives[i].as_py() if row["job_id"] == job_id]
        found[i] = sorted({node for each in nodes for node in each}) if nodes else None
    return pa.array(found, pa.list_(pa.string()))


def _as(columns: Mapping[str, pa.Array], schema: pa.Schema) -> pa.Table:
    """The columns in the schema's order; missing ones are null."""
    length = len(columns["job_id"])
    arrays = [columns.get(field.name, pa.nulls(length, field.type)).cast(field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _same(value: int, length: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.int32()), length)


def _seconds(times: pa.Array) -> pa.Array:
    """Timestamps in microseconds as seconds since the epoch."""
    return pc.divide(times.cast(pa.int64()).cast(pa.float64()), 1e6)


def joined_of(decided: pa.Table, more: Mapping[str, Sequence[Any]]) -> pa.Table:
    """Rows of FOUND: the columns of DECIDED that it has, and those that the join found."""
    arrays = [
        pa.array(more[field.name], field.type) if field.name in more else decided.column(field.name) for field in FOUND
    ]
    return pa.Table.from_arrays(arrays, schema=FOUND)
