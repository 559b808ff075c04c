"""Tokens for the reward model: every job's tasks on every node they use, under each of K candidate placements.

One token per (job, node) that holds tasks of the job: features of the job, of its tasks here, and of the node's whole
load (tables.PART_COLUMNS). The jobs are the new one, all that share a node with any candidate, and a few
witnesses elsewhere, whose reported speeds show the speed of the cluster: the same under each candidate, so that sums
over them compare. Changes nothing and decides nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from placewise_core.basics.arrays import Float32, FloatArray, IntArray
from placewise_core.basics.bounded import Bounded
from placewise_core.basics.frozen import frozen
from placewise_core.basics.slices import ONE_SLICE, Slices
from placewise_core.domain.cluster import Assignment, RunningJob
from placewise_core.domain.job import Job, JobId, Role
from placewise_core.inputs.cluster import PART_COLUMNS, PART_FEATURES, encode_job, gpu_relative_speed
from placewise_core.speed.linear_speed import linear_speed, relative_speed, worker_step_ms
from placewise_core.speed.params import params_millions
from placewise_core.view.view import CPU, NETWORK, ClusterView, Lineage

Int64 = NDArray[np.int64]

PADDING = -1
_STATIC = PART_FEATURES - len(PART_COLUMNS)
_AT = {column.name: _STATIC + i for i, column in enumerate(PART_COLUMNS)}
_SCALES = np.asarray([column.scale for column in PART_COLUMNS], dtype=np.float32)
_IS_LOG = np.asarray([column.is_log for column in PART_COLUMNS])
_HAS_SPEED, _SPEED = _AT["has_speed"], _AT["speed"]
REPORTED = slice(_HAS_SPEED, _SPEED + 1)  # features of hosts' reports: zero without a report
_SUMS = slice(_AT["jobs_on_node"], _AT["traffic_of_others"] + 1)
_OF_JOB = slice(_STATIC, _AT["cpu_capacity"])  # features of a job on a node, without its own
_OF_NODE = slice(_AT["cpu_capacity"], _SUMS.start)
_OF_LINKS = slice(_AT["has_links"], _AT["peer_traffic"] + 1)
_JOB_COLUMNS = _OF_JOB.stop - _OF_JOB.start
_HELD = slice(_AT["cpu_held"] - _SUMS.start, _AT["gpus_held"] + 1 - _SUMS.start)  # of the sums
_TRAFFIC_OF_OTHERS = _AT["traffic_of_others"] - _SUMS.start
_SUM_SCALES = _SCALES[_SUMS.start - _STATIC : _SUMS.stop - _STATIC]
_GIGABIT_PER_MS = 1.25e5  # bytes
_MOST_TRAFFIC_SHARE = 8.0  # beyond it a job does nothing but wait for its network
_REMEMBERED = 20_000
_LINKS = 3  # row of the nodes' hardware
WITNESSES = 16
_LATEST = 64  # running jobs that are looked through for witnesses, however many there are


@frozen
class PartTokens:
    """K candidates, P tokens each.

    parts (K, P, PART_FEATURES) float32 · job, node (K, P) int64: job and node of each token, PADDING if there
    is none. Job 0 is the new one, job i > 0 is `neighbours[i − 1]`; jobs beyond those are witnesses. `places` maps
    nodes of the view to their numbers here, in the order of these.
    """

    parts: Float32
    job: Int64
    node: Int64
    neighbours: tuple[RunningJob, ...]
    places: Mapping[int, int] = field(default_factory=dict)

    def under(self, rows: Sequence[int]) -> "PartTokens":
        """The same tokens under these candidates alone: running jobs that share a node with none of them are
        witnesses."""
        parts, job, node = self.parts[rows], self.job[rows], self.node[rows]
        used = set(node[job == 0].tolist())
        running = [(i, m) for i, m in zip(job[0].tolist(), node[0].tolist(), strict=True) if i > 0]
        near = dict.fromkeys([i for i, m in running if m in used])
        if len(near) == len(self.neighbours):
            return PartTokens(parts, job, node, self.neighbours, self.places)
        numbered = [0, *dict.fromkeys([*near, *[i for i, _ in running]])]
        number = np.full(max(numbered) + 2, PADDING)  # the last one stays: that of padding
        number[numbered] = np.arange(len(numbered))
        neighbours = tuple([self.neighbours[i - 1] for i in near])
        return PartTokens(parts, number[job], node, neighbours, self.places)


_Sums = tuple[float, float, float, float, float]


@frozen
class _Cells:
    """One job under K placements, a row for each of the N (placement, node) pairs that hold tasks of it.

    placement and number: the pair's placement, and its number there · nodes: N of them · rows (N, PART_FEATURES) whose
    node sums are still empty · adds (N, 5): the job's part of its node's sums: jobs, tasks, cores, GPUs, traffic share.
    """

    placement: list[int]
    number: list[int]
    nodes: list[int]
    rows: Float32
    adds: FloatArray


@frozen
class _There:
    """The cells of all running jobs, which are the same under each candidate. jobs: the number of each one's job, from
    1; the rest as in _Cells."""

    jobs: list[int]
    nodes: list[int]
    rows: Float32
    adds: FloatArray


@frozen
class _Spread:
    """The nodes of a running job's tasks: `cells` of its one placement; `on` has its load, by node; `linear` is its
    linear speed there."""

    assignments: Sequence[Assignment]
    cells: _Cells
    on: dict[int, _Sums]
    linear: float


@dataclass(slots=True)
class _NodeFeatures:
    """Features of one view, until its nodes change, by node: `hardware` (M, 4), encoded; the data its line and the
    links between its GPUs carry in a millisecond, infinite if unknown; `capacity` (M, 2) in cores and GPUs; `sums`
    (M, 5) of the jobs on it, as of `stamps`."""

    layout_stamp: int
    hardware: Float32
    bytes_per_ms: list[float]
    peer_bytes_per_ms: list[float]
    capacity: FloatArray
    sums: FloatArray
    stamps: IntArray
    spreads: Bounded[JobId, _Spread]

    def of_fork(self) -> "_NodeFeatures":
        """For another view of the lineage: with the same nodes and spreads, and sums of its own."""
        return replace(self, sums=np.zeros_like(self.sums), stamps=np.full_like(self.stamps, -1))


class PartEncoder:
    """Encodes parts of jobs; remembers the unchanging features of jobs. For one thread."""

    def __init__(self, most_parts: int = 96, most_witnesses: int = 0) -> None:
        """`most_parts` bounds the tokens of running jobs; those beyond it are left out under every candidate alike.

        `most_witnesses` bounds the tokens of further jobs, which share no node with any candidate: their hosts'
        reports show the true speed of this cluster's network and of this job's model. The reward
        model is trained with WITNESSES.
        """
        self._most_parts = most_parts
        self._most_witnesses = most_witnesses
        self._kept: WeakKeyDictionary[ClusterView, _NodeFeatures] = WeakKeyDictionary()
        self._latest: WeakKeyDictionary[Lineage, _NodeFeatures] = WeakKeyDictionary()  # begun of each lineage
        self._static: Bounded[JobId, tuple[Job, Float32, float]] = Bounded(_REMEMBERED)

    def encode(
        self, job: Job, candidates: Sequence[Sequence[Assignment]], view: ClusterView, slices: Slices = ONE_SLICE
    ) -> PartTokens:
        """Tokens of the new job and its neighbours under each candidate. None of them may be claimed on the view."""
        kept = self._of(view)
        fresh = self._cells(job, candidates, view, kept, slices, is_new=True)
        touched = dict.fromkeys(fresh.nodes)
        running, spreads = self._around(touched, view, kept)
        slices.pause()
        neighbours = tuple(running)
        if self._most_witnesses:
            self._add_witnesses(job, running, spreads, view, kept)
        there = _stacked(running, spreads)
        numbered = dict.fromkeys([*touched, *there.nodes])
        places = dict(zip(numbered, range(len(numbered)), strict=True))
        at = np.array([*places], dtype=np.int64)
        self._renew(at, view, kept, slices)
        sums, capacity = kept.sums.take(at, axis=0), kept.capacity.take(at, axis=0)
        return _filled(len(candidates), fresh, there, places, sums, capacity, neighbours)

    def prepare(self, view: ClusterView) -> None:
        """Works out ahead of time what changed on nodes that were asked about before."""
        kept = self._of(view)
        self._renew(np.flatnonzero(kept.stamps >= 0), view, kept, ONE_SLICE)

    def _renew(self, nodes: Int64, view: ClusterView, kept: _NodeFeatures, slices: Slices) -> None:
        """Brings the sums of these nodes up to date."""
        for m in nodes[kept.stamps[nodes] != view.usage.node_stamp[nodes]].tolist():
            kept.sums[m] = self._sums(m, view, kept)
            kept.stamps[m] = view.usage.node_stamp[m]
            slices.pause()

    def _around(
        self, nodes: dict[int, None], view: ClusterView, kept: _NodeFeatures
    ) -> tuple[list[RunningJob], list[_Spread]]:
        ids = dict.fromkeys(job_id for m in nodes for job_id in view.usage.jobs_on(m))
        running: list[RunningJob] = []
        spreads: list[_Spread] = []
        left = self._most_parts
        for job_id in ids:
            held = view.jobs.get(job_id)
            if held is None:
                continue
            spread = self._spread_of(held, view, kept)
            left -= len(spread.cells.nodes)
            if left < 0:
                break
            running.append(held)
            spreads.append(spread)
        return running, spreads

    def _add_witnesses(
        self, job: Job, running: list[RunningJob], spreads: list[_Spread], view: ClusterView, kept: _NodeFeatures
    ) -> None:
        """Appends the latest jobs with a reported speed that are not there yet, those of the job's own model first."""
        near = {held.id for held in running}
        latest = islice(reversed(view.jobs.values()), _LATEST)
        others = [held for held in latest if held.speed > 0 and held.id not in near]
        left = self._most_witnesses
        for held in sorted(others, key=lambda held: held.job.model != job.model):
            spread = self._spread_of(held, view, kept)
            left -= len(spread.cells.nodes)
            if left < 0:
                break
            running.append(held)
            spreads.append(spread)

    def _sums(self, m: int, view: ClusterView, kept: _NodeFeatures) -> _Sums:
        """The sums over the jobs on node m."""
        jobs = tasks = cores = gpus = share = 0.0
        for job_id in view.usage.jobs_on(m):
            held = view.jobs.get(job_id)
            if held is not None:
                each = self._spread_of(held, view, kept).on[m]
                jobs, tasks, cores = jobs + each[0], tasks + each[1], cores + each[2]
                gpus, share = gpus + each[3], share + each[4]
        return jobs, tasks, cores, gpus, share

    def _spread_of(self, held: RunningJob, view: ClusterView, kept: _NodeFeatures) -> _Spread:
        spreads = kept.spreads
        found = spreads.get(held.id)
        if found is None or found.assignments is not held.assignments:
            cells = self._cells(held.job, [held.assignments], view, kept, ONE_SLICE, is_new=False)
            on: dict[int, _Sums] = dict(zip(cells.nodes, cells.adds.tolist(), strict=True))
            workers = sum([task.role is Role.WORKER for task in held.assignments])
            found = spreads[held.id] = _Spread(held.assignments, cells, on, linear_speed(held.job, workers))
        return found

    def _cells(
        self,
        job: Job,
        placements: Sequence[Sequence[Assignment]],
        view: ClusterView,
        kept: _NodeFeatures,
        slices: Slices,
        *,
        is_new: bool,
    ) -> _Cells:
        of: list[int] = []
        number: list[int] = []
        nodes: list[int] = []
        values: list[tuple[float, ...]] = []  # features of the job here, then what it adds to its node's sums
        static, all_gradients = self._static_of(job)
        for k, placement in enumerate(placements):
            counts = _counts(placement, view)
            workers = sum([each[0] for each in counts.values()])
            servers = sum([each[1] for each in counts.values()])
            step_ms = worker_step_ms(job, workers)
            gradients = all_gradients if len(counts) > 1 else 0.0
            whole = (float(is_new), workers, servers, len(counts), float(step_ms > 0), step_ms, 0.0, 0.0)
            of += [k] * len(counts)
            number += range(len(counts))
            nodes += counts
            for m, (here, serving, cores, gpus) in counts.items():
                traffic_ms = traffic_bytes(gradients, workers, servers, here, serving) / kept.bytes_per_ms[m]
                share = min(_MOST_TRAFFIC_SHARE, traffic_ms / step_ms) if step_ms > 0 else 0.0
                adds = (1.0, here + serving, cores, gpus, share)
                rate = kept.peer_bytes_per_ms[m]
                links = (float(rate < np.inf), peer_bytes(all_gradients, servers, here) / rate)
                values.append((*whole, here, serving, traffic_ms, share, *adds, *links))
            slices.pause()
        rows = np.zeros((len(nodes), PART_FEATURES), dtype=np.float32)
        found = np.array(values).reshape(-1, _JOB_COLUMNS + 5 + 2)
        if nodes:
            rows[:, :_STATIC] = static
            rows[:, _OF_JOB] = found[:, :_JOB_COLUMNS]
            _encode(rows[:, _OF_JOB], _OF_JOB)
            rows[:, _OF_NODE] = kept.hardware.take(nodes, axis=0)
            rows[:, _OF_LINKS] = found[:, -2:]
            _encode(rows[:, _OF_LINKS], _OF_LINKS)
        return _Cells(of, number, nodes, rows, found[:, _JOB_COLUMNS:-2])

    def _static_of(self, job: Job) -> tuple[Float32, float]:
        """The job's own features, and the bytes of its gradients in float32."""
        found = self._static.get(job.id)
        if found is None or found[0] is not job:
            gradients = params_millions(job.model, job.params_millions) * 4e6
            found = self._static[job.id] = (job, encode_job(job), gradients)
        return found[1], found[2]

    def _of(self, view: ClusterView) -> _NodeFeatures:
        kept = self._kept.get(view)
        if kept is None or kept.layout_stamp != view.nodes.layout_stamp:
            latest = self._latest.get(view.lineage)
            if latest is None or latest.layout_stamp != view.nodes.layout_stamp:
                latest = self._latest[view.lineage] = _begun(view)
            kept = self._kept[view] = latest.of_fork()
        return kept


def _begun(view: ClusterView) -> _NodeFeatures:
    cores, gbps, gpus = (
        view.nodes.capacity[CPU],
        view.nodes.capacity[NETWORK],
        view.nodes.gpu_exists.sum(axis=1).astype(np.float64),
    )
    hardware = np.stack([cores, gbps, gpus, _gpu_speeds(view)], axis=1).astype(np.float32)
    _encode(hardware, _OF_NODE)
    return _NodeFeatures(
        layout_stamp=view.nodes.layout_stamp,
        hardware=hardware,
        bytes_per_ms=_per_ms(gbps),
        peer_bytes_per_ms=_per_ms(view.nodes.hardware[_LINKS]),
        capacity=np.stack([np.maximum(cores, 1e-9), np.maximum(gpus, 1.0)], axis=1),
        sums=np.zeros((view.nodes.size, 5)),
        stamps=np.full(view.nodes.size, -1, dtype=np.int64),
        spreads=Bounded(_REMEMBERED),
    )


def _per_ms(gbps: FloatArray) -> list[float]:
    """Bytes that each line carries in a millisecond, infinite if unknown."""
    rates: list[float] = np.where(gbps > 0, _GIGABIT_PER_MS * gbps, np.inf).tolist()
    return rates


def _gpu_speeds(view: ClusterView) -> FloatArray:
    """(M,) speed of each node's first GPU, over the mean of the cluster's GPUs; 1 if it has none."""
    raw = np.array([gpu_relative_speed(n.gpus[0].model) if n.gpus else 0.0 for n in view.nodes.records])
    count = np.array([len(n.gpus) for n in view.nodes.records])
    mean = float((raw * count).sum() / max(1, count.sum())) or 1.0
    return np.where(raw > 0, raw / mean, 1.0)


def _encode(values: Float32, columns: slice) -> None:
    """Writes (N, columns) as features over the values: scaled, and logarithms for some columns."""
    of = slice(columns.start - _STATIC, columns.stop - _STATIC)
    np.log1p(values, out=values, where=_IS_LOG[of])
    values *= _SCALES[of]


def traffic_bytes(gradients: float, workers: float, servers: float, here: float, serving: float) -> float:
    """Bytes per iteration through the NIC of a node with `here` workers and `serving` parameter servers, the busier
    direction, of a job on several nodes whose gradients take so many bytes: 2(n−1)/n of them in a ring of n workers; to
    and from parameter servers the part that is not on one node (each of P holds 1/P of the parameters)."""
    if servers == 0:
        return 2.0 * (workers - 1.0) / max(1.0, workers) * gradients if here else 0.0
    return gradients * (here * (servers - serving) + (workers - here) * serving) / servers


def peer_bytes(gradients: float, servers: float, here: float) -> float:
    """Bytes per iteration through the link of each of `here` workers to its peers in the node, in a ring of them; a job
    with parameter servers has none."""
    return 2.0 * (here - 1.0) / here * gradients if servers == 0 and here > 1 else 0.0


def _counts(placement: Sequence[Assignment], view: ClusterView) -> dict[int, tuple[float, float, float, float]]:
    """Per node: workers, parameter servers, cores, GPUs. Nodes the view lacks are passed over."""
    counts: dict[int, tuple[float, float, float, float]] = {}
    for task in placement:
        m = view.nodes.index.get(task.node)
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


def _stacked(running: Sequence[RunningJob], spreads: Sequence[_Spread]) -> _There:
    if not spreads:
        return _There([], [], np.zeros((0, PART_FEATURES), np.float32), np.zeros((0, 5)))
    cells = [spread.cells for spread in spreads]
    there = _There(
        [i for i, each in enumerate(cells, 1) for _ in each.nodes],
        [m for each in cells for m in each.nodes],
        np.concatenate([each.rows for each in cells]),
        np.concatenate([each.adds for each in cells]),
    )
    if any(held.speed > 0 for held in running):
        seen = zip(running, spreads, strict=True)
        observed = np.array([0.0, *(relative_speed(held.speed, spread.linear) for held, spread in seen)])[there.jobs]
        there.rows[:, _HAS_SPEED] = observed > 0
        there.rows[:, _SPEED] = observed
    return there


def _filled(
    count: int,
    fresh: _Cells,
    there: _There,
    places: dict[int, int],
    sums: FloatArray,
    capacity: FloatArray,
    neighbours: tuple[RunningJob, ...],
) -> PartTokens:
    """Per candidate, of which there are `count`: the running jobs' rows, then the new job's, with the node sums as they
    would be. `places` numbers the nodes of `sums` and `capacity`. Writes `fresh`."""
    before = len(there.nodes)
    longest = before + max(fresh.number, default=-1) + 1
    parts = np.zeros((count, longest, PART_FEATURES), dtype=np.float32)
    job, node = ids = np.full((2, count, longest), PADDING, dtype=np.int64)
    at_node = places.__getitem__
    local, here = [*map(at_node, there.nodes)], [*map(at_node, fresh.nodes)]
    pairs = [*zip(fresh.placement, fresh.number, here, strict=True)]
    token = np.array([k * longest + before + number for k, number, _ in pairs], dtype=np.int64)
    place = np.array([k * len(places) + at for k, _, at in pairs], dtype=np.int64)
    carried = sums[None].repeat(count, axis=0)  # (K, places, 5)
    by_place = carried.reshape(-1, 5)
    by_place[place] += fresh.adds
    carried[..., _HELD] /= capacity
    fresh.rows[:, _SUMS] = _scaled(by_place.take(place, axis=0), fresh.adds)
    parts[:, :before], ids[:, :, :before] = there.rows, np.array((there.jobs, local), dtype=np.int64)[:, None]
    parts[:, :before, _SUMS] = _scaled(carried.take(local, axis=1), there.adds)
    parts.reshape(-1, PART_FEATURES)[token] = fresh.rows
    job.reshape(-1)[token], node.reshape(-1)[token] = 0, here
    return PartTokens(parts, job, node, neighbours, places)


def _scaled(totals: FloatArray, own: FloatArray) -> FloatArray:
    """(…, 5) node sums, cores and GPUs as shares of the node's, as features: traffic without the job's own."""
    totals[..., _TRAFFIC_OF_OTHERS] -= own[:, _TRAFFIC_OF_OTHERS]
    totals *= _SUM_SCALES
    return totals
