"""Log entries as rows of Parquet tables: schemas and columns. Never touches a file.

Every row keeps the whole entry in `record` (bytes of placewise_log.record), so that the columns need not be complete.
"""

import datetime
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, Final

import pyarrow as pa

from placewise_core.domain.commands import Scope
from placewise_core.domain.decision import AdmitPlan, Reason, ShapeScore
from placewise_core.policies.studies.shadow import Compared, Forecasts
from placewise_log.record import (
    FAILED,
    AdmitSeen,
    CorruptEntryError,
    DecisionRecord,
    Draw,
    OutcomeRecord,
    PlaceSeen,
    decision_time_s,
    decode_entry,
)
from placewise_log.views import heading_of, is_view_entry
from placewise_service.declog.outcomes import spots

DECISIONS: Final = "decisions"
OUTCOMES: Final = "outcomes"
UNREADABLE: Final = "unreadable"
VIEWS: Final = "views"


_SPARE: Final = Reason.SHARE_BELOW_THRESHOLD  # units that could take a share and got none
_TIME = pa.timestamp("us", tz="UTC")
_COMMON: Final = {"id": pa.string(), "cluster": pa.string(), "position": pa.string(), "record": pa.binary()}

_ALTERNATIVE: Final = pa.struct(
    {
        "job_id": pa.string(),
        "policy": pa.string(),
        "nodes": pa.list_(pa.string()),
        "is_chosen": pa.bool_(),
        "propensity": pa.float64(),
        "own_propensity": pa.float64(),
        "progress_per_s": pa.float64(),
        "spread": pa.float64(),
        "policies": pa.map_(pa.string(), pa.float64()),
    }
)

_STOP: Final = pa.struct({"policy": pa.string(), "asked": pa.int64(), "is_late": pa.bool_()})
_SHAPE: Final = pa.struct(
    {"nodes": pa.int64(), "gpus_per_node": pa.int64(), "latency_s": pa.float64(), "cer": pa.float64()}
)
_FORECASTS: Final = tuple(field.name for field in fields(Forecasts))
_COMPARED: Final = pa.struct(
    {
        "job_id": pa.string(),
        "is_same": pa.bool_(),
        "answer_nodes": pa.list_(pa.string()),
        "shadow_nodes": pa.list_(pa.string()),
        "explorer": pa.string(),
        **{f"by_{model}_{name}": pa.float64() for model in ("active", "shadow") for name in _FORECASTS},
    }
)

SCHEMAS: Final[Mapping[str, pa.Schema]] = {
    DECISIONS: pa.schema(
        {
            **_COMMON,
            "rpc": pa.string(),
            "time": _TIME,
            "queue": pa.string(),
            "snapshot_version": pa.int64(),
            "policy": pa.string(),
            "bundle": pa.string(),
            "bundle_digest": pa.string(),
            "caller": pa.string(),
            "propensity": pa.float64(),
            "outcome": pa.string(),
            "job_ids": pa.list_(pa.string()),
            "predicted_speeds": pa.list_(pa.float64()),
            "latency_ms": pa.float64(),
            "seed": pa.uint64(),
            "request_id": pa.string(),
            "is_dry_run": pa.bool_(),
            "is_explored": pa.bool_(),
            "is_fallback": pa.bool_(),
            "fallback_reason": pa.string(),
            "shadow_of": pa.string(),
            "job_is_explored": pa.list_(pa.bool_()),
            "job_propensities": pa.list_(pa.float64()),
            "job_own_propensities": pa.list_(pa.float64()),
            "job_exploration_rates": pa.list_(pa.float64()),
            "job_explorers": pa.list_(pa.string()),
            "job_guards": pa.list_(pa.string()),
            "job_fallback_reasons": pa.list_(pa.string()),
            "queue_backlog_s": pa.float64(),
            "queue_delay_s": pa.float64(),
            "queue_slot": pa.int64(),
            "free_gpus": pa.int64(),
            "free_nodes": pa.int64(),
            "job_verdicts": pa.list_(pa.string()),
            "job_is_repeat": pa.list_(pa.bool_()),
            "job_gpus": pa.list_(pa.int64()),
            "job_shape_gpus": pa.list_(pa.list_(pa.int64())),
            "job_shape_scores": pa.list_(pa.list_(pa.float64())),
            "job_shape_costs_s": pa.list_(pa.list_(pa.float64())),
            "epoch": pa.string(),
            "view": pa.string(),
            "view_version": pa.int64(),
            "scope": pa.string(),
            "node_id": pa.string(),
            "job_seeds": pa.list_(pa.uint64()),
            "job_admit_decisions": pa.list_(pa.string()),
            "refusals_left_out": pa.int64(),
            "unit_takers": pa.list_(pa.string()),
            "units": pa.list_(pa.string()),
            "unit_scales": pa.list_(pa.float64()),
            "units_open": pa.list_(pa.string()),
            "alternatives": pa.list_(_ALTERNATIVE),
            "job_tasks": pa.list_(pa.list_(pa.string())),
            "job_task_probabilities": pa.list_(pa.list_(pa.float64())),
            "job_shapes": pa.list_(pa.list_(_SHAPE)),
            "compared": pa.list_(_COMPARED),
            "job_outcomes": pa.list_(pa.string()),
            "job_answered_propensities": pa.list_(pa.float64()),
            "job_planned": pa.list_(pa.list_(pa.string())),
            "job_nodes": pa.list_(pa.list_(pa.string())),
            "job_reservations": pa.list_(pa.string()),
            "job_submit_times_s": pa.list_(pa.float64()),
            "job_total_epochs": pa.list_(pa.float64()),
            "job_predicted_speeds": pa.list_(pa.float64()),
            "job_predicted_speeds_epochs_per_s": pa.list_(pa.float64()),
            "unit_jobs": pa.list_(pa.string()),
            "unit_subtasks": pa.list_(pa.string()),
            "unit_predicted_s": pa.list_(pa.float64()),
            "first_refusal": pa.string(),
            "canary_bundle": pa.string(),
            "canary_digest": pa.string(),
            "canary_salt": pa.string(),
            "canary_share": pa.float64(),
            "canary_unit": pa.string(),
            "is_washout": pa.bool_(),
            "job_arms": pa.list_(pa.string()),
            "job_mixed_propensities": pa.list_(pa.float64()),
            "job_mixtures_unknown": pa.list_(pa.string()),
            "view_assumed": pa.list_(pa.string()),
            "job_stopped": pa.list_(pa.list_(_STOP)),
            "job_first_refusals": pa.list_(pa.string()),
        }
    ),
    OUTCOMES: pa.schema(
        {
            **_COMMON,
            "decision_id": pa.string(),
            "job_id": pa.string(),
            "kind": pa.string(),
            "time": _TIME,
            "speed": pa.float64(),
            "epochs_done": pa.float64(),
            "receive_time": _TIME,
            "speed_epochs_per_s": pa.float64(),
            "placement": pa.list_(pa.string()),
            "nodes": pa.list_(pa.string()),
            "unit": pa.string(),
            "subtask": pa.string(),
            "actual_s": pa.float64(),
            "reason": pa.string(),
            "neighbours": pa.list_(pa.string()),
        }
    ),
    UNREADABLE: pa.schema(_COMMON),
    VIEWS: pa.schema(
        {
            **_COMMON,
            "kind": pa.string(),
            "name": pa.string(),
            "first_version": pa.int64(),
            "last_version": pa.int64(),
        }
    ),
}


def row_of(cluster: str, position: str, data: bytes) -> tuple[str, datetime.date, dict[str, Any]]:
    """(table, day, row) of one entry of the ring. A decision belongs to the day its id was made, and so do its
    outcomes, which know no more of it than the id: a join needs one day alone, also around midnight. An entry that
    cannot be read is kept as it is, under the day it entered the ring."""
    common = {"cluster": cluster, "position": position, "record": data}
    if is_view_entry(data):
        return _view_row(position, data, common)
    try:
        entry = decode_entry(data)
    except CorruptEntryError:
        return UNREADABLE, day_of(_ring_time_s(position)), {"id": f"{cluster}/{position}", **common}
    if isinstance(entry, DecisionRecord):
        day = day_of(decision_time_s(entry.decision_id) or entry.time_s)
        return DECISIONS, day, {**common, **_decision_columns(entry)}
    day = day_of(decision_time_s(entry.decision_id) or entry.receive_time_s)
    return OUTCOMES, day, {**common, **_outcome_columns(entry)}


def _view_row(position: str, data: bytes, common: dict[str, Any]) -> tuple[str, datetime.date, dict[str, Any]]:
    day = day_of(_ring_time_s(position))
    try:
        entry_id, heading = heading_of(data)
    except CorruptEntryError:
        return UNREADABLE, day, {"id": f"{common['cluster']}/{position}", **common}
    return VIEWS, day, {"id": entry_id, **common, **asdict(heading)}


def day_of(time_s: float) -> datetime.date:
    """The UTC day."""
    return datetime.datetime.fromtimestamp(time_s, datetime.UTC).date()


def _ring_time_s(position: str) -> float:
    milliseconds = position.partition("-")[0]
    return int(milliseconds) / 1000.0 if milliseconds.isdigit() else 0.0


def _microseconds(time_s: float) -> int:
    return round(time_s * 1e6)


def _decision_columns(record: DecisionRecord) -> dict[str, Any]:
    meta = record.meta
    decisions = record.place.decisions if record.place is not None else ()
    read = next(iter(record.reads), None)
    return {
        "id": record.decision_id,
        "rpc": record.rpc,
        "time": _microseconds(record.time_s),
        "queue": record.queue,
        "snapshot_version": meta.snapshot_version,
        "epoch": record.epoch or None,
        "view": read and read.view,
        "view_version": read and read.version,
        "view_assumed": sorted({name for each in record.reads for name, _ in each.assumed}) if read else None,
        "scope": record.scope or None,
        "node_id": record.node_id or None,
        "policy": meta.policy,
        "bundle": meta.bundle,
        "bundle_digest": meta.bundle_digest,
        "caller": meta.caller,
        "propensity": meta.propensity,
        "outcome": record.outcome,
        "job_ids": [job.id for job in record.jobs],
        "predicted_speeds": [decision.predicted_speed for decision in decisions],
        "latency_ms": record.latency_ms,
        "seed": record.seed,
        "request_id": record.request_id,
        "is_dry_run": record.is_dry_run,
        "is_explored": meta.is_explored,
        "is_fallback": meta.is_fallback,
        "fallback_reason": meta.fallback_reason,
        "shadow_of": record.shadow_of or None,
        "job_submit_times_s": [job.submit_time_s or None for job in record.jobs],
        "job_total_epochs": [job.total_epochs or None for job in record.jobs],
        **_placed_columns(record),
        **_draw_columns(record),
        **_asked_columns(record),
        **_unit_columns(record),
        **_alternative_columns(record),
        **_shadow_columns(record),
        **_canary_columns(record),
        **_admit_columns(record),
    }


def _placed_columns(record: DecisionRecord) -> dict[str, Any]:
    """Of Place; lists in the order of `job_ids`."""
    if record.place is None:
        return {}
    by_job = {decided.job_id: decided for decided in record.place.decisions}
    found = [(job, by_job.get(job.id)) for job in record.jobs]
    speeds = [decided and (decided.predicted_speed or None) for _, decided in found]
    unknown = {draw.job_id for draw in record.draws if draw.guard == FAILED}
    return {
        "job_outcomes": [decided and decided.outcome.value for _, decided in found],
        "job_answered_propensities": [
            decided.propensity if decided and job.id not in unknown else None for job, decided in found
        ],
        "job_planned": [decided and spots(decided.assignments) for _, decided in found],
        "job_nodes": [decided and sorted(task.node for task in decided.assignments) for _, decided in found],
        "job_reservations": [decided and (decided.reservation_id or None) for _, decided in found],
        "job_predicted_speeds": speeds,
        "job_predicted_speeds_epochs_per_s": [
            speed if job.is_speed_in_epochs else None for (job, _), speed in zip(found, speeds, strict=True)
        ],
    }


def _draw_columns(record: DecisionRecord) -> dict[str, Any]:
    """Lists in the order of `job_ids`; null for a job that this decision did not place."""
    if record.admit is not None:
        return _admit_draw_columns(record.admit.plan)
    by_job = {draw.job_id: draw for draw in record.draws}
    draws = [by_job.get(job.id) for job in record.jobs]
    decisions = record.place.decisions if record.place is not None else ()
    known = {draw.job_id for draw in record.draws if draw.guard != FAILED}
    guards = record.asked.guards if record.asked is not None else {}
    propensities = {decided.job_id: decided.propensity for decided in decisions if decided.job_id in known}
    return {
        "job_is_explored": [draw and draw.is_explored for draw in draws],
        "job_propensities": [propensities.get(job.id) for job in record.jobs],
        "job_own_propensities": [draw and (None if draw.guard == FAILED else draw.own_propensity) for draw in draws],
        "job_exploration_rates": [draw and draw.rate for draw in draws],
        "job_explorers": [draw and draw.explorer for draw in draws],
        "job_guards": [
            guards.get(job.id) if draw is None else draw.guard for job, draw in zip(record.jobs, draws, strict=True)
        ],
        "job_fallback_reasons": [draw and draw.fallback_reason for draw in draws],
        "job_seeds": [draw and draw.seed for draw in draws],
        "job_stopped": [draw and _stopped(draw) for draw in draws],
    }


def _stopped(draw: Draw) -> list[dict[str, Any]]:
    return [{"policy": name, "asked": stop.asked, "is_late": stop.is_late} for name, stop in draw.stops.items()]


def _admit_draw_columns(plan: AdmitPlan) -> dict[str, Any]:
    """Null for a job for which the policy had no choice, or whose queue is not explored."""
    draws = [given.draw for given in plan.admissions]
    return {
        "job_is_explored": [draw and bool(draw.explorer) for draw in draws],
        "job_propensities": [draw and draw.propensity for draw in draws],
        "job_own_propensities": [draw and draw.own_propensity for draw in draws],
        "job_exploration_rates": [draw and draw.rate for draw in draws],
        "job_explorers": [draw and draw.explorer for draw in draws],
        "job_guards": [draw and draw.guard for draw in draws],
        "job_seeds": [draw and draw.seed for draw in draws],
    }


def _asked_columns(record: DecisionRecord) -> dict[str, Any]:
    """Of Place; lists in the order of `job_ids`."""
    if record.place is None:
        return {}
    asked = record.asked or PlaceSeen()
    return {
        "job_is_repeat": [job.id in asked.repeats for job in record.jobs],
        "job_admit_decisions": [asked.admit_decisions.get(job.id) for job in record.jobs],
    }


def _alternative_columns(record: DecisionRecord) -> dict[str, Any]:
    """Of Place decisions whose alternatives were worked out; tasks in the order in which the net places them."""
    if record.alternatives is None:
        return {}
    steps = {step.job_id: step for step in record.steps}
    found = [steps.get(job.id) for job in record.jobs]
    return {
        "alternatives": [{name: getattr(each, name) for name in _ALTERNATIVE.names} for each in record.alternatives],
        "job_tasks": [step and list(step.tasks) for step in found],
        "job_task_probabilities": [step and list(step.probabilities) for step in found],
    }


def _shadow_columns(record: DecisionRecord) -> dict[str, Any]:
    """Of decisions in the shadow of another."""
    return {"compared": [_compared(each) for each in record.compared]} if record.compared else {}


def _canary_columns(record: DecisionRecord) -> dict[str, Any]:
    """While a canary ran; lists in the order of `job_ids`, null if no arm decided a job. Of Partition for its task."""
    canary = record.canary
    if canary is None:
        return {}
    by_job = {each.job_id: each for each in canary.arms}
    arms = [by_job.get(job.id) for job in record.jobs] if record.task is None else canary.arms
    return {
        "canary_bundle": canary.bundle,
        "canary_digest": canary.digest,
        "canary_salt": canary.salt,
        "canary_share": canary.share,
        "canary_unit": canary.unit,
        "is_washout": canary.is_washout,
        "job_arms": [each and each.arm for each in arms],
        "job_mixed_propensities": [each and each.mixed_propensity for each in arms],
        "job_mixtures_unknown": [each and (each.unknown or None) for each in arms],
    }


def _compared(each: Compared) -> dict[str, Any]:
    models = {"active": each.by_active or Forecasts(), "shadow": each.by_shadow or Forecasts()}
    forecasts = {f"by_{model}_{name}": getattr(found, name) for model, found in models.items() for name in _FORECASTS}
    of_job = {name: getattr(each, name) for name in ("job_id", "is_same", "answer_nodes", "shadow_nodes", "explorer")}
    return {**of_job, **forecasts}


def _unit_columns(record: DecisionRecord) -> dict[str, Any]:
    """Of Place with scope NODE and of Partition: which unit takes what, and which might have. Lists of equal length,
    but for those that were open."""
    if record.partition is not None and record.task is not None:
        plan = record.partition.plan
        units = [f"{share.node}/{share.unit}" for share in plan.shares]
        spare = [f"{other.node}/{other.unit}" for other in plan.excluded if other.reason is _SPARE]
        return {
            "unit_takers": [record.task.id] * len(units),
            "units": units,
            "unit_scales": [share.scale for share in plan.shares],
            "unit_jobs": [record.task.id] * len(units),
            "unit_predicted_s": [share.predicted_s for share in plan.shares],
            "units_open": units + spare,
        }
    if record.place is None or record.scope != Scope.NODE:
        return {}
    given = [(decided.job_id, task) for decided in record.place.decisions for task in decided.assignments]
    is_open = record.asked.open_units if record.asked is not None else None
    return {
        "unit_takers": [f"{job_id}/{task.subtask}" for job_id, task in given],
        "units": [f"{task.node}/{task.cpu_unit}" for _, task in given],
        "unit_jobs": [job_id for job_id, _ in given],
        "unit_subtasks": [task.subtask for _, task in given],
        "units_open": is_open and [f"{record.node_id}/{unit}" for unit in is_open],
    }


def _admit_columns(record: DecisionRecord) -> dict[str, Any]:
    """Of AdmitOrWait; lists in the order of `job_ids`. A policy without queues keeps no Q and Z."""
    if record.admit is None:
        return {}
    plan, seen = record.admit.plan, record.seen or AdmitSeen()
    queue = plan.queue if plan.queue.slot >= 0 else None
    scores = [given.drift_plus_penalty or seen.scores_of(given.job_id) or None for given in plan.admissions]
    shapes_of = [seen.shapes_of(given.job_id) or None for given in plan.admissions]
    is_known = record.seen is not None and not record.shadow_of  # which jobs of a shadow were repeats, its answer says
    firsts = [seen.refused_before.get(given.job_id, "") for given in plan.admissions]
    return {
        "queue_backlog_s": queue and queue.backlog_s,
        "queue_delay_s": queue and queue.delay_s,
        "queue_slot": queue and queue.slot,
        "free_gpus": seen.free_gpus,
        "free_nodes": seen.free_nodes,
        "refusals_left_out": seen.left_out,
        "first_refusal": max(firsts) if firsts and all(firsts) else None,
        "job_first_refusals": [first or None for first in firsts] if any(firsts) else None,
        "job_verdicts": [given.verdict.value for given in plan.admissions],
        "job_is_repeat": [given.job_id in seen.repeats if is_known else None for given in plan.admissions],
        "job_gpus": [given.gpus for given in plan.admissions],
        "job_shape_gpus": [rows and [row.gpus for row in rows] for rows in scores],
        "job_shape_scores": [rows and [row.value for row in rows] for rows in scores],
        "job_shape_costs_s": [rows and [row.cost_s for row in rows] for rows in scores],
        "job_shapes": [shapes and [_shape_row(shape) for shape in shapes] for shapes in shapes_of],
    }


def _shape_row(shape: ShapeScore) -> dict[str, float]:
    return {
        "nodes": shape.nodes,
        "gpus_per_node": shape.gpus_per_node,
        "latency_s": shape.latency_s,
        "cer": shape.cer,
    }


def _outcome_columns(outcome: OutcomeRecord) -> dict[str, Any]:
    event = outcome.event
    part = event.subtask or event.share
    return {
        "id": outcome_id(outcome),
        "decision_id": outcome.decision_id,
        "job_id": event.job_id,
        "kind": event.kind.value,
        "time": _microseconds(event.event_time_s or outcome.receive_time_s),
        "receive_time": _microseconds(outcome.receive_time_s),
        "speed": event.speed,
        "speed_epochs_per_s": event.speed or None,
        "epochs_done": event.epochs_done,
        "placement": spots(event.placement),
        "nodes": sorted(task.node for task in event.placement),
        "unit": part and f"{part.node}/{part.unit}",
        "subtask": event.subtask and event.subtask.subtask,
        "actual_s": part and (part.seconds or None),
        "reason": event.reason or None,
        "neighbours": outcome.neighbours,
    }


def outcome_id(outcome: OutcomeRecord) -> str:
    """What makes two reports the same report: job, decision, kind, time, progress, share and subtask.

    Not when they came: a host repeats a report whose answer was lost. Reports of progress without time and epochs are
    the same if their speed is."""
    event = outcome.event
    unit = f"{event.share.node}/{event.share.unit}" if event.share is not None else ""
    if event.subtask is not None:
        unit = f"{event.subtask.node}/{event.subtask.unit}/{event.subtask.subtask}"
    parts = (outcome.decision_id, event.job_id, event.kind.value, f"{event.event_time_s:.6f}", f"{event.epochs_done:g}")
    if not (event.event_time_s or event.epochs_done) and event.speed:
        unit = f"{unit}|{event.speed:g}"
    return "|".join((*parts, unit))
