"""The paired simulation: candidate and incumbent on windows drawn from the judging stretch, with equal jobs and noise.

Arrivals and mix are blocks of time of that stretch, drawn with replacement; nodes are the log's; speeds are the site's
fit (gate/speed.py). First the fit must show that the incumbent, with its explorers, has the JCT that the log has.
"""

import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from placewise_core.domain.job import Job, JobId
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.policy import PlacementPolicy, Proposal
from placewise_core.policies.profiled.tables import packaged_tables
from placewise_core.view.view import ClusterView
from placewise_training.gate.site import SiteJob, SiteLog
from placewise_training.gate.speed import SiteFit, SiteSpeed
from placewise_training.lab.work.workers import Here, Workers
from placewise_training.log.durations import restricted_mean_s
from placewise_training.sim.discipline import Discipline
from placewise_training.sim.gangs.engine import SimOptions, Simulation
from placewise_training.sim.hardware import NodeSpec
from placewise_training.sim.jobs import SimJob
from placewise_training.sim.speed.base import SpeedModel

MOST_GAP: Final = 0.1  # of the simulated mean JCT from the logged one
WINDOWS: Final = 12
LEAST_WINDOWS: Final = 4
_CHECKS: Final = 4  # simulations of the incumbent, each with noise of its own
_WARM_UP: Final = 0.3  # share of a window whose jobs only fill the cluster
_SEVERAL_JOBS: Final = 1.5  # per request: then the policy orders them

Make = Callable[[], PlacementPolicy]  # that can be sent to another process


@dataclass(frozen=True, slots=True)
class JobResult:
    """One job of a simulation: seconds from arrival to end, its work in seconds, and its slices: queue, size of the
    gang, GPU model of its first node."""

    jct_s: float
    work_s: float
    slices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Credible:
    """The incumbent's mean JCT in the log and simulated, both restricted to `within_s`; `by_seed` are simulations."""

    logged_s: float
    simulated_s: float
    by_seed: tuple[float, ...]
    within_s: float
    jobs: int

    @property
    def gap(self) -> float:
        """Simulated over logged, less 1."""
        return self.simulated_s / self.logged_s - 1.0

    @property
    def is_credible(self) -> bool:
        return abs(self.gap) <= MOST_GAP


@dataclass(frozen=True, slots=True, eq=False)
class Paired:
    """Runs of each window's measured jobs, ours beside theirs; and the same windows on fits to rows drawn with
    replacement."""

    ours: Sequence[Mapping[str, JobResult]]
    theirs: Sequence[Mapping[str, JobResult]]
    ours_redrawn: Sequence[Mapping[str, JobResult]]
    theirs_redrawn: Sequence[Mapping[str, JobResult]]


@dataclass(frozen=True, slots=True)
class Change:
    """Mean of ln(ours / theirs) over W windows and its standard error, √(S² / W + F²): S² is the variance over windows,
    F² the mean square by which a window's change moves with a redrawn fit, which no number of windows averages out."""

    mean: float
    error: float
    windows: int

    @classmethod
    def of(cls, fitted: Sequence[float], redrawn: Sequence[float]) -> "Change | None":
        """None for fewer than LEAST_WINDOWS windows."""
        values, moved = np.asarray(fitted), np.asarray(redrawn) - np.asarray(fitted)
        if len(values) < LEAST_WINDOWS:
            return None
        squared = float(values.var(ddof=1)) / len(values) + float(np.square(moved).mean())
        return cls(float(values.mean()), math.sqrt(squared), len(values))


class SiteSimulation:
    """The judging stretch of a log, to be played again."""

    def __init__(self, log: SiteLog, fit: SiteFit, first_s: float, last_s: float) -> None:
        """`first_s` and `last_s` bound the stretch. Raises ValueError if no job arrived in it."""
        self._log, self._fit = log, fit
        self._span = first_s, last_s
        self._nodes = [NodeSpec(node, node.gpus[0].model if node.gpus else "") for node in log.nodes]
        self._jobs = [one for one in log.jobs if first_s <= one.arrive_s <= last_s]
        if not self._jobs:
            raise ValueError("no job of the log arrived in the judging stretch")
        self._order: Discipline = Discipline(order="policy" if log.jobs_per_request > _SEVERAL_JOBS else "fifo")

    def shares(self) -> Mapping[str, float]:
        """Share of the stretch's jobs that each policy placed; "" is the policy in force."""
        counts = Counter(one.explorer for one in self._jobs)
        return {name: count / len(self._jobs) for name, count in counts.items()}

    def check(self, incumbent: Make, workers: Workers | None = None) -> Credible:
        """The logged jobs, at their own times, after as long a stretch before it as there is. `incumbent` makes the
        policy in force with its explorers."""
        end_s = self._log.end_s
        jct_s = np.array([min(one.start_s + one.run_s, end_s) - one.arrive_s for one in self._jobs])
        is_cut = np.array([not one.has_ended for one in self._jobs])
        within_s = float(jct_s.max())
        logged_s = restricted_mean_s(jct_s, is_cut, within_s)
        check = functools.partial(self._checked_s, incumbent, within_s)
        found = list((workers or Here()).mapped(check, range(_CHECKS)))
        return Credible(logged_s, float(np.mean(found)), tuple(found), within_s, len(self._jobs))

    def _checked_s(self, incumbent: Make, within_s: float, seed: int) -> float:
        """Mean JCT of the logged jobs in one simulation."""
        first_s, last_s = self._span
        before_s, end_s = first_s - (last_s - first_s), self._log.end_s
        played = [one for one in self._log.jobs if before_s <= one.arrive_s <= last_s]
        jobs = [self._sim_job(one, i, one.arrive_s - before_s, seed) for i, one in enumerate(played)]
        ends = self._played(jobs, incumbent(), seed, end_s - before_s, self._fit)
        measured = [job for job, one in zip(jobs, played, strict=True) if one.arrive_s >= first_s]
        left = np.array([ends.get(job.id, (end_s - before_s, ""))[0] - job.submit_time_s for job in measured])
        return restricted_mean_s(left, [job.id not in ends for job in measured], within_s)

    def paired(self, ours: Make, theirs: Make, windows: int = WINDOWS, workers: Workers | None = None) -> Paired:
        """Both policies without explorers on the same windows, each window also on a redrawn fit."""
        found = list((workers or Here()).mapped(functools.partial(self._window_of, ours, theirs), range(windows)))
        return Paired(*([runs[turn] for runs in found] for turn in range(4)))

    def _window_of(self, ours: Make, theirs: Make, seed: int) -> Sequence[Mapping[str, JobResult]]:
        """Runs of one window: ours, theirs, and both on the redrawn fit."""
        jobs, first_s = self._window(seed)
        redrawn = self._fit.redrawn(np.random.default_rng((seed, 72)))
        found = []
        for make, fit in ((ours, self._fit), (theirs, self._fit), (ours, redrawn), (theirs, redrawn)):
            ends = self._played([replace(job) for job in jobs], make(), seed, math.inf, fit)
            found.append(
                {
                    job.id: JobResult(
                        ends[job.id][0] - job.submit_time_s, job.ideal_s, _slices(job.job, ends[job.id][1])
                    )
                    for job in jobs
                    if job.submit_time_s >= first_s and job.id in ends
                }
            )
        return found

    def _window(self, seed: int) -> tuple[list[SimJob], float]:
        """Draws blocks of jobs for the warm-up and the stretch. Gives the end of the warm-up as well."""
        rng = np.random.default_rng((seed, 71))
        first_s, last_s = self._span
        block_s = max((last_s - first_s) / 24.0, 1.0)
        count = math.ceil(24.0 * (1.0 + _WARM_UP))
        by_block: dict[int, list[SiteJob]] = {}
        for one in self._jobs:
            by_block.setdefault(min(23, int((one.arrive_s - first_s) // block_s)), []).append(one)
        jobs: list[SimJob] = []
        for at, drawn in enumerate(rng.integers(24, size=count)):
            for one in by_block.get(int(drawn), ()):
                offset_s = one.arrive_s - first_s - int(drawn) * block_s
                jobs.append(self._sim_job(one, len(jobs), at * block_s + offset_s, seed))
        return sorted(jobs, key=lambda job: job.submit_time_s), 24.0 * _WARM_UP * block_s

    def _sim_job(self, one: SiteJob, number: int, submit_s: float, seed: int) -> SimJob:
        """A copy with a name of its own. It keeps the declared work. A job that failed, or declares none, has the work
        that the fitted speed does in its run time."""
        work_s = one.work_s
        if one.at is not None and (not work_s or (one.has_ended and not one.has_finished)):
            noise = self._fit.residual(one.job.model, np.random.default_rng((seed, number, 0)))
            done_s = one.run_s * math.exp(self._fit.level(one.at) + noise)
            work_s = min(work_s, done_s) if work_s else done_s
        job = replace(one.job, id=JobId(f"{one.job.id}#{number}"), submit_time_s=submit_s)
        work_s = max(1.0, work_s or one.run_s)
        return SimJob(job, work_s, submit_s, number=number, ideal_s=work_s)

    def _speed(self, fit: SiteFit, seed: int) -> SpeedModel:
        """The speeds that the simulation runs by. Subclasses run by a truth instead, to compare the fit with it."""
        return SiteSpeed(fit, seed)

    def _played(
        self, jobs: Sequence[SimJob], policy: PlacementPolicy, seed: int, until_s: float, fit: SiteFit
    ) -> dict[str, tuple[float, str]]:
        """When each job ended, of those that did, and the GPU model of its first node."""
        ends: dict[str, tuple[float, str]] = {}
        gpu_models = {spec.id: spec.gpu_model for spec in self._nodes}

        def note_end(now_s: float, what: str, job: SimJob, places: tuple[str, ...]) -> None:
            if what == "finish":
                ends[job.id] = now_s, gpu_models[min(places)]

        options = SimOptions(
            discipline=self._order,
            belief=packaged_tables().interference,
            reports_progress=True,
            learns_disturbance=True,
            observers=(note_end,),
        )
        Simulation(self._nodes, jobs, self._speed(fit, seed), policy, options=options, seed=seed).run_until(until_s)
        return ends


_SIZES: Final = ((1, "1"), (3, "2 to 3"), (7, "4 to 7"), (math.inf, "8 or more"))


def _slices(job: Job, gpu_model: str) -> tuple[str, ...]:
    tasks = sum(group.count for group in job.groups)
    size = next(name for most, name in _SIZES if tasks <= most)
    return (f"queue {job.queue or '(none)'}", f"gang of {size}", f"GPU {gpu_model or '(unknown)'}")


class Mixture(PlacementPolicy):
    """The policy in force, and explorers for their share of the jobs, drawn by the job's name."""

    def __init__(self, in_force: PlacementPolicy, explorers: Mapping[str, tuple[float, PlacementPolicy]]) -> None:
        self.name = f"{in_force.name} with explorers"
        self._in_force, self._explorers = in_force, explorers

    def order(self, jobs: Sequence[Job], view: ClusterView, context: PlaceContext) -> Sequence[Job]:
        return self._in_force.order(jobs, view, context)

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        turn = float(np.random.default_rng(list(job.id.encode())).random())
        for share, policy in self._explorers.values():
            turn -= share
            if turn < 0 and (found := policy.propose(job, view, context)) is not None:
                return found
        return self._in_force.propose(job, view, context)


def change(paired: Paired, name: str = "") -> Change | None:
    """Of mean JCT, over the jobs that have the slice in theirs."""

    def of(ours: Mapping[str, JobResult], theirs: Mapping[str, JobResult]) -> float:
        both = [job for job in ours if job in theirs and (not name or name in theirs[job].slices)]
        return (
            math.log(sum(ours[job].jct_s for job in both) / sum(theirs[job].jct_s for job in both))
            if both
            else math.nan
        )

    return _change(paired, of)


def p95_slowdown_change(paired: Paired) -> Change | None:
    """Of the 95th percentile of JCT over work."""
    return _change(paired, lambda ours, theirs: math.log(_p95_slowdown(ours) / _p95_slowdown(theirs)))


def _change(paired: Paired, of: Callable[[Mapping[str, JobResult], Mapping[str, JobResult]], float]) -> Change | None:
    """Windows without a job of the slice are left out."""
    fitted = [of(ours, theirs) for ours, theirs in zip(paired.ours, paired.theirs, strict=True)]
    redrawn = [of(ours, theirs) for ours, theirs in zip(paired.ours_redrawn, paired.theirs_redrawn, strict=True)]
    both = [(one, other) for one, other in zip(fitted, redrawn, strict=True) if not math.isnan(one + other)]
    return Change.of([one for one, _ in both], [other for _, other in both])


def _p95_slowdown(runs: Mapping[str, JobResult]) -> float:
    return float(np.quantile([run.jct_s / run.work_s for run in runs.values()], 0.95))
