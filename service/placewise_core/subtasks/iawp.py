"""Node scope: ready subtasks of pipelines to the CPU cores and GPUs of one node (IAWP).

Needs of each subtask its speedup and, for those on GPUs, the metrics of equation (6). Assigns and says why not; never
holds anything, and never moves a subtask that runs.
"""

from collections.abc import Callable, Mapping, Sequence

from placewise_core.basics.arrays import FloatArray
from placewise_core.domain.cluster import NodeState
from placewise_core.domain.decision import Blocker, JobDecision, Outcome, Reason
from placewise_core.domain.job import Job
from placewise_core.subtasks.baselines import EctRound, PatsRound, RandomRound, untimed
from placewise_core.subtasks.contention import ContentionRound
from placewise_core.subtasks.graph import check_pipeline
from placewise_core.subtasks.metrics import KnownMetrics, SubtaskMetrics, column_scales, cosine, gpu_vector
from placewise_core.subtasks.round import IawpSettings, Ready, SubtaskRound
from placewise_core.subtasks.units import GpuUnit, units_of
from placewise_core.view.view import ClusterView

__all__ = ["AsWritten", "IawpSettings", "SubtaskScheduler", "subtask_schedulers"]


class SubtaskScheduler:
    """One set of rules under the name it is asked for and logged with; IAWP's if none is given."""

    def __init__(
        self, settings: IawpSettings | None = None, rules: type[SubtaskRound] = ContentionRound, name: str = "iawp"
    ) -> None:
        self.name, self.rules = name, rules
        self._settings = settings or IawpSettings()
        # Where metrics come from that the caller does not give: known ones, or those a bundle completes.
        self.metrics_of: Callable[[ClusterView], SubtaskMetrics] = KnownMetrics.from_view
        # What an answer says that is not as the rules have it, whatever is asked.
        self.lack = ""

    def caveat(self, jobs: Sequence[Job], view: ClusterView) -> str:
        """What these rules lack to decide these jobs as they should; "" for nothing."""
        return untimed(jobs, view) if self.rules is EctRound else self.lack

    def assign(
        self,
        jobs: Sequence[Job],
        node_id: str,
        view: ClusterView,
        now_s: float,
        metrics: SubtaskMetrics | None = None,
        seed: int = 0,
    ) -> list[JobDecision]:
        """One decision per job, assignments in the order they were made, blockers for the rest. Raises
        InvalidRequestError for subtasks that form no DAG, KeyError for an unknown node."""
        for i, job in enumerate(jobs):
            check_pipeline(job, f"jobs[{i}].subtasks")
        m = view.nodes.index[node_id]
        played = self._played(m, view, jobs, metrics or self.metrics_of(view), now_s, seed)
        if played is None:
            return [_unusable(job, view, m, now_s) for job in jobs]
        return played.decisions(jobs)

    def starts(
        self,
        jobs: Sequence[Job],
        node_id: str,
        view: ClusterView,
        now_s: float,
        metrics: SubtaskMetrics | None = None,
        seed: int = 0,
    ) -> list[tuple[str, str, str]]:
        """(job id, subtask id, unit) of the subtasks to start, without decisions and reasons: for hosts that ask often,
        and whose pipelines are known to be DAGs."""
        played = self._played(view.nodes.index[node_id], view, jobs, metrics or self.metrics_of(view), now_s, seed)
        return [] if played is None else [(r.job.id, r.subtask.id, unit) for r, unit in played.made]

    def open_units(self, jobs: Sequence[Job], node_id: str, view: ClusterView, now_s: float) -> tuple[str, ...]:
        """The units that these subtasks may be given: idle cores, and GPUs that no whole job has to itself."""
        m = view.nodes.index[node_id]
        if not view.usable(now_s)[m]:
            return ()
        units = units_of(view, m, jobs, self.metrics_of(view))
        return (*units.idle_cores, *(f"gpu{gpu.index}" for gpu in units.gpus))

    def _played(
        self, m: int, view: ClusterView, jobs: Sequence[Job], metrics: SubtaskMetrics, now_s: float, seed: int
    ) -> SubtaskRound | None:
        """A finished round; None on a node that is not used now."""
        if not view.usable(now_s)[m]:
            return None
        played = self.rules(view, m, jobs, metrics, self._settings, seed)
        played.play()
        return played


class AsWritten(SubtaskRound):
    """Algorithm 2, for any number of cores and GPUs.

    In turns the GPU queue, while it has a place, takes the subtask with the largest speedup and an idle core the one
    with the least, until the two ends meet. Then the GPU with most room takes from the queue the subtask least similar
    to those on it: priority = 1 / mean cosine (6), and on an empty GPU the largest speedup.
    """

    def share_out(self) -> None:
        """Lines 7–12: both ends of the order of speedups, in turns."""
        places = self.settings.queue_length * len(self.units.gpus)
        while self.ready:
            before = len(self.ready)
            if len(self.queue) < places and self.wants_gpu(self.ready[-1]):
                self.queue.append(self.ready.pop(self.largest()))
            if self.ready and self.units.idle_cores:
                self.to_core(self.ready.pop(0))
            if len(self.ready) == before:
                break

    def wants_gpu(self, candidate: Ready) -> bool:
        """Lines 10–12 take the largest speedup, whatever it is."""
        return candidate.subtask.has_gpu_version and bool(self.units.gpus)

    def dispatch(self) -> None:
        """Lines 13–20, one subtask at a time: each one changes the comparison for the next."""
        by_gpu = self._vectors()
        queued = (v for vectors in by_gpu.values() for v in vectors.values())
        scales = column_scales([*queued, *(v for gpu in self.units.gpus for v in gpu.running)])
        while self.queue:
            open_gpus = [(gpu, takers) for gpu in self.units.gpus if (takers := self._takers(gpu, by_gpu[gpu.index]))]
            if not open_gpus:
                break
            gpu, takers = min(open_gpus, key=lambda entry: (entry[0].util, len(entry[0].running), entry[0].index))
            vectors = by_gpu[gpu.index]
            running = [v / scales for v in gpu.running]
            chosen = max(takers, key=lambda r: _priority(r, [cosine(vectors[id(r)] / scales, v) for v in running]))
            gpu.take(chosen.job.id, vectors[id(chosen)], self.memory_gib(chosen), 1.0 / self.settings.max_per_gpu)
            self.to_gpu(chosen, gpu)

    def _vectors(self) -> dict[int, dict[int, FloatArray]]:
        """G of every queued subtask on each GPU. Known metrics are the same on all."""
        sources = {gpu.index: self.metrics.on(gpu.index) for gpu in self.units.gpus}
        by_source = {
            id(source): {id(r): gpu_vector(r.subtask, source) for r in self.queue} for source in {*sources.values()}
        }
        return {g: by_source[id(source)] for g, source in sources.items()}

    def _takers(self, gpu: GpuUnit, vectors: Mapping[int, FloatArray]) -> list[Ready]:
        limits = self.settings
        if not gpu.is_below(limits.gpu_util_limit, limits.gpu_memory_limit) or len(gpu.running) >= limits.max_per_gpu:
            return []
        return [r for r in self.queue if gpu.admits(r.job.id, vectors[id(r)], self.memory_gib(r))]


def _priority(candidate: Ready, similarities: Sequence[float]) -> tuple[float, float]:
    """1 / mean cosine, then speedup; infinite on an empty GPU or beside nothing alike."""
    mean = sum(similarities) / len(similarities) if similarities else 0.0
    return (1.0 / mean if mean > 0 else float("inf"), candidate.speedup)


def subtask_schedulers() -> dict[str, SubtaskScheduler]:
    """Every set of rules for node scope, by name."""
    rules: dict[str, type[SubtaskRound]] = {
        "iawp": ContentionRound,
        "iawp-paper": AsWritten,
        "ect": EctRound,
        "pats": PatsRound,
        "random": RandomRound,
    }
    return {name: SubtaskScheduler(rules=chosen, name=name) for name, chosen in rules.items()}


def _unusable(job: Job, view: ClusterView, m: int, now_s: float) -> JobDecision:
    state = view.nodes.records[m].state
    if state is not NodeState.READY:
        reason = Reason.NODE_DRAINING if state is NodeState.DRAINING else Reason.NODE_DOWN
    else:
        reason = Reason.STALE_TELEMETRY if view.is_stale(now_s)[m] else Reason.THERMAL_LIMIT
    blocker = Blocker(reason, nodes=1, message=f"node {view.nodes.records[m].id} is not used now")
    return JobDecision(job_id=job.id, outcome=Outcome.WAIT, blockers=(blocker,))
