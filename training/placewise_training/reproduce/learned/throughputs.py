"""How well throughput is learned from reports, and whether mean JCT gains by it.

    python -m placewise_training.reproduce.learned.throughputs --out docs/learning/throughputs.json [--part errors|jct]

Errors: measured steps that ship (training/placewise_training/data/open/step_repeats.csv) come one by one in an order
drawn by seed; each is predicted from those before, and then counts as a report. They are counted by the reports of
their model, GPU type and shape (nodes, GPUs) before: none, 1, 3, 10, 30 or 100, up to twice as many. Beside the
estimate stand the mean ln(samples/s) of the same reports, their mean ratio to the forecast without any shrinkage, and
the forecast of the shipped throughput model. Three cases: the bundle lacks the network's profiles, or those of the GPU
type, or nothing; in the last, the rows themselves are in the shipped fit. The estimator's constants were chosen on
NeuMF and ResNet18 on T4 with `--choose` and seeds below 1000; here are the other networks.

JCT: jobs whose number of GPUs admission chooses, with the setting off and on, under equal seeds and two truths. Every
run begins with nothing learned.
"""

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from placewise_core.domain.job import Job, JobId
from placewise_core.domain.model_names import canonical
from placewise_core.speed.learned.sums import Sums, sums_of
from placewise_core.speed.learned.throughputs import HALVING_S, Row, Throughputs
from placewise_core.speed.params import normalised
from placewise_core.speed.throughput import ThroughputModel
from placewise_models.bundle import THROUGHPUT
from placewise_training.lab.origin import origin
from placewise_training.sim.discipline import Discipline
from placewise_training.sim.gangs.engine import SimOptions, Simulation
from placewise_training.sim.hardware import qos_cluster
from placewise_training.sim.policies import admission_policy, placement_policy, shipped
from placewise_training.sim.statistics import Estimate, paired_change
from placewise_training.sim.truths import make_truth
from placewise_training.sim.workloads import ElasticWorkload
from placewise_training.throughput.data import Group, measured_groups
from placewise_training.throughput.judge import interval

REPORTS = (0, 1, 3, 10, 30, 100)
CASES = ("network unknown", "GPU type unknown", "both known")
CHOSEN_ON = ("NeuMF", "ResNet18")
ERROR_SEEDS = (95_000, 95_001, 95_002)
POLICIES = ("qos", "proteus", "proteus-qos", "tetris-perf")
SEEDS = tuple(range(95_000, 95_010))
_JOBS, _PER_HOUR, _ASKED_S = 200, 20.0, 60.0


@dataclass(frozen=True, slots=True)
class Report:
    """One measured step. `x` is ln(samples per second)."""

    job: Job
    row: Row
    x: float

    @property
    def shape(self) -> tuple[int, int]:
        return self.row.nodes, self.row.gpus


@dataclass(frozen=True, slots=True)
class Guess:
    """One report: |ln(value / measured)| of four values, the reports of its group, and whether the interval held. NaN
    for a mean of nothing."""

    group: str
    reports: float
    learned: float
    mean: float
    ratio: float
    shipped: float
    is_inside: bool


def reports_of(group: Group) -> list[Report]:
    """The steps of one network on one GPU type, as jobs would report them."""
    rows, found = group.rows, []
    for i, (nodes, gpus, batch) in enumerate(zip(rows.nodes, rows.gpus, rows.local_batch * rows.gpus, strict=True)):
        job = Job(JobId(""), group.model, batch_size=round(batch), params_millions=group.params_millions)
        row = Row(canonical(group.model), group.gpu_model, job.batch_size, int(nodes), int(gpus))
        found.append(Report(job, row, math.log(rows.throughput[i])))
    return found


def guesses(reports: Sequence[Report], model: ThroughputModel) -> Iterator[Guess]:
    """Of each report from those before, and from nothing if there is none."""
    known = Throughputs()
    raw, ratios = dict[str, Sums](), dict[str, Sums]()
    for each in reports:
        row, (nodes, gpus) = each.row, each.shape
        match = model.match(each.job, row.gpu_type)
        forecast = math.log(float(model.throughput(each.job, match, nodes, gpus / nodes)))
        found = known.estimate(model, each.job, match, row.gpu_type, each.shape)
        group = f"{row.model} {row.gpu_type} {nodes} {gpus}"
        of_group, of_ratios = raw.get(group, Sums()), ratios.get(group, Sums())
        if found is not None:
            yield Guess(
                group,
                of_group.count,
                abs(forecast + found.log_factor - each.x),
                abs(of_group.mean - each.x) if of_group.count else math.nan,
                abs(forecast + of_ratios.mean - each.x) if of_group.count else math.nan,
                abs(forecast - each.x),
                abs(forecast + found.log_factor - each.x) <= found.spread,
            )
        raw[group] = of_group.added(each.x, 0.0, HALVING_S)
        ratios[group] = of_ratios.added(each.x - forecast, 0.0, HALVING_S)
        known.learn(row.kind, sums_of(known.row(row.kind)).added(each.x, 0.0, HALVING_S).row)


def _without(document: Mapping[str, Any], case: str, group: Group) -> ThroughputModel:
    """The shipped model without the profiles that the case lacks."""

    def stays(profile: Mapping[str, Any]) -> bool:
        if case == "network unknown":
            return normalised(profile["model"]) != normalised(group.model)
        return case != "GPU type unknown" or profile["gpu_model"] != group.gpu_model

    return ThroughputModel({**document, "profiles": [each for each in document["profiles"] if stays(each)]})


def found_in(case: str, groups: Sequence[Group], seed: int) -> list[Guess]:
    """Every report of these groups in that case. With an unknown GPU type, all networks on it report by turns."""
    document, rng = shipped().document(THROUGHPUT), np.random.default_rng(seed)
    if case == "GPU type unknown":
        by_type: dict[str, list[Group]] = {}
        for group in groups:
            by_type.setdefault(group.gpu_model, []).append(group)
        streams = list(by_type.values())
    else:
        streams = [[group] for group in groups]
    found: list[Guess] = []
    for stream in streams:
        reports = [report for group in stream for report in reports_of(group)]
        order = rng.permutation(len(reports))
        found += guesses([reports[i] for i in order], _without(document, case, stream[0]))
    return found


def errors(case: str, groups: Sequence[Group], seeds: Sequence[int]) -> list[dict[str, object]]:
    """A row for each number of reports: means, with the 95 % interval over networks and shapes of the learned and the
    shipped value, and the coverage of the 90 % interval."""
    found = [guess for seed in seeds for guess in found_in(case, groups, seed)]
    rows = []
    for least in REPORTS:
        of = [guess for guess in found if least <= guess.reports < max(1, 2 * least)]
        if len(of) < 2:
            continue
        names = np.array([guess.group for guess in of])
        values = {name: np.array([getattr(guess, name) for guess in of]) for name in ("learned", "shipped")}
        means = {
            name: [round(float(each.mean()), 4), *_rounded(interval(each, names))] for name, each in values.items()
        }
        means_alone = {
            name: round(float(np.mean([getattr(guess, name) for guess in of])), 4) for name in ("mean", "ratio")
        }
        coverage = round(float(np.mean([guess.is_inside for guess in of])), 4)
        rows.append(
            {
                "case": case,
                "reports": least,
                "steps": len(of) // len(seeds),
                "groups": len(set(names)),
                **means,
                **(means_alone if least else {}),
                "coverage": coverage,
            }
        )
    return rows


def _rounded(bounds: tuple[float, float]) -> list[float]:
    return [round(bound, 4) for bound in bounds]


def run(truth_name: str, policy: str, seed: int, *, is_learning: bool) -> tuple[float, Mapping[str, int]]:
    """Mean JCT, and how many reports came and counted. Raises ValueError if not all jobs that fit have ended."""
    truth = make_truth(truth_name, seed)
    nodes = qos_cluster()
    simulation = Simulation(
        nodes,
        ElasticWorkload(jobs=_JOBS, per_hour=_PER_HOUR).generate(truth, seed),
        truth,
        placement_policy("consolidate"),
        admission=admission_policy(policy),
        options=SimOptions(discipline=Discipline(every_s=_ASKED_S), learns_throughput=is_learning),
        seed=seed,
    )
    metrics = simulation.run().metrics
    if metrics.unfinished:
        raise ValueError(f"{metrics.unfinished} jobs did not end under {policy}")
    return metrics.avg_jct_s, simulation.reports.counts


@dataclass(frozen=True, slots=True)
class Case:
    """Mean JCT in seconds by seed, its change by learning with the 95 % half-width, and the share of reports that
    counted."""

    truth: str
    policy: str
    off_s: list[float]
    on_s: list[float]
    change: list[float]
    counted: float


def case(truth: str, policy: str, seeds: Sequence[int]) -> Case:
    """All runs under one truth and policy."""
    off = [run(truth, policy, seed, is_learning=False)[0] for seed in seeds]
    on, counts = zip(*[run(truth, policy, seed, is_learning=True) for seed in seeds], strict=True)
    counted = sum(each["counted"] for each in counts) / max(1, sum(each["reports"] for each in counts))
    return Case(truth, policy, off, list(on), _pair(paired_change(list(on), off)), round(counted, 4))


def _pair(value: Estimate) -> list[float]:
    return [round(value.mean, 4), round(value.half_width, 4)]


def main() -> None:
    """Makes the tables, prints them and writes all of it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--part", choices=("errors", "jct"), help="only this one")
    parser.add_argument("--choose", action="store_true", help="errors of the networks that constants are chosen on")
    parser.add_argument("--policy", action="append", choices=POLICIES, help="only under these")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="runs of each case")
    args = parser.parse_args()
    result: dict[str, object] = {"commit": origin()["commit"], "seeds": list(SEEDS[: args.seeds])}
    if args.part != "jct":
        groups = [group for group in measured_groups() if (group.model in CHOSEN_ON) == args.choose]
        seeds = (0, 1) if args.choose else ERROR_SEEDS
        result["errors"] = rows = [row for name in CASES for row in errors(name, groups, seeds)]
        for row in rows:
            print(row, flush=True)
    if args.part != "errors":
        cases = []
        for truth in ("judge", "site"):
            for policy in args.policy or POLICIES:
                cases.append(case(truth, policy, SEEDS[: args.seeds]))
                print(truth, policy, cases[-1].change, cases[-1].counted, flush=True)
        result["jct"] = [asdict(each) for each in cases]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
