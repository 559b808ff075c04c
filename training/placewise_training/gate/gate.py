"""Judges one candidate bundle from one log: estimates, paired simulation and safety checks, all of which must hold.

Trains nothing and promotes nothing. A refusal is a result: it names the checks that failed, with their numbers.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from placewise_core.gang.policy import PlacementPolicy
from placewise_core.policies.registry import placement_policies
from placewise_log.store import LogStore
from placewise_models.bundle import MANIFEST, Bundle, BundleError, load
from placewise_models.learned import LEARNED_POLICIES, bundle_explorer
from placewise_training.drift.compare import Drift, drift_of_log
from placewise_training.evaluate.again import CandidatePolicy
from placewise_training.evaluate.estimators import doubly_robust
from placewise_training.evaluate.evaluation import Evaluated, evaluation
from placewise_training.evaluate.intervals import BlockSums, standard_error
from placewise_training.evaluate.logged import Usable
from placewise_training.evaluate.regression import cross_fitted
from placewise_training.evaluate.report import Evaluation
from placewise_training.evaluate.usual import usual_growths
from placewise_training.gate import checks
from placewise_training.gate.checks import Check, Slice
from placewise_training.gate.simulated import (
    WINDOWS,
    Credible,
    Mixture,
    Paired,
    SiteSimulation,
    change,
    p95_slowdown_change,
)
from placewise_training.gate.site import site_log
from placewise_training.gate.speed import SiteFit
from placewise_training.lab.work.workers import Here, Workers
from placewise_training.log.nodes import nodes_of
from placewise_training.log.placed import REWARD, PlacedJob, placed_jobs
from placewise_training.sim.policies import explorers_of, opened, placement_policy, policies_of

_LEAST_IN_SLICE: Final = 40  # decisions of a slice on the judging stretch, for an estimate of it
_LEAST_BLOCKS: Final = 6
_LEAST_KNOWN: Final = 0.5  # share of the nodes: clusters grow, and machines are replaced
RETRAINED: Final = "retrain.json"  # a retraining's facts about its candidate


@dataclass(frozen=True, slots=True)
class GateArgs:
    """The candidate, the log and the terms of a judgement. `policies` are tried on the candidate's nets, the best is
    judged; none: the policy in force if it reads a net, else those that do. `cluster`: "" for the only one in the log.
    `is_brief` leaves the simulation out if a check of the log has failed."""

    log: Path
    candidate: Path
    incumbent: Path
    policies: tuple[str, ...] = ()
    cluster: str = ""
    reward: str = REWARD
    block_min: float = 120.0
    windows: int = WINDOWS
    out: Path | None = None
    is_brief: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class GateVerdict:
    """All that the gate found. `evaluation`, `simulated` and `drift`, of the judging stretch against the log before
    it, are None if it did not come to them."""

    candidate: Mapping[str, str]
    incumbent: Mapping[str, str]
    cluster: str
    policy: str
    checks: Sequence[Check]
    evaluation: Evaluation | None = None
    simulated: Mapping[str, Any] | None = None
    drift: Drift | None = None

    @property
    def is_promoted(self) -> bool:
        return all(check.has_passed for check in self.checks)

    @property
    def failed(self) -> Sequence[Check]:
        return [check for check in self.checks if not check.has_passed]


def gate(args: GateArgs, workers: Workers | None = None) -> GateVerdict:
    """Raises LogError for a log that cannot be read, ValueError for one that holds too little, NeverAskedError."""
    described = [_described(folder) for folder in (args.candidate, args.incumbent)]
    refused = GateVerdict(described[0], described[1], args.cluster, "", ())
    try:
        bundle = load(args.candidate)
    except BundleError as error:
        return replace(refused, checks=[Check("parity and checksums", False, str(error))])
    passed = [Check("parity and checksums", True, f"{bundle.name}: checksums, feature schema and samples hold")]
    digest = LogStore(args.log).digest
    jobs = list(placed_jobs(args.log, args.reward))
    cluster, foreign = _cluster(args.cluster, jobs)
    foreign = foreign or _another_site(bundle, args.log, cluster)
    if foreign is not None:
        return replace(refused, checks=[*passed, foreign])
    incumbent = opened(args.incumbent)
    passed.append(_same_incumbent(jobs, cluster, args.incumbent))
    mine = [one for one in jobs if one.record.cluster == cluster]
    usable = Usable.of(mine, 60.0 * args.block_min, usual_growths(args.log, mine, args.reward))
    names = args.policies or _policies(usable.in_force, bundle)
    candidates = [CandidatePolicy(f"{bundle.name}/{name}", name, bundle) for name in names]
    bound = max(one.reward or 0.0 for one in usable.jobs)
    asked = {"cluster": cluster, "reward": args.reward, "block_min": args.block_min, "windows": args.windows}
    facts = {"log": str(args.log), "digest": digest, **asked}
    workers = workers or Here()
    found = evaluation(args.log, usable, candidates, incumbent, bound, args.out, facts, workers)
    chosen = next(one for one in candidates if one.name == found.evaluation.judgements[0].candidate)
    verdict = replace(refused, cluster=cluster, policy=chosen.policy, evaluation=found.evaluation)
    estimated = _estimated(found)
    of_log = [*passed, *estimated]
    if args.is_brief and not all(check.has_passed for check in of_log):
        return replace(verdict, checks=of_log)
    simulation = _simulated(args, chosen, incumbent, usable, found, workers)
    slices = [*_reward_slices(found), *simulation.slices]
    return replace(
        verdict,
        checks=[*passed, *estimated, *simulation.checks, *checks.slice_checks(slices)],
        simulated=simulation.facts,
        drift=_drift(args, usable, found),
    )


def _drift(args: GateArgs, usable: Usable, found: Evaluated) -> Drift:
    cut_s = min(usable.jobs[i].time_s for i in np.flatnonzero(found.judging))
    cluster = found.evaluation.log["cluster"]
    return drift_of_log(args.log, 0.0, 60.0 * args.block_min, cluster=cluster, cut_s=cut_s)


def _described(folder: Path) -> Mapping[str, str]:
    manifest = folder / MANIFEST
    digest = hashlib.sha256(manifest.read_bytes()).hexdigest() if manifest.is_file() else ""
    return {"name": folder.resolve().name, "digest": digest}


def _cluster(wanted: str, jobs: Sequence[PlacedJob]) -> tuple[str, Check | None]:
    """The cluster that is judged, or why none is."""
    clusters = sorted({one.record.cluster for one in jobs})
    if wanted and wanted not in clusters:
        return wanted, Check(
            "log of this cluster", False, f"the log is of {', '.join(clusters) or 'none'}, not of {wanted}"
        )
    if not wanted and len(clusters) > 1:
        return "", Check("log of this cluster", False, f"the log is of {', '.join(clusters)}: name one with --cluster")
    return wanted or (clusters[0] if clusters else ""), None


def _another_site(candidate: Bundle, log: Path, cluster: str) -> Check | None:
    """A log whose nodes are not those of the log that the candidate learned from, though the clusters share a name. Of
    a candidate that no retraining made, and of a log without views, nothing is known."""
    learned = candidate.documents.get(RETRAINED, {}).get("log", {}).get("nodes", {}).get(cluster, {})
    found = nodes_of(LogStore(log)).get(cluster, {})
    known = sum(learned.get(node) == model for node, model in found.items())
    if not learned or not found or known >= _LEAST_KNOWN * len(found):
        return None
    text = f"{known} of its {len(found)} nodes have name and GPU model as in the log that the candidate learned from"
    return Check("log of this cluster", False, f"{text}: retrain from a log of this {cluster}")


def _same_incumbent(jobs: Sequence[PlacedJob], cluster: str, folder: Path) -> Check:
    """The log's decisions are the incumbent's; older logs do not tell."""
    name, digest = "incumbent of this log", _described(folder)["digest"]
    digests = {one.record.meta.bundle_digest for one in jobs if one.record.cluster == cluster} - {""}
    if not digests:
        return Check(name, True, "the log does not tell which bundle decided")
    if digests == {digest}:
        return Check(name, True, f"all decisions are of bundle {folder.resolve().name}")
    others = ", ".join(sorted(each[:12] for each in digests))
    text = f"decisions are of the bundles {others}, the incumbent is {digest[:12]}"
    return Check(name, False, f"{text}: judge on a log of one incumbent, and name it")


def _policies(in_force: str, bundle: Bundle) -> tuple[str, ...]:
    """The policy in force if it is learned, else those of the bundle that are; the heuristic itself without any."""
    if in_force in LEARNED_POLICIES:
        return (in_force,)
    known = policies_of(bundle)
    return tuple(name for name in LEARNED_POLICIES if name in known and not name.endswith("-paper")) or (in_force,)


def _estimated(found: Evaluated) -> list[Check]:
    """From the log alone."""
    (judgement,) = found.evaluation.judgements
    incumbent = float("nan")
    if judgement.rows:
        log = found.decisions
        incumbent = doubly_robust(log.of_incumbent(), cross_fitted(log)).value
    assert found.conduct is not None
    return [checks.no_loss(judgement, incumbent), *checks.conduct_checks(found.conduct)]


@dataclass(frozen=True, slots=True)
class _Simulated:
    checks: Sequence[Check]
    slices: Sequence[Slice] = ()
    facts: Mapping[str, Any] | None = None


def _simulated(
    args: GateArgs, candidate: CandidatePolicy, incumbent: Bundle, usable: Usable, found: Evaluated, workers: Workers
) -> _Simulated:
    """Fitted to the judging stretch; played for the candidate only if the incumbent has its logged JCT."""
    times = np.array([one.time_s for one in usable.jobs])[found.judging]
    first_s, last_s = float(times.min()), float(times.max())
    log = site_log(LogStore(args.log), found.evaluation.log["cluster"], first_s, args.reward)
    agreed = checks.agreement(log.agreement)
    if not agreed.has_passed:
        return _Simulated([agreed])
    try:
        fit = SiteFit.of([row for row in log.rows if first_s <= row.time_s <= last_s])
        simulation = SiteSimulation(log, fit, first_s, last_s)
    except ValueError as error:
        return _Simulated([agreed, Check("simulation credible", False, f"simulation not credible: {error}")])
    shares = simulation.shares()
    make = partial(_with_explorers, usable.in_force, incumbent, candidate.bundle, shares)
    checked = simulation.check(make, workers)
    facts = {
        "fit": {"rows": len(fit.rows), "held_back_error": fit.error, "noise": float(fit.residuals[""].std())},
        "nodes": len(log.nodes),
        "left_out": dict(log.counts),
        "shares": {name or usable.in_force: share for name, share in shares.items()},
        "credible": _facts(checked),
    }
    if not checked.is_credible:
        return _Simulated([agreed, checks.credible(checked)], (), facts)
    paired = simulation.paired(
        partial(placement_policy, candidate.policy, candidate.bundle),
        partial(placement_policy, usable.in_force, incumbent),
        args.windows,
        workers,
    )
    gained = [agreed, checks.credible(checked), checks.gain(change(paired)), _all_end(paired)]
    return _Simulated(gained, _jct_slices(paired), facts)


def _with_explorers(in_force: str, incumbent: Bundle, candidate: Bundle, shares: Mapping[str, float]) -> Mixture:
    known = explorers_of(incumbent) | _own_explorers(candidate, shares)
    named = {name: (share, known[name]) for name, share in shares.items() if name and name in known}
    return Mixture(placement_policy(in_force, incumbent), named)


def _own_explorers(candidate: Bundle, names: Iterable[str]) -> dict[str, PlacementPolicy]:
    """Those of the names under which the candidate explored."""
    found = {}
    for name in names:
        bundle, _, policy = name.partition("/")
        explorer = bundle_explorer(candidate, placement_policies(), policy) if bundle == candidate.name else None
        if explorer is not None:
            found[name] = explorer
    return found


def _facts(found: Credible) -> Mapping[str, Any]:
    return {
        "logged_s": found.logged_s, "simulated_s": found.simulated_s, "by_seed": list(found.by_seed),
        "gap": found.gap, "jobs": found.jobs, "is_credible": found.is_credible,
    }  # fmt: skip


def _all_end(paired: Paired) -> Check:
    """No job of a window that the incumbent brings to an end is left over by the candidate."""
    missed = sum(len(theirs.keys() - ours.keys()) for ours, theirs in zip(paired.ours, paired.theirs, strict=True))
    return Check("all jobs end", missed == 0, f"{missed} simulated jobs end under the incumbent alone")


def _jct_slices(paired: Paired) -> list[Slice]:
    names = sorted({name for runs in paired.theirs for run in runs.values() for name in run.slices})
    found = [checks.slice_of(f"JCT of {name}", change(paired, name)) for name in names]
    found.append(checks.slice_of("p95 slowdown", p95_slowdown_change(paired)))
    return [one for one in found if one is not None]


def _reward_slices(found: Evaluated) -> list[Slice]:
    """The doubly robust loss of a decision, as a share of the incumbent's reward, by queue and size of the gang."""
    log, known = found.decisions, found.judging
    if not found.evaluation.judgements[0].rows:
        return []
    forecast = cross_fitted(log)
    ours, theirs = doubly_robust(log, forecast), doubly_robust(log.of_incumbent(), forecast)
    names = [_names(found.usable.jobs[i]) for i in np.flatnonzero(known)]
    slices = []
    for name in sorted({name for each in names for name in each}):
        mine = np.array([name in each for each in names])
        if mine.sum() < _LEAST_IN_SLICE or len(np.unique(log.block[mine])) < _LEAST_BLOCKS:
            continue
        parts = [
            replace(one, numerator=one.numerator[mine], denominator=one.denominator[mine]) for one in (ours, theirs)
        ]
        sums = BlockSums.of(parts[0], log.block[mine], parts[1])
        value = max(1e-9, parts[1].value)
        loss, error = (parts[1].value - parts[0].value) / value, standard_error(sums) / value
        slices.append(Slice(f"reward of {name}", loss, error, sums.numerators.shape[1]))
    return slices


def _names(placed: PlacedJob) -> tuple[str, ...]:
    tasks = sum(group.count for group in placed.job.groups)
    size = "1" if tasks <= 1 else "2 to 3" if tasks <= 3 else "4 to 7" if tasks <= 7 else "8 or more"
    return f"queue {placed.job.queue or '(none)'}", f"gang of {size}"
