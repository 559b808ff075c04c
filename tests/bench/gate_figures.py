"""Verdicts of the gate on fresh sites, each beside the truth.

`python -m tests.bench.gate_figures --seeds 40 41 --json F`. A site gives four cases: a better policy, a worse one, the
policy in force itself, and the better one on shuffled outcomes. The true change is that of the same windows at the true
speeds. The candidate is older than the log, as a bundle that explores in it. Makes the logs itself; a case that F has
is not judged again.
"""

import argparse
import json
import math
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from tests.unit.gate.sites import shuffled, site

from placewise_log.store import LogStore
from placewise_models.bundle import MANIFEST, Bundle, Manifest, load, write_manifest
from placewise_models.folder import shipped_bundle
from placewise_models.public_key import SIGNATURES
from placewise_training.evaluate.again import CandidatePolicy
from placewise_training.evaluate.evaluation import stretches_for
from placewise_training.evaluate.logged import Usable
from placewise_training.gate.gate import GateArgs, GateVerdict, gate
from placewise_training.gate.simulated import SiteSimulation, change
from placewise_training.gate.site import SiteJob, SiteLog, site_log
from placewise_training.gate.speed import SiteFit
from placewise_training.log.placed import REWARD, placed_jobs
from placewise_training.sim.jobs import SimJob
from placewise_training.sim.policies import placement_policy
from placewise_training.sim.speed.base import SpeedModel
from placewise_training.sim.truths import make_truth
from placewise_training.sim.workloads import HarmonyWorkload

# case → policy in force, candidate
CASES: Mapping[str, tuple[str, str]] = {
    "better": ("load-balance", "consolidate"),
    "worse": ("consolidate", "load-balance"),
    "same": ("load-balance", "load-balance"),
    "shuffled": ("load-balance", "consolidate"),
}


class TrueSimulation(SiteSimulation):
    """The windows of the gate, in which jobs have their true work and run at their true speeds."""

    def __init__(self, log: SiteLog, fit: SiteFit, span_s: tuple[float, float], seed: int, jobs: int) -> None:
        super().__init__(log, fit, *span_s)
        self._truth = make_truth("site", seed)
        made = HarmonyWorkload(jobs=jobs, per_interval=3.0, pattern="poisson").generate(self._truth, seed)
        self._made: Mapping[str, SimJob] = {job.id: job for job in made}

    def _sim_job(self, one: SiteJob, number: int, submit_s: float, seed: int) -> SimJob:
        copy, true = super()._sim_job(one, number, submit_s, seed), self._made[one.job.id]
        job = replace(true.job, id=copy.job.id, submit_time_s=submit_s)
        return SimJob(job, true.samples, submit_s, number=100_000 * (seed + 1) + number, ideal_s=true.ideal_s)

    def _speed(self, fit: SiteFit, seed: int) -> SpeedModel:
        return self._truth


def older(folder: Path) -> Path:
    """The shipped bundle as of a year before the logs."""
    shutil.copytree(shipped_bundle(), folder, ignore=shutil.ignore_patterns(SIGNATURES))
    known = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    files = dict.fromkeys(sorted(set(known.files) - {SIGNATURES}), "")
    write_manifest(
        folder, msgspec.structs.replace(known, name=folder.name, created="2024-11-21T12:00:00Z", files=files)
    )
    return folder


def true_change(log: Path, bundle: Bundle, seed: int, jobs: int, candidate: str, in_force: str, windows: int) -> float:
    """Of mean JCT, of the candidate over the policy in force."""
    usable = Usable.of(list(placed_jobs(log, REWARD)), 7200.0)
    judge = stretches_for(usable, [CandidatePolicy(candidate, candidate, bundle)]).judge
    times = [one.time_s for one, kept in zip(usable.jobs, judge, strict=True) if kept]
    found = site_log(LogStore(log), "c", min(times), REWARD)
    fit = SiteFit.of([row for row in found.rows if min(times) <= row.time_s <= max(times)])
    truth = TrueSimulation(found, fit, (min(times), max(times)), seed, jobs)
    paired = truth.paired(
        lambda: placement_policy(candidate, bundle), lambda: placement_policy(in_force, bundle), windows
    )
    changed = change(paired)
    return math.expm1(changed.mean) if changed is not None else math.nan


def row(case: str, verdict: GateVerdict, true: float | None) -> dict[str, Any]:
    numbers = {check.name: dict(check.numbers) for check in verdict.checks}
    return {
        "case": case, "is_promoted": verdict.is_promoted, "failed": [check.name for check in verdict.failed],
        "true_change": true, "log": numbers.get("no loss by the log"),
        "simulated": numbers.get("gain in the paired simulation"), "credible": numbers.get("simulation credible"),
    }  # fmt: skip


def judged(folder: Path, seed: int, jobs: int, case: str, windows: int) -> dict[str, Any]:
    in_force, candidate = CASES[case]
    log = site(folder / "log", seed, jobs, (in_force, "load-balance" if case == "worse" else "consolidate"))
    bundle = load(older(folder / "older"))
    true = None if case in ("same", "shuffled") else true_change(log, bundle, seed, jobs, candidate, in_force, windows)
    log = shuffled(log, folder / "shuffled", seed) if case == "shuffled" else log
    args = GateArgs(log, folder / "older", shipped_bundle(), policies=(candidate,), windows=windows)
    return row(case, gate(args), true)


def main() -> None:
    """Writes after every case, so that a run may be cut short."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", required=True)
    parser.add_argument("--jobs", type=int, default=1500)
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    rows: dict[str, Any] = json.loads(args.json.read_text("utf-8")) if args.json.exists() else {}
    for seed in args.seeds:
        for case in args.cases:
            key = f"{case} {seed} {args.jobs}"
            if key not in rows:
                with tempfile.TemporaryDirectory() as folder:
                    rows[key] = judged(Path(folder), seed, args.jobs, case, args.windows)
                args.json.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
                print(key, rows[key], flush=True)


if __name__ == "__main__":
    main()
