"""The truths of the simulator: which speed model trains and which one judges. docs/truths.md is the table of them.

A policy, an interference model or a reward model fitted on `train` is judged on `judge`: other GPUs, other measured
sources, another overlap of stages, another rule for three jobs on a GPU, other noise. `train` is a family: how far
input and compute overlap is drawn per seed from all there is between perfect prefetching (0, what Synergy's rows show)
and none (1), so that nothing learned on it can lean on one value. `judge` has the value of Muri's rows.

`site` stands for the machines of somebody else: `SITE_MEMBERS` drawn sites, seed s plays on site s modulo their number.
Logs and demonstrations are made on it, so that nothing learns from a log of the judge.
"""

import numpy as np

from placewise_training.sim.speed.composed import ComposedSpeed
from placewise_training.sim.speed.fitting import muri_overlap
from placewise_training.sim.speed.profiles import SITE_MEMBERS, judge_catalogue, site_catalogue, train_catalogue
from placewise_training.sim.speed.sharing import Composition, gavel_sharing

TRUTHS = ("train", "judge", "site")
_JUDGE_NOISE, _SITE_NOISE = 1_000_003, 2_000_003  # added to the seed, so that no noise is drawn twice


def make_truth(name: str, seed: int = 0, *, contended: bool = True, noisy: bool = True) -> ComposedSpeed:
    """The speed model of that name. Raises ValueError for another name."""
    if name == "train":
        catalogue = train_catalogue()
        sharing = gavel_sharing("gavel_simulation", "K80", catalogue, "additive")
        overlap = float(np.random.default_rng((seed, 4)).uniform())
        return ComposedSpeed(catalogue, sharing, overlap=overlap, seed=seed, contended=contended, noisy=noisy)
    if name == "judge":
        catalogue = judge_catalogue()
        sharing = gavel_sharing("gavel_oracle_v1", "V100", catalogue, "product")
        return ComposedSpeed(
            catalogue, sharing, overlap=muri_overlap(), seed=seed + _JUDGE_NOISE, contended=contended, noisy=noisy
        )
    if name == "site":
        member = seed % SITE_MEMBERS
        rng = np.random.default_rng((member, 7))
        catalogue = site_catalogue(member)
        rule: Composition = "additive" if rng.random() < 0.5 else "product"
        sharing = gavel_sharing("gavel_simulation", "V100", catalogue, rule)
        overlap = float(rng.uniform(0.2, 0.95))
        return ComposedSpeed(
            catalogue, sharing, overlap=overlap, seed=seed + _SITE_NOISE, contended=contended, noisy=noisy
        )
    raise ValueError(f"no truth is called {name!r}; there are: {', '.join(TRUTHS)}")
