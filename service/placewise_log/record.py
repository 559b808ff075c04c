"""The entries of the decision log, and their bytes. Never talks to a store.

Two kinds of entries share one log: a *decision* (request, observation, choice and answer) and an *outcome* (a host's
report about a job). The export joins them by decision id.

Bytes: msgpack of [schema version, kind, decision id, entry]. The id stands in front so that an entry can be found
without reading the rest.
"""

import uuid
from collections.abc import Mapping
from dataclasses import field
from typing import Final, final

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType
from numpy.typing import NDArray

from placewise_core.admit.seen import JobShapes, ShapeTable, drift_scores, shape_scores
from placewise_core.basics.arrays import FloatArray
from placewise_core.basics.frozen import frozen
from placewise_core.domain.cluster import QueueSettings
from placewise_core.domain.commands import AdmitCommand, JobEvent, PartitionCommand, PlaceCommand
from placewise_core.domain.decision import (
    AdmitDecision,
    DecisionMeta,
    DriftPlusPenalty,
    PartitionDecision,
    PlaceDecision,
    ShapeScore,
    Verdict,
)
from placewise_core.domain.divisible import DivisibleTask, ShareProgress
from placewise_core.domain.job import Job
from placewise_core.policies.explore import Stop
from placewise_core.policies.studies.alternatives import Alternative
from placewise_core.policies.studies.shadow import Compared

SCHEMA_VERSION: Final = 2
# In 1, `time_s` of a Place was when its record was made, and nothing said which view it read.
READABLE: Final = (1, 2)
PLACE: Final = "Place"
PARTITION: Final = "Partition"
ADMIT_OR_WAIT: Final = "AdmitOrWait"
FAILED: Final = "FAILED"  # guard of a job that a fallback placed, as a policy or an explorer had failed


@frozen
class Tensor:
    """An array as bytes, little-endian, C order."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def pack(cls, array: NDArray[np.generic]) -> "Tensor":
        """A copy of the array's values."""
        little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        return cls(little.dtype.str, array.shape, little.tobytes())

    def unpack(self) -> NDArray[np.generic]:
        """The array, read-only."""
        return np.frombuffer(self.data, dtype=self.dtype).reshape(self.shape)


@frozen
class Choice:
    """Observation and actions of one job: the arrays that a net read, or an encoding of the view, by name
    (docs/decision-log.md), the mask of each step (tasks, actions), and the action ids. `nodes` and `jobs` are the ids
    behind the tokens of nodes and jobs."""

    job_id: str
    actions: tuple[int, ...] = ()
    observation: Mapping[str, Tensor] = field(default_factory=dict)
    mask: Tensor | None = None
    nodes: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()


@final
@frozen
class Draw:
    """How the placement of one job came about. P(a) is the propensity in the job's answer.

    `own_propensity` is π(a) of the policy in force; `explorer` names the policy that explored, "" if none did; `rate`
    is ε for this job; `guard` is the verdict that kept exploration from it, or FAILED: then P(a) is unknown. `info` is
    the report of the policy that placed the job about itself. `seed` is that of the job's own draws, None if they are
    draws of the request. `stops` are those of the policy in force and of the explorers that the clock stopped, by name.
    Records of older versions lack them, and tell it by `info` and `fallback_reason`, of the policy that placed the job
    alone.
    """

    job_id: str
    own_propensity: float = 1.0
    explorer: str = ""
    rate: float = 0.0
    guard: str = ""
    fallback_reason: str = ""
    info: Mapping[str, float] = field(default_factory=dict)
    seed: int | None = None
    stops: Mapping[str, Stop] = field(default_factory=dict)

    @property
    def is_explored(self) -> bool:
        return bool(self.explorer)


@final
@frozen
class Steps:
    """The chosen placement of one job, task by task: the probability of each task's node by Harmony's net, ids of the C
    candidates, `tokens` (tasks, C, STEP_FEATURES). As the net read them if it placed the job, else as it would have."""

    job_id: str
    tasks: tuple[str, ...]
    probabilities: tuple[float, ...]
    nodes: tuple[str, ...]
    tokens: Tensor


@final
@frozen
class Parts:
    """Inputs of the reward model for one job's K alternatives, in order: `tokens` (K, P, PART_FEATURES), `job` and
    `node` (K, P) of each token, −1 for padding. Node i is `nodes[i]`, job 0 the job itself, job i > 0 `jobs[i − 1]`;
    jobs beyond those are witnesses elsewhere."""

    job_id: str
    tokens: Tensor
    job: Tensor
    node: Tensor
    nodes: tuple[str, ...]
    jobs: tuple[str, ...]


@final
@frozen
class AdmitSeen:
    """The state that an admission was decided on, besides the queue in its answer.

    `repeats`: the jobs that the queue, or any replica, knew from an earlier question. `left_out`:
    unchanged refusals of the queue that the log left out before this decision. `free_gpus` are idle GPUs, `free_nodes`
    the nodes in use with at least one of them. `tables` and `jobs` have the shapes; `proteus-paper` has
    `scores`, and older records have `scores` and `shapes`. `shapes_of` and `scores_of` read all of them. `settings`
    are those of the queue, `is_seeded`: the caller gave the seed. `refused_before`: of the jobs that wait for the
    reasons that the log has already, the decision that logged them.
    """

    repeats: tuple[str, ...] = ()
    free_gpus: int | None = None
    free_nodes: int | None = None
    scores: Mapping[str, tuple[DriftPlusPenalty, ...]] = field(default_factory=dict)
    left_out: int = 0
    shapes: Mapping[str, tuple[ShapeScore, ...]] = field(default_factory=dict)
    settings: QueueSettings | None = None
    is_seeded: bool = False
    refused_before: Mapping[str, str] = field(default_factory=dict)
    tables: tuple[ShapeTable, ...] = ()
    jobs: Mapping[str, JobShapes] = field(default_factory=dict)

    def shapes_of(self, job_id: str) -> tuple[ShapeScore, ...]:
        """The shapes that fitted the job when it had its turn, fewest GPUs first."""
        job = self.jobs.get(job_id)
        return self.shapes.get(job_id, ()) if job is None else shape_scores(self.tables, job)

    def scores_of(self, job_id: str) -> tuple[DriftPlusPenalty, ...]:
        """S(n) of the job's shapes, that of WAIT first; empty unless the policy compared any."""
        job = self.jobs.get(job_id)
        return self.scores.get(job_id, ()) if job is None else drift_scores(self.tables, job)


@final
@frozen
class PlaceSeen:
    """What Place knew of its jobs: those it was asked about before, and the AdmitOrWait decision of those admitted.

    Of observed decisions with scope NODE also the units that were open to the subtasks. `settled`: jobs that the store
    knew better than the view, after a conflict or because they hold resources already. `conflicts`: node and reason of
    each attempt that the store refused before this one. `is_seeded`: the caller gave the seed. `slot_s`: of draws for
    jobs of a queue without settings of its own. `guards`: the guard's verdict on jobs that found no place, and have no
    Draw. `heuristic`: the one that answered under a kill switch, where named explorers were left out; UNSET, and not in
    the bytes, without one.
    """

    repeats: tuple[str, ...] = ()
    admit_decisions: Mapping[str, str] = field(default_factory=dict)
    open_units: tuple[str, ...] | None = None
    settled: tuple[str, ...] = ()
    conflicts: tuple[tuple[str, str], ...] = ()
    is_seeded: bool = False
    slot_s: float = 0.0
    guards: Mapping[str, str] = field(default_factory=dict)
    heuristic: str | UnsetType = UNSET


@final
@frozen
class ViewRead:
    """The view that a decision read: the view `view` of one replica at `version` and at the time `now_s`.

    `assumed`: gangs on it that no event up to that version names, by reservation, each with the version at which the
    view took it. `moved`: of the next event, the first so many jobs are on the view already. `digest`: that of the
    view. A request that was decided in slices read one view when it began and then one for each job, `job_id`; any
    other one for all of its jobs.
    """

    view: str
    version: int
    now_s: float
    digest: int
    assumed: tuple[tuple[str, int], ...] = ()
    moved: int = 0
    job_id: str = ""


@final
@frozen
class JobArm:
    """The arm of a canary that decided one job, or split one task: "canary" or "incumbent". `mixed_propensity` is the
    probability of its answer over both arms and all explorers; None without a placement, and if `unknown` says why."""

    job_id: str
    arm: str
    mixed_propensity: float | None = None
    unknown: str = ""


@final
@frozen
class CanarySeen:
    """The canary that a decision met: its bundle, and the rule of its arms (core/policies/trial/arms.py). `is_washout`:
    the decision counts for neither arm. `arms` are in the order in which the jobs were decided."""

    bundle: str
    digest: str
    salt: str
    share: float
    unit: str = "job"
    is_washout: bool = False
    arms: tuple[JobArm, ...] = ()


@frozen
class DecisionRecord:
    """One decision. Exactly one of `place`, `partition`, `admit` is set.

    `time_s` is when it was decided (epoch seconds), `latency_ms` from the arrival at the engine to the answer.
    `alternatives`, `steps` and `parts` are worked out after the answer, for a random share of the Place decisions.
    `epoch` is that of the state: versions of the view count within it. `reads`: the views that it was decided on, for
    view_at. `seed` repeats the draw. `shadow_of` names the decision that was answered where this one was made in its
    shadow; `compared` has both. `canary` is set while a bundle answered a share of the jobs. Of Partition,
    `asked_units` and `progress` are the request's.
    """

    rpc: str
    time_s: float
    cluster: str
    latency_ms: float = 0.0
    seed: int = 0
    request_id: str = ""
    requested_policy: str = ""
    queue: str = ""
    is_dry_run: bool = False
    shadow_of: str = ""
    jobs: tuple[Job, ...] = ()
    task: DivisibleTask | None = None
    choices: tuple[Choice, ...] = ()
    draws: tuple[Draw, ...] = ()
    place: PlaceDecision | None = None
    partition: PartitionDecision | None = None
    admit: AdmitDecision | None = None
    seen: AdmitSeen | None = None
    epoch: str = ""
    scope: str = ""
    node_id: str = ""
    asked: PlaceSeen | None = None
    alternatives: tuple[Alternative, ...] | None = None
    steps: tuple[Steps, ...] = ()
    parts: tuple[Parts, ...] = ()
    compared: tuple[Compared, ...] = ()
    reads: tuple[ViewRead, ...] = ()
    is_explaining: bool = False
    asked_units: tuple[str, ...] = ()
    progress: tuple[ShareProgress, ...] = ()
    canary: CanarySeen | None = None

    @classmethod
    def of_place(
        cls,
        command: PlaceCommand,
        decision: PlaceDecision,
        *,
        time_s: float,
        seed: int,
        latency_ms: float,
        choices: tuple[Choice, ...] = (),
        draws: tuple[Draw, ...] = (),
        epoch: str = "",
        asked: PlaceSeen | None = None,
        reads: tuple[ViewRead, ...] = (),
    ) -> "DecisionRecord":
        """The record of a Place call."""
        return cls(
            rpc=PLACE,
            time_s=time_s,
            cluster=command.cluster,
            latency_ms=latency_ms,
            seed=seed,
            request_id=command.request_id,
            requested_policy=command.policy,
            is_dry_run=command.is_dry_run,
            jobs=command.jobs,
            choices=choices,
            draws=draws,
            place=decision,
            epoch=epoch,
            scope=command.scope.value,
            node_id=command.node_id,
            asked=asked,
            reads=reads,
            is_explaining=command.is_explaining,
        )

    @classmethod
    def of_partition(
        cls,
        command: PartitionCommand,
        decision: PartitionDecision,
        *,
        time_s: float,
        latency_ms: float,
        epoch: str = "",
        reads: tuple[ViewRead, ...] = (),
    ) -> "DecisionRecord":
        """The record of a Partition call."""
        return cls(
            rpc=PARTITION,
            time_s=time_s,
            cluster=command.cluster,
            latency_ms=latency_ms,
            request_id=command.request_id,
            is_dry_run=command.is_dry_run,
            task=command.task,
            partition=decision,
            epoch=epoch,
            reads=reads,
            is_explaining=command.is_explaining,
            asked_units=command.units,
            progress=command.progress,
        )

    @classmethod
    def of_admit(
        cls,
        command: AdmitCommand,
        decision: AdmitDecision,
        *,
        time_s: float,
        seed: int,
        latency_ms: float,
        seen: AdmitSeen | None = None,
        epoch: str = "",
        reads: tuple[ViewRead, ...] = (),
    ) -> "DecisionRecord":
        """The record of an AdmitOrWait call."""
        return cls(
            rpc=ADMIT_OR_WAIT,
            time_s=time_s,
            cluster=command.cluster,
            latency_ms=latency_ms,
            seed=seed,
            request_id=command.request_id,
            requested_policy=command.policy,
            queue=command.queue,
            is_dry_run=command.is_dry_run,
            jobs=command.jobs,
            admit=decision,
            seen=seen,
            epoch=epoch,
            reads=reads,
            is_explaining=command.is_explaining,
        )

    @property
    def answer(self) -> PlaceDecision | PartitionDecision | AdmitDecision:
        """The answer of the decision. Raises ValueError for a record without one."""
        answer = self.place or self.partition or self.admit
        if answer is None:
            raise ValueError("a decision record without an answer")
        return answer

    @property
    def meta(self) -> DecisionMeta:
        return self.answer.meta

    @property
    def decision_id(self) -> str:
        return self.meta.decision_id

    def draw_of(self, job_id: str) -> Draw | None:
        """How this decision placed the job; None if it did not, or was made by an older version."""
        return next((draw for draw in self.draws if draw.job_id == job_id), None)

    def placed_tokens(self) -> Mapping[str, FloatArray]:
        """(PART_FEATURES,) by job: the mean of the reward model's tokens of the job as it was placed. Without jobs
        whose alternatives were not worked out."""
        found = {}
        for parts in self.parts:
            places = [each.is_chosen for each in self.alternatives or () if each.job_id == parts.job_id]
            chosen = places.index(True)
            rows = parts.tokens.unpack()[chosen][parts.job.unpack()[chosen] == 0]
            found[parts.job_id] = rows.astype(np.float64).mean(axis=0)
        return found

    @property
    def outcome(self) -> str:
        """One word for the whole answer: PLACED, NO_FIT, WAIT or ADMIT; MIXED if the jobs differ."""
        if self.partition is not None:
            return self.partition.plan.outcome.value
        if self.admit is not None:
            words = {a.verdict.value for a in self.admit.plan.admissions} or {Verdict.WAIT.value}
        else:
            words = {d.outcome.value for d in self.place.decisions} if self.place is not None else set()
        return words.pop() if len(words) == 1 else "MIXED"


@frozen
class OutcomeRecord:
    """A host's report about one job. `decision_id` is "" if the decision behind it is unknown.

    `neighbours` are the jobs on its nodes at the time of a report of progress, None of other reports and if unknown.
    """

    cluster: str
    receive_time_s: float
    event: JobEvent
    decision_id: str = ""
    neighbours: tuple[str, ...] | None = None


Entry = DecisionRecord | OutcomeRecord

_KINDS: Final[Mapping[str, type[Entry]]] = {"decision": DecisionRecord, "outcome": OutcomeRecord}
_encoder = msgspec.msgpack.Encoder()
_envelope_decoder = msgspec.msgpack.Decoder(tuple[int, str, str, msgspec.Raw])
_decoders = {kind: msgspec.msgpack.Decoder(type_) for kind, type_ in _KINDS.items()}


class CorruptEntryError(ValueError):
    """The bytes are no log entry, or one of a schema this version does not know."""


def encode(entry: Entry) -> bytes:
    """The entry's bytes."""
    kind = "decision" if isinstance(entry, DecisionRecord) else "outcome"
    return _encoder.encode((SCHEMA_VERSION, kind, entry.decision_id, entry))


def decode_entry(data: bytes) -> Entry:
    """The inverse of encode. Raises CorruptEntryError."""
    try:
        version, kind, _, body = _envelope_decoder.decode(data)
        if version not in READABLE or kind not in _decoders:
            raise CorruptEntryError(f"log entry of schema {version}, kind {kind!r}; known: {READABLE}")
        return _decoders[kind].decode(body)
    except msgspec.MsgspecError as error:
        raise CorruptEntryError(f"not a log entry: {error}") from error


def decode(data: bytes) -> DecisionRecord:
    """The decision in these bytes. Raises CorruptEntryError, also for an outcome."""
    entry = decode_entry(data)
    if not isinstance(entry, DecisionRecord):
        raise CorruptEntryError("expected a decision, found an outcome")
    return entry


def decision_time_s(decision_id: str) -> float | None:
    """When a decision was made (epoch seconds, ms precision), read from its UUIDv7; None for any other id."""
    try:
        value = uuid.UUID(decision_id)
    except ValueError:
        return None
    return (value.int >> 80) / 1000.0 if value.version == 7 else None
