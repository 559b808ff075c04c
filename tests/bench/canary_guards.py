"""How often the guards end a canary that does as well, and after how many decisions one that does worse.

`python -m tests.bench.canary_guards` prints a table. Every canary is looked at after each job. The events of the four
guards, latencies and speeds are drawn as the constants below say; latencies and speeds go through guards.Reference.
"""

from collections.abc import Callable
from typing import Final

import numpy as np

from placewise_core.basics.arrays import BoolArray, FloatArray
from placewise_core.policies.trial.guards import SLOW_LATENCY, SLOW_SPEED, THRESHOLD, Reference, log_e

SEED: Final = 20_261_124
CANARIES, JOBS = 1_000, 5_000  # that do as well
WORSE, MOST_JOBS = 100, 30_000  # of each kind of harm
SHARES: Final = (0.1, 0.5)
FALLBACKS, NO_FITS = 0.05, 0.10  # the incumbent's rates
LATENCY_SPREAD, SPEED_SPREAD = 0.5, 0.25  # of the logarithm
POWER: Final = 0.8

Rng = np.random.Generator


def first_look(events: BoolArray, is_canary: BoolArray, share: float) -> int:
    """Jobs after which the guard ends the canary; 0 for never."""
    n = np.flatnonzero(events)
    of_canary = is_canary[n].cumsum()
    for i, k in enumerate(of_canary):
        if log_e(int(k), i + 1, share) >= THRESHOLD:
            return int(n[i]) + 1
    return 0


def beyond(values: FloatArray, is_canary: BoolArray, limit: float, least: int) -> BoolArray:
    """Which values are beyond so many times the running median of the incumbent's earlier ones."""
    reference, found = Reference(least), np.zeros(len(values), dtype=bool)
    usual = None
    for i, value in enumerate(values.tolist()):
        if usual is not None:
            found[i] = value > limit * usual if limit > 1.0 else value < limit * usual
        if not is_canary[i]:
            reference.add(value)
            if i % 10 == 0 or usual is None:
                usual = reference.value
    return found


def events_of(kind: str, is_worse: bool, is_canary: BoolArray, rng: Rng) -> BoolArray:
    """Events of one guard; the canary does as much worse as is to be caught, or as well."""
    jobs, worse = len(is_canary), is_canary & is_worse
    if kind == "fallback × 1.5":
        return rng.random(jobs) < np.where(worse, 1.5 * FALLBACKS, FALLBACKS)
    if kind == "NO_FIT + 2 points":
        return rng.random(jobs) < np.where(worse, NO_FITS + 0.02, NO_FITS)
    if kind == "latency × 1.5":
        latencies = np.exp(LATENCY_SPREAD * rng.standard_normal(jobs)) * np.where(worse, 1.5, 1.0)
        return beyond(latencies, is_canary, SLOW_LATENCY, 20)
    speeds = np.exp(SPEED_SPREAD * rng.standard_normal(jobs)) * np.where(worse, 0.8, 1.0)
    return beyond(speeds, is_canary, SLOW_SPEED, 5)


KINDS: Final = ("fallback × 1.5", "NO_FIT + 2 points", "latency × 1.5", "speed − 20 %")


def ended_as_well(share: float, rng: Rng) -> int:
    """Canaries of CANARIES that any guard ends though they do as well."""
    ended = 0
    for _ in range(CANARIES):
        is_canary = rng.random(JOBS) < share
        ended += any(first_look(events_of(kind, False, is_canary, rng), is_canary, share) for kind in KINDS)
    return ended


def caught_within(kind: str, share: float, rng: Rng) -> float:
    """Jobs within which POWER of the canaries that do worse are ended; infinite if they are not."""
    looks = []
    for _ in range(WORSE):
        is_canary = rng.random(MOST_JOBS) < share
        looks.append(first_look(events_of(kind, True, is_canary, rng), is_canary, share) or np.inf)
    return float(np.sort(looks)[int(np.ceil(POWER * WORSE)) - 1])


def main(say: Callable[[str], None] = print) -> None:
    """Prints the table."""
    rng = np.random.default_rng(SEED)
    for share in SHARES:
        say(f"share {share:g}: {ended_as_well(share, rng)} of {CANARIES} canaries that do as well end in {JOBS} jobs")
        for kind in KINDS:
            jobs = caught_within(kind, share, rng)
            say(f"share {share:g}: {kind} is caught within {jobs:g} jobs at {POWER:.0%} power")


if __name__ == "__main__":
    main()
