"""Does the reward model know when it is lost, and is it better to follow a heuristic then? Trains nothing.

    python -m placewise_training.reward.judge_uncertainty --bundle service/placewise_models/bundles/2026.11 > lost.jsonl

Situations like Harmony's and situations outside of all training (data.unfamiliar), on the judging truth. Per situation:
the error of the new jobs' predicted speeds and how well the spread ranks and sizes it; the share of decisions beyond
the limit; and the average JCT of `search` as it is served, of `search` without a limit, and of the heuristic it falls
back to in the same order, over paired seeds.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placewise_core.domain.job import Job
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.policy import PlacementPolicy, Proposal
from placewise_core.policies.registry import placement_policies
from placewise_core.view.view import ClusterView
from placewise_models.bundle import Bundle
from placewise_models.reward import RewardRuntime
from placewise_training.lab.compare import FIRST_SEED, OrderedBy
from placewise_training.reward.data import Sample, Situation, collate, record
from placewise_training.reward.unfamiliar import SITUATIONS
from placewise_training.sim.arrivals import INTERVAL_S
from placewise_training.sim.discipline import Discipline
from placewise_training.sim.gangs.engine import SimOptions, Simulation
from placewise_training.sim.policies import opened, placement_policy
from placewise_training.sim.statistics import estimate, paired_change
from placewise_training.sim.truths import make_truth

FALLBACK = "consolidate"
_BATCH, _BINS = 64, 5

Array = NDArray[np.float64]


def predicted(scorer: RewardRuntime, samples: Sequence[Sample]) -> tuple[Array, Array]:
    """(N,) each, of the new job of every placement: error of the log-speed, and the spread."""
    wrong: list[Array] = []
    spreads: list[Array] = []
    for start in range(0, len(samples), _BATCH):
        batch = collate(samples[start : start + _BATCH])
        feeds = {name: batch[name] for name in ("tokens", "job", "node")}
        speed, spread = scorer.session.run(("speed", "spread"), feeds)
        rows = np.arange(len(speed))
        at = (np.asarray(batch["job"]) == 0).argmax(axis=1)
        true = np.asarray(batch["speed"], dtype=np.float64)[rows, at]
        wrong.append(np.log(speed[rows, at] / true).astype(np.float64))
        spreads.append(spread[rows, at].astype(np.float64))
    return np.concatenate(wrong), np.concatenate(spreads)


def knowledge(wrong: Array, spread: Array, limit: float) -> dict[str, Any]:
    """How well the spread predicts the error: in rank (Spearman), in size (root mean squares), bin by bin."""
    order = np.argsort(spread)
    return {
        "n": len(wrong),
        "log_error_rms": _rms(wrong),
        "spread_rms": _rms(spread),
        "rank_correlation": rank_correlation(spread, np.abs(wrong)),
        "share_beyond": float((spread > limit).mean()),
        "bins": [[_rms(spread[part]), _rms(wrong[part])] for part in np.array_split(order, _BINS)],
    }


def rank_correlation(a: Array, b: Array) -> float:
    """Spearman's, ties broken by position."""
    first, second = (np.argsort(np.argsort(each, kind="stable"), kind="stable") for each in (a, b))
    return float(np.corrcoef(first, second)[0, 1])


def _rms(values: Array) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def average_jct_s(drawn: Situation, policy: PlacementPolicy) -> tuple[float, float]:
    """Average JCT, and the share of decisions that fell back because the model was unsure."""
    counted = _Counting(policy)
    options = SimOptions(
        discipline=Discipline(every_s=INTERVAL_S, order="policy"),
        belief=make_truth("train", drawn.seed).sharing,
        reports_progress=True,
    )
    jobs = drawn.workload.generate(drawn.truth, drawn.seed)
    metrics = Simulation(drawn.nodes, jobs, drawn.truth, counted, options=options, seed=drawn.seed).run().metrics
    return metrics.avg_jct_s, counted.unsure / max(1, counted.proposed)


class _Counting(PlacementPolicy):
    """A policy, and how often it was unsure."""

    def __init__(self, policy: PlacementPolicy) -> None:
        self.name = policy.name
        self._policy = policy
        self.proposed = self.unsure = 0

    def order(self, jobs: Sequence[Job], view: ClusterView, context: PlaceContext) -> Sequence[Job]:
        return self._policy.order(jobs, view, context)

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        proposal = self._policy.propose(job, view, context)
        if proposal is not None:
            self.proposed += 1
            self.unsure += proposal.fallback_reason.endswith("uncertain")
        return proposal


def contenders(bundle: Bundle) -> dict[str, Callable[[], PlacementPolicy]]:
    """As served, without a limit, and the heuristic alone; all in the order of the bundle's policy net."""
    assert bundle.reward is not None
    unlimited = replace(bundle, reward=replace(bundle.reward, spread_limit=float("inf")))
    return {
        "search": lambda: placement_policy("search", bundle),
        "search without a limit": lambda: placement_policy("search", unlimited),
        FALLBACK: lambda: OrderedBy(placement_policies()[FALLBACK], placement_policy("harmony", bundle)),
    }


def judge(name: str, bundle: Bundle, seeds: Sequence[int]) -> dict[str, Any]:
    """One line of the output."""
    make = SITUATIONS[name]
    scorer = bundle.reward
    assert scorer is not None
    samples = [sample for seed in seeds for sample in record(make(seed))]
    found: dict[str, Any] = {"situation": name, **knowledge(*predicted(scorer, samples), scorer.spread_limit)}
    jct: dict[str, list[float]] = {}
    unsure: list[float] = []
    for title, policy in contenders(bundle).items():
        runs = [average_jct_s(make(seed), policy()) for seed in seeds]
        jct[title] = [seconds for seconds, _ in runs]
        if title == "search":
            unsure = [share for _, share in runs]
    found["fell_back"] = float(np.mean(unsure))
    found["avg_jct_s"] = {title: _interval(estimate(values)) for title, values in jct.items()}
    found["change"] = {
        title: _interval(paired_change(jct["search"], values)) for title, values in jct.items() if title != "search"
    }
    return found


def _interval(found: Any) -> dict[str, float]:
    return {"mean": found.mean, "ci95": found.half_width}


def main(arguments: Sequence[str]) -> None:
    """Prints one JSON object per situation."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bundle", type=Path, required=True, help="directory with reward.onnx, reward.json, policy_*")
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args(arguments)
    for name in SITUATIONS:
        json.dump(judge(name, opened(args.bundle), range(FIRST_SEED, FIRST_SEED + args.seeds)), sys.stdout)
        sys.stdout.write("\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
