"""The columns of the exported decision log in words. `python -m placewise_service.declog.columns` prints them."""

from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa

from placewise_core.domain.realised import HORIZONS_MIN
from placewise_service.declog.derived import JOINED, JOINED_SCHEMA, PROGRESS, PROGRESS_SCHEMA, RUNS, RUNS_SCHEMA
from placewise_service.declog.tables import DECISIONS, OUTCOMES, SCHEMAS, UNREADABLE, VIEWS

_PER_JOB = (
    "in the order of `job_ids`, null for a job that Place did not place, and of AdmitOrWait unless the job was open to "
    "exploration"
)
_PLACE = "of Place, in the order of `job_ids`"
_ADMIT = "of AdmitOrWait, in the order of `job_ids`"
_SCORED = "null unless the policy compared S(n) for the job; of `proteus` and its kin, for a job that starts"
_SAMPLES = "samples/s if the job's epochs are unknown"
_UNITS = "of Place with scope NODE and of Partition"
_STUDIED = "null without `alternatives`, without a net, and if a node is not among the net's candidates"
_REPEAT = (
    "in the order of `job_ids`: a replica was asked about the job by the same call before, or the queue of AdmitOrWait "
    "knew it; null of a shadow of AdmitOrWait"
)

# Column → its unit ("" for none) and its meaning.
_COMMON: Final[Mapping[str, tuple[str, str]]] = {
    "id": ("", "id of the row; rows with one id are one row"),
    "cluster": ("", "cluster"),
    "position": ("", "place of the entry in the cluster's ring"),
    "record": ("", "the whole entry, for `placewise_log.record.decode_entry`"),
}
_DECIDED: Final[Mapping[str, tuple[str, str]]] = {
    "rpc": ("", "Place, Partition or AdmitOrWait"),
    "policy": ("", "policy in force"),
    "bundle": ("", "name of the bundle in force"),
    "bundle_digest": ("", "SHA-256 of the bundle's manifest"),
    "caller": ("", "caller, as docs/security.md names them"),
    "is_fallback": ("", "a fallback answered"),
}
WORDS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    DECISIONS: {
        **_COMMON,
        **_DECIDED,
        "id": ("", "decision id, a UUIDv7"),
        "time": ("UTC", "time of the decision"),
        "queue": ("", "queue of AdmitOrWait"),
        "snapshot_version": ("", "version of the view that was read"),
        "epoch": ("", "epoch of the state: versions count within it; null of older records"),
        "view": (
            "",
            "the replica's view that was read, as in the table of views; null if views are not logged, and of a shadow",
        ),
        "view_version": ("", "version of that view; of a request that was decided in slices, at its first job"),
        "view_assumed": (
            "",
            "reservations of this replica on that view whose event had not arrived yet; null if views are not logged",
        ),
        "job_stopped": (
            "",
            "policies that the clock stopped, of the one in force and the explorers: a search after so many proposers "
            "(`asked`), or one without time for its net (`is_late`); P(a) and π(a) are given this; of Place, in the "
            "order of `job_ids`, null for a job that it did not place",
        ),
        "scope": ("", "CLUSTER or NODE of a Place; null of other calls"),
        "node_id": ("", "node of a Place with scope NODE; null otherwise"),
        "propensity": ("1", "product of the jobs' P(a)"),
        "outcome": ("", "PLACED, NO_FIT, WAIT or ADMIT; MIXED if the jobs differ"),
        "job_ids": ("", "jobs of the request"),
        "predicted_speeds": ("epochs/s", f"predicted speed of each job, in the order of the answer; {_SAMPLES}"),
        "latency_ms": ("ms", "from the arrival at the engine to the answer"),
        "seed": ("", "seed of the draws: repeats the decision"),
        "request_id": ("", "the caller's id of the request"),
        "is_dry_run": ("", "nothing was reserved"),
        "is_explored": ("", "exploration gave the answer to at least one of the jobs"),
        "fallback_reason": ("", "why a fallback answered"),
        "shadow_of": ("", "the decision in whose shadow this one was made; null for none"),
        "job_is_explored": ("", f"exploration gave the answer to the job; {_PER_JOB}"),
        "job_propensities": ("1", f"P(a), with which policy and exploration together answer so; {_PER_JOB}"),
        "job_own_propensities": ("1", f"π(a) of the policy in force; {_PER_JOB}"),
        "job_exploration_rates": ("1", f"ε, 0 for a job that was spared; {_PER_JOB}"),
        "job_explorers": ("", f'policy that explored, of AdmitOrWait `chance`, "" for none; {_PER_JOB}'),
        "job_guards": (
            "",
            "URGENT, MAX_GPUS or MIN_NODES if the guard spared the job; FAILED if a policy failed while the cluster "
            "explored, so that P(a) is unknown; of AdmitOrWait also PROMISED for one that was "
            'spared, and HEAD or BOUND for one that could not be held back; else ""; '
            f"{_PER_JOB}; of Place also of a spared job that found no place",
        ),
        "job_fallback_reasons": ("", f'why a fallback placed the job, "" if none did; {_PER_JOB}'),
        "job_seeds": ("", f"seed of the job's own draws; null if `seed` gave them; {_PER_JOB}"),
        "job_admit_decisions": ("", "AdmitOrWait decision that admitted the job, of Place, in the order of `job_ids`"),
        "queue_backlog_s": ("s of one GPU", "Q that AdmitOrWait read; null of a policy without Q and Z"),
        "queue_delay_s": ("s of one GPU", "Z that AdmitOrWait read; null of a policy without Q and Z"),
        "queue_slot": ("", "slot of Q and Z; null of a policy without them"),
        "free_gpus": ("", "idle GPUs of the nodes in use, of AdmitOrWait"),
        "free_nodes": ("", "nodes in use with an idle GPU, of AdmitOrWait"),
        "refusals_left_out": ("", "unchanged refusals of the queue since its last record, of AdmitOrWait"),
        "unit_takers": ("", f"`job/subtask`, or the divisible task, that each of `units` takes, {_UNITS}"),
        "units": ("", f"`node/unit` of every subtask or share, {_UNITS}"),
        "unit_scales": ("computing scale", "scale of every share, of Partition"),
        "units_open": (
            "",
            f"units that were open, {_UNITS}; null of a node unless observed, and at most 256 spare ones of a task",
        ),
        "alternatives": (
            "progress 1/s",
            "of a random share of Place: each placement that the policy, an explorer or a usual policy gives, with its "
            "nodes in the order of the tasks' names, P(a), π(a), the reward model's forecast Σ c/e and its spread, and "
            "the probability with which each policy that was asked gives it",
        ),
        "job_tasks": ("", f"tasks of each job in the order of Harmony's net, {_STUDIED}"),
        "job_task_probabilities": ("1", f"the net's probability of the node of each of `job_tasks`, {_STUDIED}"),
        "compared": (
            "progress 1/s",
            "for a shadow's decision, one entry per job: the answered placement, the shadow's placement, and whether "
            "they are equal. Each reward model (`by_active_`: in force, `by_shadow_`: the shadow's) forecasts both: Σ "
            "c/e, its spread, and `own`, the c/e of this job alone",
        ),
        "job_outcomes": ("", f"PLACED, NO_FIT or WAIT, {_PLACE}"),
        "job_answered_propensities": ("1", f"P(a) in the answer, of repeats as of the first answer, {_PLACE}"),
        "job_planned": ("", f"node/gpu of every task, sorted, {_PLACE}"),
        "job_nodes": ("", f"node of every task, sorted, {_PLACE}"),
        "job_reservations": ("", f"reservation of the job, {_PLACE}; null for none"),
        "job_submit_times_s": ("s since 1970", "submission of each of `job_ids`; null if unknown"),
        "job_total_epochs": ("epochs", "epochs that each of `job_ids` takes; null if unknown"),
        "job_predicted_speeds": ("epochs/s", f"predicted speed, {_PLACE}; null without one; {_SAMPLES}"),
        "job_predicted_speeds_epochs_per_s": ("epochs/s", f"predicted speed, {_PLACE}; null in samples/s"),
        "unit_jobs": ("", f"job, or divisible task, of each of `units`, {_UNITS}"),
        "unit_subtasks": ("", "subtask of each of `units`, of Place with scope NODE"),
        "unit_predicted_s": ("s", "predicted time of every share, of Partition"),
        "job_first_refusals": (
            "",
            "the decision that logged the same refusal of the job, of AdmitOrWait, in the order of `job_ids`, null for "
            "none; null if no job has one",
        ),
        "first_refusal": ("", "set if all jobs are refused as the log has it already: the last of those records"),
        "canary_bundle": ("", "bundle that answered a share of the jobs; null, as the next ones, without a canary"),
        "canary_digest": ("", "its digest"),
        "canary_salt": ("", "salt of the hash by which jobs, or blocks of time, are the canary's"),
        "canary_share": ("1", "the canary's share when it was decided"),
        "canary_unit": ("", "job or time: the unit that belongs to one arm"),
        "is_washout": ("", "by time: in the first part of a block, which counts for neither arm"),
        "job_arms": (
            "",
            "canary or incumbent, in the order of `job_ids`, of Partition for its task; null for a job that was placed "
            "before",
        ),
        "job_mixed_propensities": (
            "1",
            "probability of the answer over both arms and all explorers, as `job_arms`; null without a placement, and "
            "if it is unknown",
        ),
        "job_mixtures_unknown": ("", "why that is unknown, as `job_arms`; null if it is known"),
        "job_verdicts": ("", f"ADMIT or WAIT, {_ADMIT}"),
        "job_is_repeat": ("", _REPEAT),
        "job_gpus": ("", f"GPUs given, 0 for WAIT, {_ADMIT}"),
        "job_shape_gpus": ("", f"numbers of GPUs that were scored, 0 for WAIT, {_ADMIT}; {_SCORED}"),
        "job_shape_scores": ("1", f"S(n) of each of these; {_SCORED}"),
        "job_shape_costs_s": ("s", f"C(n) of each of these; {_SCORED}"),
        "job_shapes": (
            "s, 1",
            "shapes that fitted the job when it had its turn, fewest GPUs first and 64 at most, each with its expected "
            f"seconds and its computation/expense ratio, {_ADMIT}; null if there were none, and for a job that the "
            "policy did not get to",
        ),
    },
    OUTCOMES: {
        **_COMMON,
        "decision_id": ("", "decision that placed the job"),
        "job_id": ("", "job"),
        "kind": ("", "kind of the event"),
        "time": ("UTC", "time of the event; of its receipt, if the host gave none"),
        "speed": ("epochs/s", "speed reported, 0 if none"),
        "epochs_done": ("epochs", "epochs done so far"),
        "receive_time": ("UTC", "time of its receipt"),
        "speed_epochs_per_s": ("epochs/s", "speed reported; null if none"),
        "placement": ("", "node/gpu of every task, as the host placed it, sorted"),
        "nodes": ("", "node of every task, as the host placed it, sorted"),
        "unit": ("", "node/unit of a share or subtask; null for a whole job"),
        "subtask": ("", "subtask that ended; null for other events"),
        "actual_s": ("s", "time that the share or subtask took; null for other events"),
        "reason": (
            "",
            "the host's message about a failure, or its reason for not following the decision; null if it gave none",
        ),
        "neighbours": ("", "jobs on its nodes when a job reported progress; null of other events, and if unknown"),
    },
    JOINED: {
        **_COMMON,
        **_DECIDED,
        "decision_id": ("", "decision"),
        "job_id": ("", "job, or divisible task"),
        "unit": ("", 'node/unit of a share or subtask, "" for a whole job'),
        "decide_time_s": ("s since 1970", "time of the decision"),
        "propensity": ("1", "P(a) of this job's placement"),
        "is_explored": ("", "an explorer placed this job"),
        "outcome": ("", "PLACED, NO_FIT or WAIT; ADMIT or WAIT of AdmitOrWait"),
        "status": ("", "OBSERVED, OPEN, DANGLING or NOT_HELD, as below"),
        "planned": ("", "node/gpu of every task, as decided"),
        "actual": ("", "node/gpu of every task, as the host placed it; empty if it reported nothing"),
        "is_overridden": ("", "the host placed the job elsewhere"),
        "submit_time_s": ("s since 1970", "submission; null if unknown"),
        "start_time_s": ("s since 1970", "start, that of the decision if reported as earlier; null if not reported"),
        "end_time_s": ("s since 1970", "end, that of the decision if reported as earlier; null if not reported"),
        "end": ("", 'FINISHED, FAILED, CANCELLED, SHARE_FINISHED or SUBTASK_FINISHED; "" before the end'),
        "epochs_done": ("epochs", "most epochs reported as done after the decision; null if none were"),
        "predicted_s": ("s", "predicted time of a share; null for a job"),
        "actual_s": ("s", "time that a share or subtask took; null for a job, and before it ends"),
        "own_propensity": ("1", "π(a) of the policy in force; null if the decision did not place the job"),
        "exploration_rate": ("1", "ε for this job; null if the decision did not place it"),
        "explorer": ("", 'policy that explored, "" for none; null if the decision did not place the job'),
        "guard": ("", "verdict of the guard; null for a job that the decision did not place, unless it was spared"),
        "predicted_speed_epochs_per_s": (
            "epochs/s",
            "speed predicted when the job was placed; null without one, and if the job's epochs are unknown",
        ),
        "predicted_speed_samples_per_s": ("samples/s", "the same if the job's epochs are unknown; null otherwise"),
        "speed_epochs_per_s": (
            "epochs/s",
            "mean speed from the decision or start on, null if none was reported since: the epochs of the reports over "
            "their time; without epochs each speed is weighted by the time since the report, start or decision before",
        ),
        "subtask": ("", "subtask of a pipeline; null for a whole job or a share"),
        "gpus": ("", "GPUs given by AdmitOrWait, 0 for WAIT; null of other calls"),
        "admit_decision_id": ("", "of Place: the AdmitOrWait decision that admitted the job; null if unknown"),
        "place_decision_id": ("", "of AdmitOrWait: the first Place decision that held the job; null if unknown"),
        "canary_bundle": ("", "bundle that answered a share of the jobs; null, as the next ones, without a canary"),
        "canary_salt": ("", "salt of its arms"),
        "canary_share": ("1", "its share when it was decided"),
        "is_washout": ("", "by time: in the first part of a block, which counts for neither arm"),
        "arm": (
            "",
            "canary or incumbent: who decided this job; null of other calls, and for a job that was placed before",
        ),
        "mixed_propensity": (
            "1",
            "probability of the placement over both arms and all explorers; `propensity` is that of its own arm; null "
            "if unknown",
        ),
        **{
            f"reward_{minutes}min": (
                "jobs",
                f"Σ c_n/e_n over {minutes} min from its start, of the job and of those decided before it that ran then "
                "on a node of any alternative; null without alternatives, until then, and if it cannot be known",
            )
            for minutes in HORIZONS_MIN
        },
        **{
            f"placed_reward_{minutes}min": (
                "jobs",
                f"Σ c_n/e_n over {minutes} min from its start, of the job and of those decided before it that ran then "
                "on its own nodes; null until then, and if it cannot be known",
            )
            for minutes in HORIZONS_MIN
        },
        "slowdown": ("1", "predicted speed over reported speed; null if either is"),
        "queueing_s": ("s", "from submission to start; null if either is unknown or the clocks disagree"),
        "jct_s": ("s", "from submission to the end of a job that FINISHED; null otherwise"),
    },
    RUNS: {
        "decision_id": ("", "Place decision that the job ran by"),
        "job_id": ("", "job"),
        "cluster": ("", "cluster"),
        "nodes": ("", "nodes that the host put it on; as decided, if it named none"),
        "start_time_s": ("s since 1970", "start, and not before the decision"),
        "end_time_s": ("s since 1970", "end, not before the decision either; null if not reported"),
        "end": ("", "FINISHED, FAILED or CANCELLED; null before the end"),
        "last_heard_time_s": ("s since 1970", "the last report"),
        "is_open": ("", "its `status` is OPEN"),
        "total_epochs": ("epochs", "epochs that the job takes, e_n; null if unknown"),
        "times_s": ("s since 1970", "times of the known epochs, from the start on"),
        "epochs": ("epochs", "epochs done by each of these times, linear in between"),
        "alternative_nodes": ("", "nodes of any alternative of the decision; null if these were not worked out"),
    },
    PROGRESS: {
        "decision_id": ("", "decision that placed the job"),
        "job_id": ("", "job"),
        "cluster": ("", "cluster"),
        "time_s": ("s since 1970", "time of the report"),
        "speed_epochs_per_s": ("epochs/s", "speed reported; null if none"),
        "epochs_done": ("epochs", "epochs done so far; null if not reported"),
        "neighbours": ("", "jobs on its nodes then; null if unknown"),
    },
    UNREADABLE: _COMMON,
    VIEWS: {
        **_COMMON,
        "kind": ("", "snapshot of a view, events of a cluster, or gangs that a view had and the store refused"),
        "name": ("", "the view; of events the epoch of the state"),
        "first_version": ("", "version of a snapshot, or of the first event; 0 of gangs"),
        "last_version": ("", "version of a snapshot, or of the last event; 0 of gangs"),
        "record": ("", "the whole entry, for `placewise_log.views.decode_view_entry`"),
    },
}


def schemas() -> Mapping[str, pa.Schema]:
    """The schema of every table of an export."""
    return {**SCHEMAS, JOINED: JOINED_SCHEMA, RUNS: RUNS_SCHEMA, PROGRESS: PROGRESS_SCHEMA}


def document() -> str:
    """docs/log-columns.md. Raises KeyError for a column without words."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# Columns of the exported decision log"
    yield ""
    yield "From the Arrow schemas, by `make log-columns`. How rows come about: [the decision log](decision-log.md)."
    for table, schema in schemas().items():
        yield from ("", f"## {table}", "", "| column | type | unit | meaning |", "|---|---|---|---|")
        for column in schema:
            unit, meaning = WORDS[table][column.name]
            kind = str(column.type).replace("list<element: ", "list<").replace("list<item: ", "list<")
            yield f"| `{column.name}` | {kind} | {unit} | {meaning} |"


if __name__ == "__main__":
    print(document(), end="")
