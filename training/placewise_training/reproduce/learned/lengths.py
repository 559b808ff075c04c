"""How well lengths are learned from jobs that ended, and whether mean JCT gains by it.

    python -m placewise_training.reproduce.learned.lengths --out docs/learning/lengths.json [--part errors|jct]

Errors: jobs of a trace come in order, each is estimated from those that ended before, and then ends itself. They are
counted by how many jobs of its model, user and shape had ended: 1, 3, 10, 30 or 100, up to twice as many. Beside the
estimate stand the mean of these jobs' ln(length) alone and the service's value for a job that declares nothing. The
constants of the estimator were chosen on the first halves of ms_itp clusters 01 and 05, the first quarter of 09 and the
first 15 % of Philly; here are the second half of ms_itp 01 and the shipped cut of Philly, which is later. The user is
the virtual cluster, and no trace names models.

JCT: windows of jobs that declare no length, run with the setting off and on, and with true lengths declared, under
equal seeds. Every run begins with nothing learned.
"""

import argparse
import heapq
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from placewise_core.domain.cluster import QueueSettings
from placewise_core.domain.job import Job, JobId, Resources
from placewise_core.domain.traces import TraceJob
from placewise_core.speed.learned.durations import HALVING_S, Durations, kinds_of
from placewise_core.speed.learned.sums import Sums, sums_of
from placewise_training.lab.origin import origin
from placewise_training.reproduce.harmony.runs import misdeclared
from placewise_training.sim.discipline import Discipline
from placewise_training.sim.gangs.engine import SimOptions, Simulation
from placewise_training.sim.hardware import NodeSpec, harmony_cluster, uniform_cluster
from placewise_training.sim.jobs import SimJob, gang
from placewise_training.sim.policies import admission_policy, placement_policy
from placewise_training.sim.speed.composed import ComposedSpeed
from placewise_training.sim.statistics import Estimate, estimate, paired_change
from placewise_training.sim.traces import TraceMapping, read_jobs
from placewise_training.sim.truths import make_truth
from placewise_training.sim.workloads import HarmonyWorkload

REPORTS = (1, 3, 10, 30, 100)
POLICIES = ("fifo", "qos", "proteus", "proteus-qos")
SEEDS = tuple(range(91_000, 91_010))
_WINDOW, _GPUS_PER_NODE, _ASKED_S = 300, 8, 60.0
_SHIPPED_S = QueueSettings().tau_s  # what admission takes for the length of a job that declares none


@dataclass(frozen=True, slots=True)
class Guess:
    """One job: |ln(value / true length)| of three values, the reports of its group, and whether the interval held."""

    reports: float
    learned: float
    mean: float
    shipped: float
    is_inside: bool


def guesses(jobs: Sequence[TraceJob]) -> Iterator[Guess]:
    """Of the jobs whose own group had a report."""
    known, counts = Durations(), dict[str, Sums]()
    running: list[tuple[float, int, Job, float]] = []
    for number, row in enumerate(jobs):
        while running and running[0][0] <= row.submit_s:
            end_s, _, job, x = heapq.heappop(running)
            for kind in kinds_of(job):
                known.learn(kind, sums_of(known.row(kind)).added(x, end_s, HALVING_S).row)
            own = kinds_of(job)[-1]
            counts[own] = counts.get(own, Sums()).added(x, 0.0, HALVING_S)  # without decay
        job = Job(JobId(row.id), user=row.queue, groups=gang(row.gpus, worker_demand=Resources(gpus=1.0)))
        x = math.log(row.duration_s * row.gpus)
        found, own_sums = known.length_of(job), counts.get(kinds_of(job)[-1])
        if found is not None and own_sums is not None:
            yield Guess(
                own_sums.count,
                abs(math.log(found.single_gpu_s) - x),
                abs(own_sums.sum / own_sums.count - x),
                abs(math.log(_SHIPPED_S) - x),
                math.log(found.low_s) <= x <= math.log(found.high_s),
            )
        heapq.heappush(running, (row.submit_s + row.duration_s, number, job, x))


def errors(trace: str) -> list[dict[str, object]]:
    """A row for each number of reports: means with their 95 % intervals, and the coverage of the 90 % interval."""
    jobs = read_jobs(trace)
    found = list(guesses(jobs if trace == "philly" else jobs[len(jobs) // 2 :]))
    rows = []
    for least in REPORTS:
        of = [guess for guess in found if least <= guess.reports < 2 * least]
        if len(of) < 2:
            continue
        means = {name: _pair(estimate([getattr(each, name) for each in of])) for name in ("learned", "mean", "shipped")}
        coverage = float(np.mean([each.is_inside for each in of]))
        rows.append({"trace": trace, "reports": least, "jobs": len(of), **means, "coverage": coverage})
    return rows


def _pair(value: Estimate) -> list[float]:
    return [round(value.mean, 4), round(value.half_width, 4)]


Made = tuple[Sequence[NodeSpec], list[SimJob]]


def _of_trace(trace: str) -> Callable[[ComposedSpeed, int], Made]:
    def make(truth: ComposedSpeed, seed: int) -> Made:
        """Jobs of the cut in a row, another part of it for each seed, on half the GPUs that they would use at once at
        most if none had to wait."""
        rows = read_jobs(trace)
        first = (seed - SEEDS[0]) * _WINDOW % (len(rows) - _WINDOW)
        part = rows[first : first + _WINDOW]
        gpus = max(_most_at_once(part) / 2.0, *(job.gpus for job in part))
        mapping = TraceMapping(has_classes=True)
        nodes = uniform_cluster(math.ceil(gpus / _GPUS_PER_NODE), _GPUS_PER_NODE, mapping.gpu_model)
        jobs = list(mapping.generate(part, truth, seed))
        for job, row in zip(jobs, part, strict=True):
            job.job = replace(job.job, user=row.queue, queue="")
        return nodes, jobs

    return make


def _most_at_once(jobs: Sequence[TraceJob]) -> int:
    """The most GPUs in use if every job started when it came."""
    changes = sorted(
        [(job.submit_s + job.duration_s, -job.gpus) for job in jobs] + [(job.submit_s, job.gpus) for job in jobs]
    )
    return int(np.cumsum([gpus for _, gpus in changes]).max())


def _harmony(spread: float) -> Callable[[ComposedSpeed, int], Made]:
    def make(truth: ComposedSpeed, seed: int) -> Made:
        """Five users, each with a usual length for each model and number of workers: e^(spread·N(0, 1)) times the
        drawn one, if `spread` > 0."""
        jobs = HarmonyWorkload(jobs=_WINDOW, pattern="poisson").generate(truth, seed)
        rng = np.random.default_rng((seed, 21))
        usual: dict[tuple[str, str, float], float] = {}
        for job in jobs:
            user = f"user-{int(rng.integers(5))}"
            factor = usual.setdefault(
                (user, job.job.model, job.job.gpus), float(np.exp(spread * rng.standard_normal()))
            )
            declaring = replace(
                job.job,
                user=user,
                single_gpu_s=factor * job.job.single_gpu_s,
                total_epochs=factor * job.job.total_epochs,
            )
            job.job, job.samples, job.ideal_s = declaring, factor * job.samples, factor * job.ideal_s
        return harmony_cluster(), jobs

    return make


WORKLOADS: Mapping[str, Callable[[ComposedSpeed, int], Made]] = {
    "philly": _of_trace("philly"),
    "ms_itp": _of_trace("ms_itp"),
    "harmony, lengths at random": _harmony(0.0),
    "harmony, lengths by user": _harmony(1.0),
}


def jct_s(workload: str, policy: str, lengths: str, seed: int) -> float:
    """Mean JCT of a run whose jobs' lengths are "off", "on" (learned) or "declared".

    Raises ValueError if not all jobs that fit have ended."""
    truth = make_truth("judge", seed)
    nodes, jobs = WORKLOADS[workload](truth, seed)
    simulation = Simulation(
        nodes,
        jobs if lengths == "declared" else misdeclared(jobs, None, seed),
        truth,
        placement_policy("consolidate"),
        admission=admission_policy(policy),
        options=SimOptions(discipline=Discipline(every_s=_ASKED_S), learns_durations=lengths == "on"),
        seed=seed,
    )
    metrics = simulation.run().metrics
    if metrics.unfinished:
        raise ValueError(f"{metrics.unfinished} jobs of {workload} did not end under {policy}")
    return metrics.avg_jct_s


@dataclass(frozen=True, slots=True)
class Case:
    """Mean JCT in seconds by seed, and the change by learned and by declared lengths with its 95 % half-width."""

    workload: str
    policy: str
    off_s: list[float]
    on_s: list[float]
    declared_s: list[float]
    learned: list[float]
    declared: list[float]


def case(workload: str, policy: str, seeds: Sequence[int]) -> Case:
    """Every window of one workload under one policy."""
    off, on, declared = ([jct_s(workload, policy, how, seed) for seed in seeds] for how in ("off", "on", "declared"))
    return Case(workload, policy, off, on, declared, _pair(paired_change(on, off)), _pair(paired_change(declared, off)))


def main() -> None:
    """Makes the tables, prints them and writes all of it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--part", choices=("errors", "jct"), help="only this one")
    parser.add_argument("--workload", action="append", choices=list(WORKLOADS), help="only these")
    parser.add_argument("--policy", action="append", choices=POLICIES, help="only under these")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="windows of each workload")
    args = parser.parse_args()
    result: dict[str, object] = {"commit": origin()["commit"], "seeds": list(SEEDS[: args.seeds])}
    if args.part != "jct":
        result["errors"] = rows = [row for trace in ("philly", "ms_itp") for row in errors(trace)]
        for row in rows:
            print(row, flush=True)
    if args.part != "errors":
        cases = []
        for workload in args.workload or WORKLOADS:
            for policy in args.policy or POLICIES:
                cases.append(case(workload, policy, SEEDS[: args.seeds]))
                print(workload, policy, cases[-1].learned, cases[-1].declared, flush=True)
        result["jct"] = [asdict(each) for each in cases]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
