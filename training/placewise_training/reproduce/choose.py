"""Chooses the default admission policy by a rule that was written down before its runs.

    python -m placewise_training.reproduce.choose --out docs/admission.json [--workload NAME …]

The rule: among the policies that keep the bound on the wait, the least geometric mean of relative mean JCT, where each
workload with each accuracy of the declared lengths is one case and the best candidate of a case has 1. A policy that is
above 1.15 in any case cannot be chosen, nor one that broke the bound in a run. If none is left, the default stays.

Candidates are all policies with a bound: the papers' baselines and the `-paper` forms have none. The workloads are
those of docs/reproduction.md, and cuts of two traces on which no admission policy was tuned, with rigid and elastic
jobs on as many nodes as are nine tenths busy. Seeds are none that anything was trained or tuned on (docs/truths.md).
"""

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from placewise_core.domain.cluster import QueueSettings
from placewise_training.lab.origin import origin
from placewise_training.reproduce.elastic.trials import JobLog
from placewise_training.reproduce.harmony.runs import misdeclared
from placewise_training.sim.discipline import Discipline
from placewise_training.sim.gangs.engine import SimOptions, Simulation
from placewise_training.sim.hardware import NodeSpec, harmony_cluster, uniform_cluster
from placewise_training.sim.jobs import SimJob
from placewise_training.sim.policies import admission_policy, placement_policy
from placewise_training.sim.speed.composed import ComposedSpeed
from placewise_training.sim.traces import TraceMapping, read_jobs
from placewise_training.sim.truths import make_truth
from placewise_training.sim.workloads import ElasticWorkload, HarmonyWorkload, proteus_workload

CANDIDATES = ("fifo", "proteus", "proteus-qos", "proteus-qos-savable", "qos", "qos-savable")
LENGTHS: Mapping[str, float | None] = {"known": 0.0, "sigma 0.5": 0.5, "sigma 1": 1.0, "unknown": None}
SEEDS = (90_000, 90_001, 90_002)
MOST_RATIO = 1.15
PLACE, TRUTH = "consolidate", "judge"
_TRACE_JOBS, _BUSY, _GPUS_PER_NODE = 300, 0.9, 8
_ASKED_S = 60.0  # a host asks about the jobs that wait every minute

Made = tuple[Sequence[NodeSpec], list[SimJob]]


def _elastic(workload: ElasticWorkload) -> Callable[[ComposedSpeed, int], Made]:
    return lambda truth, seed: (uniform_cluster(4, 4, "2080TI"), workload.generate(truth, seed))


def _harmony(pattern: str) -> Callable[[ComposedSpeed, int], Made]:
    return lambda truth, seed: (harmony_cluster(), HarmonyWorkload(jobs=100, pattern=pattern).generate(truth, seed))


def _trace(name: str, *, is_elastic: bool) -> Callable[[ComposedSpeed, int], Made]:
    def make(truth: ComposedSpeed, seed: int) -> Made:
        """300 jobs of the cut in a row, another part of it for each seed."""
        jobs = read_jobs(name)
        first = (seed - SEEDS[0]) * _TRACE_JOBS % (len(jobs) - _TRACE_JOBS)
        part = jobs[first : first + _TRACE_JOBS]
        span_s = max(1.0, part[-1].submit_s - part[0].submit_s)
        busy = sum(job.gpus * job.duration_s for job in part) / span_s / _BUSY
        gpus = max(busy, *(job.gpus for job in part))
        mapping = TraceMapping(is_elastic=is_elastic, has_classes=True)
        nodes = uniform_cluster(math.ceil(gpus / _GPUS_PER_NODE), _GPUS_PER_NODE, mapping.gpu_model)
        return nodes, list(mapping.generate(part, truth, seed))

    return make


WORKLOADS: Mapping[str, Callable[[ComposedSpeed, int], Made]] = {
    **{f"qos {n:g} per hour": _elastic(ElasticWorkload(jobs=40, per_hour=n)) for n in (5.0, 10.0, 20.0)},
    **{
        f"proteus {data} {arrivals}": _elastic(proteus_workload(data, arrivals, 48))
        for data in ("small", "large")
        for arrivals in ("dispersed", "concentrated")
    },
    **{f"harmony {pattern}": _harmony(pattern) for pattern in ("uniform", "poisson", "google")},
    **{
        f"{trace} {form}": _trace(trace, is_elastic=form == "elastic")
        for trace in ("philly", "ms_itp")
        for form in ("rigid", "elastic")
    },
}


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One run: mean JCT (s), and whether every job started within the bound."""

    workload: str
    lengths: str
    policy: str
    seed: int
    jct_s: float
    keeps_bound: bool


def run(workload: str, lengths: str, policy: str, seed: int) -> CaseResult:
    """Raises ValueError if not all jobs that fit have ended."""
    truth, settings, log = make_truth(TRUTH, seed), QueueSettings(), JobLog()
    nodes, jobs = WORKLOADS[workload](truth, seed)
    simulation = Simulation(
        nodes,
        misdeclared(jobs, LENGTHS[lengths], seed),
        truth,
        placement_policy(PLACE),
        admission=admission_policy(policy),
        options=SimOptions(discipline=Discipline(every_s=_ASKED_S), queue_settings=settings, observers=(log.observe,)),
        seed=seed,
    )
    metrics = simulation.run().metrics
    if metrics.unfinished:
        raise ValueError(f"{metrics.unfinished} jobs of {workload} did not end under {policy}")
    return CaseResult(workload, lengths, policy, seed, metrics.avg_jct_s, keeps_bound(log, settings.bound_s))


def keeps_bound(log: JobLog, bound_s: float) -> bool:
    """False if a younger job started while an older one had waited for longer than the bound and the longest job took.

    Older jobs go first: where many are past their bounds, each waits for those before it.
    """
    longest_s = max(end_s - log.starts_s[name] for name, end_s in log.ends_s.items())
    came_s = {name: job.submit_time_s for name, job in log.jobs.items()}
    return not any(
        came_s[other] > came_s[name] and came_s[name] + bound_s + longest_s < log.starts_s[other] < start_s
        for name, start_s in log.starts_s.items()
        if start_s - came_s[name] > bound_s + longest_s
        for other in log.starts_s
    )


@dataclass(frozen=True, slots=True)
class PolicyRatios:
    """One policy under the rule: geometric mean and worst of its ratios, the case of the worst, its bound."""

    policy: str
    mean_ratio: float
    worst_ratio: float
    worst_case: str
    keeps_bound: bool

    @property
    def may_be_chosen(self) -> bool:
        return self.keeps_bound and self.worst_ratio <= MOST_RATIO


def judge(runs: Sequence[CaseResult]) -> tuple[list[PolicyRatios], str]:
    """The rows, best first, and the policy that the rule chooses; "" if none may be chosen."""
    means: dict[tuple[str, str], dict[str, float]] = {}
    for workload, lengths in dict.fromkeys((each.workload, each.lengths) for each in runs):
        of = [each for each in runs if (each.workload, each.lengths) == (workload, lengths)]
        means[workload, lengths] = {
            policy: float(np.mean([each.jct_s for each in of if each.policy == policy]))
            for policy in dict.fromkeys(each.policy for each in of)
        }
    rows = []
    for policy in dict.fromkeys(each.policy for each in runs):
        ratios = {", ".join(case): of[policy] / min(of.values()) for case, of in means.items()}
        worst = max(ratios, key=lambda case: ratios[case])
        mean = float(np.exp(np.mean(np.log(list(ratios.values())))))
        keeps = all(each.keeps_bound for each in runs if each.policy == policy)
        rows.append(PolicyRatios(policy, mean, ratios[worst], worst, keeps))
    rows.sort(key=lambda row: row.mean_ratio)
    return rows, next((row.policy for row in rows if row.may_be_chosen), "")


def choose(
    about: str, candidates: Sequence[str], workloads: Sequence[str], make: Callable[[str, str, str, int], CaseResult]
) -> None:
    """The command: makes every run of the workloads, prints the rows and the choice, and writes all of it."""
    parser = argparse.ArgumentParser(description=about.split("\n", 1)[0])
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--workload", action="append", choices=workloads, help="only these")
    args = parser.parse_args()
    runs = []
    for workload in args.workload or workloads:
        for lengths in LENGTHS:
            runs += [make(workload, lengths, policy, seed) for policy in candidates for seed in SEEDS]
        print(workload, flush=True)
    rows, chosen = judge(runs)
    for row in rows:
        print(f"{row.policy:22} {row.mean_ratio:6.3f}  worst {row.worst_ratio:6.3f} ({row.worst_case})", flush=True)
    print(f"chosen: {chosen or 'none'}")
    found = {
        "commit": origin()["commit"],
        "chosen": chosen,
        "rows": [asdict(row) for row in rows],
        "runs": [asdict(each) for each in runs],
    }
    args.out.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n", "utf-8")


if __name__ == "__main__":
    choose(__doc__, CANDIDATES, list(WORKLOADS), run)
