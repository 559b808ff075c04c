"""Schemas of the tables that the join derives from decisions and outcomes."""

from typing import Final

import pyarrow as pa

from placewise_core.domain.realised import HORIZONS_MIN

REWARDS: Final = tuple(f"reward_{minutes}min" for minutes in HORIZONS_MIN)
PLACED_REWARDS: Final = tuple(f"placed_{name}" for name in REWARDS)
JOINED: Final = "joined"
RUNS: Final = "runs"
PROGRESS: Final = "progress"

JOINED_SCHEMA: Final = pa.schema(
    {
        "decision_id": pa.string(),
        "job_id": pa.string(),
        "unit": pa.string(),
        "rpc": pa.string(),
        "cluster": pa.string(),
        "decide_time_s": pa.float64(),
        "policy": pa.string(),
        "bundle": pa.string(),
        "bundle_digest": pa.string(),
        "caller": pa.string(),
        "propensity": pa.float64(),
        "is_explored": pa.bool_(),
        "is_fallback": pa.bool_(),
        "outcome": pa.string(),
        "status": pa.string(),
        "planned": pa.list_(pa.string()),
        "actual": pa.list_(pa.string()),
        "is_overridden": pa.bool_(),
        "submit_time_s": pa.float64(),
        "start_time_s": pa.float64(),
        "end_time_s": pa.float64(),
        "end": pa.string(),
        "epochs_done": pa.float64(),
        "predicted_s": pa.float64(),
        "actual_s": pa.float64(),
        "own_propensity": pa.float64(),
        "exploration_rate": pa.float64(),
        "explorer": pa.string(),
        "guard": pa.string(),
        "predicted_speed_epochs_per_s": pa.float64(),
        "predicted_speed_samples_per_s": pa.float64(),
        "speed_epochs_per_s": pa.float64(),
        "slowdown": pa.float64(),
        "queueing_s": pa.float64(),
        "jct_s": pa.float64(),
        "subtask": pa.string(),
        "gpus": pa.int64(),
        "admit_decision_id": pa.string(),
        "place_decision_id": pa.string(),
        "canary_bundle": pa.string(),
        "canary_salt": pa.string(),
        "canary_share": pa.float64(),
        "is_washout": pa.bool_(),
        "arm": pa.string(),
        "mixed_propensity": pa.float64(),
        **dict.fromkeys((*REWARDS, *PLACED_REWARDS), pa.float64()),
    }
)
RUNS_SCHEMA: Final = pa.schema(
    {
        "decision_id": pa.string(),
        "job_id": pa.string(),
        "cluster": pa.string(),
        "nodes": pa.list_(pa.string()),
        "start_time_s": pa.float64(),
        "end_time_s": pa.float64(),
        "end": pa.string(),
        "last_heard_time_s": pa.float64(),
        "is_open": pa.bool_(),
        "total_epochs": pa.float64(),
        "times_s": pa.list_(pa.float64()),
        "epochs": pa.list_(pa.float64()),
        "alternative_nodes": pa.list_(pa.string()),
    }
)
PROGRESS_SCHEMA: Final = pa.schema(
    {
        "decision_id": pa.string(),
        "job_id": pa.string(),
        "cluster": pa.string(),
        "time_s": pa.float64(),
        "speed_epochs_per_s": pa.float64(),
        "epochs_done": pa.float64(),
        "neighbours": pa.list_(pa.string()),
    }
)
