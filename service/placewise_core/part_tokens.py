"""Tokens for the reward model: every job's tasks on every node they use, under each of K candidate placements.

One token per (job, node) that holds tasks of the job: what is known of the job, what of it is here, and what the node
carries in all (features.PART_COLUMNS). The jobs are the new one, all that share a node with any candidate, and a few
witnesses elsewhere whose reported speeds tell what the cluster is like: the same under each candidate, so that sums
over them compare. Changes nothing and decides nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from placewise_core.cluster import Assignment, RunningJob
from placewise_core.features import PART_COLUMNS, PART_FEATURES, Float32, encode_job, gpu_relative_speed
from placewise_core.frozen import frozen
from placewise_core.job import Job, JobId, Role
from placewise_core.pace import reported_speed, worker_step_ms
from placewise_core.speed.params import params_millions
from placewise_core.view import CPU, NETWORK, ClusterView, FloatArray

Int64 = NDArray[np.int64]

PADDING = -1
_STATIC = PART_FEATURES - len(PART_COLUMNS)
_AT = {column.name: _STATIC + i for i, column in enumerate(PART_COLUMNS)}
_SCALES = np.asarray([column.scale for column in PART_COLUMNS], dtype=np.float32)
_IS_LOG = np.asarray([column.is_log for column in PART_COLUMNS], dtype=np.bool_)
_HAS_SPEED, _SPEED = _AT["has_speed"], _AT["speed"]
REPORTED = slice(_HAS_SPEED, _SPEED + 1)  # the features that say what hosts reported: zero where they report nothing
_SUMS = slice(_AT["jobs_on_node"], _AT["traffic_of_others"] + 1)
_SUM_SCALES = _SCALES[_SUMS.start - _STATIC : _SUMS.stop - _STATIC]
_GIGABIT_PER_MS = 1.25e5  # bytes
_MOST_TRAFFIC_SHARE = 8.0  # beyond it a job does nothing but wait for its network
_REMEMBERED = 20_000
WITNESSES = 16
_LATEST = 64  # running jobs that are looked through for witnesses, however many there are


@frozen
class PartTokens:
    """K candidates, P tokens each.

    parts (K, P, PART_FEATURES) float32 · job, node (K, P) int64: which job and node a token is of, PADDING where there
    is none. Job 0 is the new one, job i > 0 is `neighbours[i − 1]`; jobs beyond those are witnesses.
    """

    parts: Float32
    job: Int64
    node: Int64
    neighbours: tuple[RunningJob, ...]


_Sums = tuple[float, float, float, float, float]


@frozen
class _Spread:
    """Where one job's tasks are, as rows (p, PART_FEATURES) whose node sums are still empty.

    `adds` (p, 5): what it adds to its nodes' sums: jobs, tasks, cores, GPUs, traffic share; `on` has the same by node.
    """

    assignments: Sequence[Assignment]
    nodes: list[int]
    rows: Float32
    adds: FloatArray
    on: dict[int, _Sums]


@dataclass(slots=True)
class _Kept:
    """What is remembered of one view, until its nodes change. `gpu_speeds`: by node, of its first GPU, over the mean of
    the cluster's GPUs; 1 where it has none. `gpus`: by node, how many."""

    layout_stamp: int
    gpu_speeds: list[float]
    gpus: list[float]
    spreads: dict[JobId, _Spread]


class PartEncoder:
    """Remembers what does not change about the jobs it saw. For one thread."""

    def __init__(self, most_parts: int = 96, most_witnesses: int = 0) -> None:
        """`most_parts` bounds the tokens of running jobs; those beyond it are left out under every candidate alike.

        `most_witnesses` bounds the tokens of further jobs, which share no node with any candidate: what their hosts
        reported says how fast this cluster's network and this job's model really are. WITNESSES is what the reward
        model is trained with.
        """
        self._most_parts = most_parts
        self._most_witnesses = most_witnesses
        self._kept: WeakKeyDictionary[ClusterView, _Kept] = WeakKeyDictionary()
        self._static: dict[JobId, tuple[Job, Float32]] = {}

    def encode(self, job: Job, candidates: Sequence[Sequence[Assignment]], view: ClusterView) -> PartTokens:
        """Tokens of the new job and its neighbours under each candidate. None of them may be claimed on the view."""
        kept = self._of(view)
        fresh = [self._spread(job, placement, view, kept, is_new=True) for placement in candidates]
        touched = dict.fromkeys(m for spread in fresh for m in spread.nodes)
        running, spreads = self._around(touched, view, kept)
        neighbours = tuple(running)
        if self._most_witnesses:
            self._add_witnesses(job, running, spreads, view, kept)
        rows, owner, where = _stacked(spreads)
        observed = np.array([reported_speed(held) for held in running])
        if len(rows):
            rows[:, _HAS_SPEED] = observed[owner - 1] > 0
            rows[:, _SPEED] = observed[owner - 1]
        places = {m: i for i, m in enumerate(dict.fromkeys([*touched, *where.tolist()]))}
        base = np.array([self._sums(m, view, kept) for m in places]).reshape(len(places), 5)
        capacity = np.array([_capacity(m, view, kept) for m in places]).reshape(len(places), 2)
        local = np.array([places[m] for m in where.tolist()], dtype=np.int64)
        own = np.concatenate([s.adds for s in spreads]) if spreads else np.zeros((0, 5))
        return _filled(fresh, rows, owner, local, own, base, capacity, places, neighbours)

    def _around(self, nodes: dict[int, None], view: ClusterView, kept: _Kept) -> tuple[list[RunningJob], list[_Spread]]:
        ids = dict.fromkeys(job_id for m in nodes for job_id in view.jobs_on(m))
        running: list[RunningJob] = []
        spreads: list[_Spread] = []
        left = self._most_parts
        for job_id in ids:
            held = view.jobs.get(job_id)
            if held is None:
                continue
            spread = self._spread_of(held, view, kept)
            left -= len(spread.nodes)
            if left < 0:
                break
            running.append(held)
            spreads.append(spread)
        return running, spreads

    def _add_witnesses(
        self, job: Job, running: list[RunningJob], spreads: list[_Spread], view: ClusterView, kept: _Kept
    ) -> None:
        """Appends the latest jobs with a reported speed that are not there yet, those of the job's own model first."""
        near = {held.id for held in running}
        latest = islice(reversed(view.jobs.values()), _LATEST)
        others = [held for held in latest if held.speed > 0 and held.id not in near]
        left = self._most_witnesses
        for held in sorted(others, key=lambda held: held.job.model != job.model):
            spread = self._spread_of(held, view, kept)
            left -= len(spread.nodes)
            if left < 0:
                break
            running.append(held)
            spreads.append(spread)

    def _sums(self, m: int, view: ClusterView, kept: _Kept) -> _Sums:
        """What the jobs on node m add up to."""
        jobs = tasks = cores = gpus = share = 0.0
        for job_id in view.jobs_on(m):
            held = view.jobs.get(job_id)
            if held is not None:
                each = self._spread_of(held, view, kept).on[m]
                jobs, tasks, cores = jobs + each[0], tasks + each[1], cores + each[2]
                gpus, share = gpus + each[3], share + each[4]
        return jobs, tasks, cores, gpus, share

    def _spread_of(self, held: RunningJob, view: ClusterView, kept: _Kept) -> _Spread:
        spreads = kept.spreads
        found = spreads.get(held.id)
        if found is None or found.assignments is not held.assignments:
            if len(spreads) > _REMEMBERED:
                spreads.clear()
            found = spreads[held.id] = self._spread(held.job, held.assignments, view, kept, is_new=False)
        return found

    def _spread(
        self, job: Job, placement: Sequence[Assignment], view: ClusterView, kept: _Kept, *, is_new: bool
    ) -> _Spread:
        counts = _counts(placement, view)
        nodes = list(counts)
        workers, servers = (sum(c[role] for c in counts.values()) for role in (0, 1))
        step_ms = worker_step_ms(job, workers)
        gradients = params_millions(job.model, job.params_millions) * 4e6 if len(nodes) > 1 else 0.0  # float32
        on: dict[int, _Sums] = {}
        dynamic: list[tuple[float, ...]] = []
        for m, (here, serving, cores, gpus) in counts.items():
            gbps = float(view.capacity[NETWORK, m])
            traffic = traffic_bytes(gradients, workers, servers, here, serving)
            traffic_ms = traffic / (_GIGABIT_PER_MS * gbps) if gbps > 0 else 0.0
            share = min(_MOST_TRAFFIC_SHARE, traffic_ms / step_ms) if step_ms > 0 else 0.0
            on[m] = (1.0, here + serving, cores, gpus, share)
            dynamic.append(
                (
                    *(float(is_new), workers, servers, len(nodes), float(step_ms > 0), step_ms, 0.0, 0.0),
                    *(here, serving, traffic_ms, share),
                    *(float(view.capacity[CPU, m]), gbps, kept.gpus[m], kept.gpu_speeds[m]),
                    *(0.0, 0.0, 0.0, 0.0, 0.0),
                )
            )
        rows = np.zeros((len(nodes), PART_FEATURES), dtype=np.float32)
        if nodes:
            rows[:, :_STATIC] = self._static_of(job)
            rows[:, _STATIC:] = dynamic
        scaled = rows[:, _STATIC:]
        scaled[:, _IS_LOG] = np.log1p(scaled[:, _IS_LOG])
        scaled *= _SCALES
        return _Spread(placement, nodes, rows, np.array(list(on.values())).reshape(-1, 5), on)

    def _static_of(self, job: Job) -> Float32:
        found = self._static.get(job.id)
        if found is None or found[0] is not job:
            if len(self._static) > _REMEMBERED:
                self._static.clear()
            found = self._static[job.id] = (job, encode_job(job))
        return found[1]

    def _of(self, view: ClusterView) -> _Kept:
        kept = self._kept.get(view)
        if kept is None or kept.layout_stamp != view.layout_stamp:
            gpus = view.gpu_exists.sum(axis=1).astype(np.float64).tolist()
            kept = self._kept[view] = _Kept(view.layout_stamp, _gpu_speeds(view), gpus, {})
        return kept


def _gpu_speeds(view: ClusterView) -> list[float]:
    raw = np.array([gpu_relative_speed(n.gpus[0].model) if n.gpus else 0.0 for n in view.nodes])
    count = np.array([len(n.gpus) for n in view.nodes])
    mean = float((raw * count).sum() / max(1, count.sum())) or 1.0
    speeds: list[float] = np.where(raw > 0, raw / mean, 1.0).tolist()
    return speeds


def traffic_bytes(gradients: float, workers: float, servers: float, here: float, serving: float) -> float:
    """Bytes per iteration through the NIC of a node with `here` workers and `serving` parameter servers, the busier
    direction, of a job on several nodes whose gradients take so many bytes: 2(n−1)/n of them in a ring of n workers; to
    and from parameter servers what is not on one node (each of P holds 1/P of the parameters)."""
    if servers == 0:
        return 2.0 * (workers - 1.0) / max(1.0, workers) * gradients if here else 0.0
    return gradients * (here * (servers - serving) + (workers - here) * serving) / servers


def _counts(placement: Sequence[Assignment], view: ClusterView) -> dict[int, tuple[float, float, float, float]]:
    """Per node: workers, parameter servers, cores, GPUs. Nodes the view lacks are passed over."""
    counts: dict[int, tuple[float, float, float, float]] = {}
    for task in placement:
        m = view.index.get(task.node)
        if m is None:
            continue
        workers, servers, cores, gpus = counts.get(m, (0.0, 0.0, 0.0, 0.0))
        is_worker = task.role is Role.WORKER
        counts[m] = (
            workers + is_worker,
            servers + (not is_worker),
            cores + task.demand.cpu_cores,
            gpus + len(task.gpu_indices),
        )
    return counts


def _capacity(m: int, view: ClusterView, kept: _Kept) -> tuple[float, float]:
    return max(1e-9, float(view.capacity[CPU, m])), max(1.0, kept.gpus[m])


def _stacked(spreads: Sequence[_Spread]) -> tuple[Float32, Int64, Int64]:
    """Rows of all running jobs; the job (from 1) and the node of each."""
    if not spreads:
        return np.zeros((0, PART_FEATURES), np.float32), np.zeros(0, np.int64), np.zeros(0, np.int64)
    rows = np.concatenate([s.rows for s in spreads])
    owner = np.repeat(np.arange(1, len(spreads) + 1), [len(s.nodes) for s in spreads])
    return rows, owner, np.concatenate([np.asarray(s.nodes, dtype=np.int64) for s in spreads])


def _filled(
    fresh: Sequence[_Spread],
    rows: Float32,
    owner: Int64,
    local: Int64,
    own: FloatArray,
    base: FloatArray,
    capacity: FloatArray,
    places: dict[int, int],
    neighbours: tuple[RunningJob, ...],
) -> PartTokens:
    """Per candidate: the running jobs' rows, then the new job's, with the node sums as they would be."""
    before = len(rows)
    longest = before + max((len(s.nodes) for s in fresh), default=0)
    parts = np.zeros((len(fresh), longest, PART_FEATURES), dtype=np.float32)
    job = np.full((len(fresh), longest), PADDING, dtype=np.int64)
    node = np.full((len(fresh), longest), PADDING, dtype=np.int64)
    parts[:, :before], job[:, :before], node[:, :before] = rows, owner, local
    for k, spread in enumerate(fresh):
        here = np.array([places[m] for m in spread.nodes], dtype=np.int64)
        end = before + len(here)
        parts[k, before:end], job[k, before:end], node[k, before:end] = spread.rows, 0, here
        sums = base.copy()
        sums[here] += spread.adds
        at = node[k, :end]
        totals = sums[at]
        totals[:, 2:4] /= capacity[at]
        totals[:, 4] -= np.concatenate([own[:, 4], spread.adds[:, 4]])
        parts[k, :end, _SUMS] = totals * _SUM_SCALES
    return PartTokens(parts, job, node, neighbours)
