"""Outcomes, reasons and the three answers. Plain data; nothing here decides."""

import enum
from dataclasses import dataclass
from typing import final

from placewise_core.basics.frozen import frozen
from placewise_core.domain.cluster import Assignment, QueueState
from placewise_core.domain.job import JobId


class Outcome(enum.StrEnum):
    PLACED = "PLACED"
    NO_FIT = "NO_FIT"
    WAIT = "WAIT"


class Verdict(enum.StrEnum):
    ADMIT = "ADMIT"
    WAIT = "WAIT"


class Reason(enum.StrEnum):
    """Why not. The same codes in every answer; docs/reasons.md explains each."""

    INSUFFICIENT_CPU = "INSUFFICIENT_CPU"
    INSUFFICIENT_MEMORY = "INSUFFICIENT_MEMORY"
    INSUFFICIENT_GPU = "INSUFFICIENT_GPU"
    INSUFFICIENT_GPU_MEMORY = "INSUFFICIENT_GPU_MEMORY"
    INSUFFICIENT_NETWORK = "INSUFFICIENT_NETWORK"
    INSUFFICIENT_EXTENDED = "INSUFFICIENT_EXTENDED"
    FRAGMENTED = "FRAGMENTED"
    GPU_MODEL_MISMATCH = "GPU_MODEL_MISMATCH"
    SELECTOR_MISMATCH = "SELECTOR_MISMATCH"
    MAX_PER_NODE = "MAX_PER_NODE"
    NODE_DOWN = "NODE_DOWN"
    NODE_DRAINING = "NODE_DRAINING"
    STALE_TELEMETRY = "STALE_TELEMETRY"
    THERMAL_LIMIT = "THERMAL_LIMIT"
    SLOWDOWN_LIMIT = "SLOWDOWN_LIMIT"
    UNIT_BUSY = "UNIT_BUSY"
    CPU_ONLY = "CPU_ONLY"
    UTILISATION_LIMIT = "UTILISATION_LIMIT"
    SHARE_BELOW_THRESHOLD = "SHARE_BELOW_THRESHOLD"
    BEHIND_IN_QUEUE = "BEHIND_IN_QUEUE"
    DRIFT_PLUS_PENALTY = "DRIFT_PLUS_PENALTY"
    SLOT_TAKEN = "SLOT_TAKEN"
    NO_FEASIBLE_SHAPE = "NO_FEASIBLE_SHAPE"
    EMPTY_CLUSTER = "EMPTY_CLUSTER"
    PREDECESSOR_PENDING = "PREDECESSOR_PENDING"
    EXPLORATION = "EXPLORATION"
    KEEP_TOGETHER = "KEEP_TOGETHER"
    EXCLUSIVE_NETWORK = "EXCLUSIVE_NETWORK"


@frozen
class Blocker:
    """One reason, for how many nodes (or units), and the least that is missing on any of them."""

    reason: Reason
    nodes: int = 0
    shortfall: float = 0.0
    resource: str = ""
    message: str = ""


@frozen
class Candidate:
    """A node that was considered for a task, with its score and the terms of it."""

    task: str
    node: str
    score: float
    terms: tuple[tuple[str, float], ...] = ()
    is_chosen: bool = False


@frozen
class Neighbour:
    """A job that shares a node with the new one; speeds in the unit of the speed model."""

    job_id: JobId
    speed_before: float
    speed_after: float


@frozen
class JobDecision:
    job_id: JobId
    outcome: Outcome
    assignments: tuple[Assignment, ...] = ()
    predicted_speed: float = 0.0
    neighbours: tuple[Neighbour, ...] = ()
    blockers: tuple[Blocker, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    reservation_id: str = ""
    expire_time_s: float = 0.0
    propensity: float = 1.0
    profile_model: str = ""  # whose throughput profile the speed rests on, if not the job's own

    def held_until(self, expire_time_s: float) -> "JobDecision":
        """The same with the expiry of its reservation. Spelt out: dataclasses.replace takes five times as long."""
        return JobDecision(
            self.job_id,
            self.outcome,
            self.assignments,
            self.predicted_speed,
            self.neighbours,
            self.blockers,
            self.candidates,
            self.reservation_id,
            expire_time_s,
            self.propensity,
            self.profile_model,
        )


@final
@frozen
class LearnedLength:
    """The length that was learned for a job without one: seconds on one GPU, and the bounds of its 90 % interval.
    `reports` is the decayed number of jobs that ended at the finest level with any, `source`."""

    job_id: str
    single_gpu_s: float
    low_s: float
    high_s: float
    reports: float
    source: str


@final
@frozen
class LearnedSpeed:
    """What reports of progress say of a job's throughput on the shape of its answer, in samples per second: the learned
    value, the bounds of its 90 % interval, and the forecast of the bundle alone. `reports` is their decayed number at
    the finest level with any, `source`."""

    job_id: str
    gpu_type: str
    nodes: int
    gpus: int
    samples_per_s: float
    low_per_s: float
    high_per_s: float
    forecast_per_s: float
    reports: float
    source: str


@final
@frozen
class LearnedHeat:
    """What reports of nodes say of the GPUs or CPUs (`unit`) of a type of node: °C above the ambient under lasting
    load, and the time constant, each with the bounds of its 90 % interval and the bundle's value. `reports` is their
    decayed number."""

    node_type: str
    unit: str
    rise_celsius: float
    low_celsius: float
    high_celsius: float
    shipped_celsius: float
    time_constant_s: float
    low_s: float
    high_s: float
    shipped_s: float
    reports: float


@final
@frozen
class LearnedCapability:
    """What shares that ended say of the GPUs or CPUs (`unit`) of a type of node: computing scale per second of a kind
    of task, on an idle cluster, with the bounds of the next share's 90 % interval and the bundle's value. `reports` is
    their decayed number."""

    task_kind: str
    node_type: str
    unit: str
    per_second: float
    low_per_second: float
    high_per_second: float
    shipped_per_second: float
    reports: float


@final
@frozen
class LearnedCoRun:
    """What reports of progress say of a model beside a partner on one GPU of a type: its speed over that alone, with
    the bounds of the 90 % interval and the bundle's value. `reports` is their decayed number beside the partner."""

    model: str
    partner: str
    gpu_type: str
    relative_speed: float
    low: float
    high: float
    shipped: float
    reports: float


@frozen
class DecisionMeta:
    decision_id: str
    policy: str
    bundle: str = ""
    snapshot_version: int = 0
    propensity: float = 1.0
    is_fallback: bool = False
    fallback_reason: str = ""
    decide_ms: float = 0.0
    is_stale: bool = False
    is_repeated: bool = False
    is_explored: bool = False
    bundle_digest: str = ""
    caller: str = ""
    lengths: tuple[LearnedLength, ...] = ()
    speeds: tuple[LearnedSpeed, ...] = ()
    heat: tuple[LearnedHeat, ...] = ()
    capabilities: tuple[LearnedCapability, ...] = ()


@final
@frozen
class PlaceDecision:
    decisions: tuple[JobDecision, ...]
    meta: DecisionMeta


@dataclass(slots=True)
class Share:
    """Part of a divisible task for one unit: computing scale, seconds, °C.

    Not frozen, as an answer holds hundreds and a frozen one takes three times as long to build. Do not change one.
    """

    node: str
    unit: str
    scale: float
    predicted_s: float
    predicted_peak_celsius: float
    capability: float


@frozen
class Excluded:
    node: str
    unit: str
    reason: Reason
    message: str = ""


@frozen
class PartitionPlan:
    """The answer of a partition policy: k = len(shares); `threshold_scale` is T_n of equation (3)."""

    outcome: Outcome
    shares: tuple[Share, ...] = ()
    threshold_scale: float = 0.0
    predicted_s: float = 0.0
    overhead_s: float = 0.0
    excluded: tuple[Excluded, ...] = ()
    blockers: tuple[Blocker, ...] = ()

    def leaving_out(self, excluded: tuple[Excluded, ...], blockers: tuple[Blocker, ...]) -> "PartitionPlan":
        """The same with those who have no part in it, and why. Spelt out as in JobDecision.held_until."""
        return PartitionPlan(
            self.outcome, self.shares, self.threshold_scale, self.predicted_s, self.overhead_s, excluded, blockers
        )


@final
@frozen
class PartitionDecision:
    plan: PartitionPlan
    meta: DecisionMeta


@frozen
class DriftPlusPenalty:
    """S(n) and C(n) of one GPU count (Proteus, equations (6) and (15))."""

    gpus: int
    value: float
    cost_s: float


@final
@frozen
class AdmitDraw:
    """How the answer to one job came about where admission is explored.

    `propensity` is P(a), `own_propensity` π(a) of the policy in force, both given the answers to the jobs before.
    `explorer` is "chance" if the policy did not answer. `rate`: ε for this job; 0 if a guard exempted it. `guard`: why
    it was exempted, or why it could not be held back. `seed` is that of its draws, None if they are the request's.
    """

    propensity: float = 1.0
    own_propensity: float = 1.0
    explorer: str = ""
    rate: float = 0.0
    guard: str = ""
    seed: int | None = None


@final
@frozen
class ShapeScore:
    """A shape that a job could start with now: its expected seconds, and its computation/expense ratio."""

    nodes: int
    gpus_per_node: int
    latency_s: float
    cer: float


@frozen
class Admission:
    job_id: JobId
    verdict: Verdict
    gpus: int = 0
    nodes: int = 0
    gpus_per_node: int = 0
    rank: int = 0
    expected_finish_time_s: float = 0.0
    slack_s: float = 0.0
    drift_plus_penalty: tuple[DriftPlusPenalty, ...] = ()
    blockers: tuple[Blocker, ...] = ()
    profile_model: str = ""
    cer: float = 0.0
    draw: AdmitDraw | None = None


@frozen
class AdmitPlan:
    """The answer of an admission policy: one Admission per job, in the order of the request, and the queue after."""

    admissions: tuple[Admission, ...]
    queue: QueueState


@final
@frozen
class AdmitDecision:
    plan: AdmitPlan
    meta: DecisionMeta
