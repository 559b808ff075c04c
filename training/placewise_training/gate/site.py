"""One stretch of a cluster's life from its log: its jobs, how fast they ran beside others, its nodes, and whether these
agree. Fits nothing."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pyarrow.compute as pc

from placewise_core.domain.cluster import Node
from placewise_core.domain.job import Job, Role
from placewise_log.reading import ExportedLog
from placewise_log.rebuilding import NotRebuiltError
from placewise_log.store import LogError, LogStore
from placewise_training.gate.agreement import HORIZONS_S, Agreement, Stay, held, reward_differs, stays_of
from placewise_training.log.index import Logged, LogIndex
from placewise_training.log.nodes import NodeKey, gpu_models
from placewise_training.log.places import Placed, Places
from placewise_training.log.speeds import speed_of

_MOST_TRIED: Final = 50
_MOST_REWARDS: Final = 2000  # worked out again: enough to find one in a thousand


class Beside(NamedTuple):
    """What a job's speed depends on, at one moment: its model, the GPU model of its nodes, workers and parameter
    servers, the nodes that it uses, jobs beside it on the fullest of them, those of these that use several nodes
    themselves, and whether it has a GPU with another job."""

    model: str
    gpu_model: str
    workers: int
    servers: int
    nodes: int
    beside: int
    beside_spread: int
    shares_gpu: bool


class SpeedRow(NamedTuple):
    """ln(speed / linear speed) of a job from its start until its neighbours change; with `is_bound` at most that."""

    at: Beside
    log_speed: float
    is_bound: bool
    time_s: float


@dataclass(frozen=True, slots=True)
class SiteJob:
    """A job that ran. `arrive_s` is its submission, or its admission if AdmitOrWait let it in; `run_s` up to its end or
    to when it is known; `work_s` the seconds that it takes at linear speed, 0 if it declares no length; `explorer`
    placed it, "" for the policy in force. `has_finished` is False of one that failed or was cancelled."""

    job: Job
    arrive_s: float
    start_s: float
    run_s: float
    has_ended: bool
    has_finished: bool
    work_s: float
    explorer: str
    decided_s: float
    at: Beside | None


@dataclass(frozen=True, slots=True, eq=False)
class SiteLog:
    """All of one cluster's log that a simulation is fitted to. `end_s` is the log's last word; `counts` the jobs left
    out, by reason; `jobs_per_request` the mean number of jobs of a Place."""

    cluster: str
    jobs: Sequence[SiteJob]
    rows: Sequence[SpeedRow]
    nodes: Sequence[Node]
    end_s: float
    jobs_per_request: float
    counts: Mapping[str, int]
    agreement: Agreement


def site_log(store: LogStore, cluster: str, before_s: float, reward: str) -> SiteLog:
    """The log of one cluster, with its nodes at `before_s`; rewards from then on are worked out again. Raises LogError,
    also for a log without views."""
    jobs: dict[str, SiteJob] = {}
    rows: list[SpeedRow] = []
    stays: list[Stay] = []
    counts, requests, horizon_s = Counter[str](), set[str](), HORIZONS_S[reward]
    rewards = differing = 0
    with LogIndex(store, reward) as index:
        places = Places(store, index)
        places.read_declared()
        known = _LoggedCluster(index, gpu_models(store))
        for placed in places:
            if placed.record.cluster != cluster or placed.run is None:
                counts["of another cluster" if placed.run is not None else "never started"] += 1
                continue
            requests.add(placed.record.decision_id)
            at = known.beside(placed, placed.run)
            counts["without groups"] += not placed.job.groups
            if placed.job.groups and placed.job.id not in jobs:
                jobs[placed.job.id] = _job(placed, placed.run, at, index)
            row = known.row(placed, placed.run, at)
            rows += [row] if row is not None else []
            stays += stays_of(placed, placed.run)
            has_reward = placed.outcome.reward is not None and placed.record.time_s >= before_s
            if has_reward and rewards < _MOST_REWARDS:
                rewards += 1
                differing += reward_differs(placed, placed.run, index, horizon_s)
        end_s = index.end_s
    ordered = sorted(jobs.values(), key=lambda one: one.arrive_s)
    nodes = nodes_at(store, cluster, before_s)
    agreement = Agreement(*held(stays, nodes), rewards, differing)
    return SiteLog(cluster, ordered, rows, nodes, end_s, len(jobs) / max(1, len(requests)), +counts, agreement)


def nodes_at(store: LogStore, cluster: str, before_s: float) -> Sequence[Node]:
    """The nodes that the first decision from `before_s` on saw; of those whose view cannot be rebuilt, the nearest one
    whose view can. Raises LogError."""
    if not store.has("views"):
        raise LogError(f"{store.where} has no views, which tell the nodes: export it with PLACEWISE_DECLOG__VIEWS=true")
    log, reason = ExportedLog(store.where), "it has no decision"
    for decision_id in _decisions_near(store, cluster, before_s):
        try:
            if nodes := log.view_at(decision_id).nodes.records:
                return tuple(nodes)
            reason = "it has none"
        except NotRebuiltError as error:
            reason = str(error)
    remedy = "name another cluster, or export more of the log"
    raise LogError(f"{store.where} lacks the nodes of cluster {cluster!r} ({reason}): {remedy}")


def _decisions_near(store: LogStore, cluster: str, before_s: float) -> Sequence[str]:
    """Decisions from then on, the first ones first, and then earlier ones, the last ones first; _MOST_TRIED of each."""
    found: list[tuple[float, str]] = []
    for batch in store.batches("decisions", ("id", "cluster", "time"), pc.field("cluster") == cluster):
        times = pc.divide(pc.cast(batch.column("time"), "int64"), 1e6).to_pylist()
        found += zip(times, batch.column("id").to_pylist(), strict=True)
    found.sort()
    at = bisect_left(found, (before_s, ""))
    ordered = [*found[at : at + _MOST_TRIED], *found[max(0, at - _MOST_TRIED) : at][::-1]]
    return [decision_id for _, decision_id in ordered]


@dataclass(frozen=True, slots=True)
class _LoggedCluster:
    index: LogIndex
    gpu_models: Mapping[NodeKey, str]

    def beside(self, placed: Placed, logged: Logged) -> Beside | None:
        """None if the host put the job elsewhere than answered."""
        if placed.outcome.is_overridden:
            return None
        cluster, nodes, start_s = placed.record.cluster, logged.run.nodes, logged.run.start_s
        others = self.index.beside(cluster, nodes, start_s, placed.job.id)
        mine = {f"{task.node}/{gpu}" for task in placed.decided.assignments for gpu in task.gpu_indices}
        on = {node: [other for other in others if node in other.run.nodes] for node in sorted(nodes)}
        fullest = max(on.values(), key=len, default=[])
        shares = any(mine & set(self._gpus(other)) for other in others) if placed.job.gpu_sharing.allowed else False
        return Beside(
            placed.job.model,
            self.gpu_models.get(NodeKey(cluster, min(nodes)), ""),
            _count(placed.job, Role.WORKER),
            _count(placed.job, Role.PARAMETER_SERVER),
            len(nodes),
            len(fullest),
            sum(len(other.run.nodes) > 1 for other in fullest),
            shares,
        )

    def row(self, placed: Placed, logged: Logged, at: Beside | None) -> SpeedRow | None:
        """None if nothing is known of its speed or of its linear speed."""
        linear = self.index.linear(placed.record.decision_id, placed.job.id)
        if at is None or not linear:
            return None
        start_s = logged.run.start_s
        change_s = self.index.next_change_s(placed.record.cluster, logged.run.nodes, start_s, placed.job.id)
        found = speed_of(logged, start_s, change_s)
        if found is None:
            return None
        return SpeedRow(at, float(np.log(found.epochs_per_s / linear)), found.is_bound, placed.record.time_s)

    def _gpus(self, other: Logged) -> Sequence[str]:
        outcome = self.index.outcome(other.decision_id, other.run.job_id)
        return outcome.actual if outcome is not None else ()


def _job(placed: Placed, logged: Logged, at: Beside | None, index: LogIndex) -> SiteJob:
    record, job, draw = placed.record, placed.job, placed.record.draw_of(placed.job.id)
    linear = index.linear(record.decision_id, job.id)
    was_admitted = record.asked is not None and job.id in record.asked.admit_decisions
    submit_s = placed.outcome.submit_time_s or job.submit_time_s
    return SiteJob(
        job,
        record.time_s if was_admitted or not submit_s else min(submit_s, logged.run.start_s),
        logged.run.start_s,
        logged.known_s - logged.run.start_s,
        bool(logged.end),
        logged.has_finished,
        job.total_epochs / linear if linear else 0.0,
        draw.explorer if draw is not None else "",
        record.time_s,
        at,
    )


def _count(job: Job, role: Role) -> int:
    return sum(group.count for group in job.groups if group.role is role)
