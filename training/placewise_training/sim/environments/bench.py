"""Measures the simulator itself: `python -m placewise_training.sim.environments.bench` prints one JSON object.

A tool for whoever changes the simulator; no other module uses it.

Seconds are CPU seconds of this process, so that the figures are those of one core. Other work on the machine still
slows them, through caches and shared cores: rates are the best of a few runs, and `loop_s`, the seconds of ten million
turns of an empty loop, says how fast the core was meanwhile.
"""

import json
import resource
import sys
import time

import numpy as np

from placewise_core.domain.traces import TraceJob
from placewise_core.policies.registry import placement_policies
from placewise_training.sim.discipline import Discipline
from placewise_training.sim.environments.placement import EnvConfig
from placewise_training.sim.environments.vector import PlacementVectorEnv
from placewise_training.sim.hardware import harmony_cluster, philly_cluster
from placewise_training.sim.runs import Contender, Setting, simulate
from placewise_training.sim.traces import TraceMapping, read_jobs
from placewise_training.sim.workloads import HarmonyWorkload

_ENVIRONMENTS, _ENV_STEPS = 8, 1500
_PHILLY_JOBS = 65_028  # of the whole trace
_RUNS = 3


def decisions_per_s(nodes: int) -> dict[str, float]:
    """Tasks placed per second in the policy, Harmony's jobs, every policy; the best run of each."""
    workload = HarmonyWorkload(jobs=400, per_interval=nodes / 2)
    setting = Setting(harmony_cluster(nodes), workload.generate, discipline=Discipline(every_s=1200.0))
    found = dict.fromkeys(placement_policies(), 0.0)
    for _ in range(_RUNS):
        for name, before in found.items():
            found[name] = max(before, round(simulate(setting, Contender(name), 0).decisions_per_s))
    return found


def philly_s(trace: str, policy: str) -> tuple[float, int]:
    """Seconds for that many jobs on 321 × 8 GPUs. The shipped cut is repeated, shifted, until it is as long."""
    rows = read_jobs(trace)
    span_s = rows[-1].submit_s - rows[0].submit_s
    copies = -(-_PHILLY_JOBS // len(rows))
    repeated = [
        TraceJob(f"{r.id}-{c}", r.submit_s + c * span_s, r.duration_s, r.gpus, r.gpu_fraction, r.queue)
        for c in range(copies)
        for r in rows
    ][:_PHILLY_JOBS]
    mapping = TraceMapping()
    setting = Setting(philly_cluster(), lambda truth, seed: mapping.generate(repeated, truth, seed))
    began = time.process_time()
    result = simulate(setting, Contender(policy), 0)
    return time.process_time() - began, result.metrics.finished


def env_steps_per_s() -> float:
    """Steps per second over several environments, random allowed actions."""
    envs = PlacementVectorEnv(EnvConfig(), _ENVIRONMENTS)
    rng = np.random.default_rng(0)
    seen, _ = envs.reset(seed=0)
    began = time.process_time()
    for _ in range(_ENV_STEPS):
        mask = seen["action_mask"]
        seen, *_ = envs.step((rng.random(mask.shape) * mask).argmax(axis=1))
    taken_s = time.process_time() - began
    envs.close()
    return _ENVIRONMENTS * _ENV_STEPS / taken_s


def loop_s() -> float:
    """CPU seconds of ten million turns of an empty loop."""
    began = time.process_time()
    for _ in range(10_000_000):
        pass
    return time.process_time() - began


def main(trace: str = "philly") -> None:
    seconds, finished = philly_s(trace, "load-balance")
    found = {
        "decisions_per_s": {str(nodes): decisions_per_s(nodes) for nodes in (6, 30)},
        "philly_jobs": finished,
        "philly_s": round(seconds, 1),
        "env_steps_per_s": round(max(env_steps_per_s() for _ in range(_RUNS))),
        "loop_s": round(loop_s(), 2),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }
    json.dump(found, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main(*sys.argv[1:2])
