"""A bundle as simulations use it: the learned policies and the coefficients of one directory. Never writes one.

What a bundle lacks is said by NeedsBundleError, so that a table can have a row for it.
"""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placewise_core.place.harmony import Harmony
from placewise_core.place.policy import PlacementPolicy
from placewise_core.place.registry import placement_policies, search_policy
from placewise_core.place.search import BestOfK, SpeedScorer
from placewise_core.speed.throughput import ThroughputModel
from placewise_models.folder import shipped_bundle

REWARD = "reward.onnx"
POLICY_GRAPHS = ("policy_encoder.onnx", "policy_jobs.onnx", "policy_decoder.onnx")
LEARNED = (BestOfK.name, Harmony.name)
_FALLBACK = "consolidate"  # answers where a net cannot


class NeedsBundleError(Exception):
    """The method is learned, and the bundle holds no model of it."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """One directory. Equal directories share their loaded nets; policies are made anew, as they keep state."""

    directory: Path

    @property
    def throughput(self) -> ThroughputModel:
        """What admission believes; of the shipped bundle where this one has none."""
        return _throughput(self.directory if (self.directory / _THROUGHPUT).is_file() else shipped().directory)

    @property
    def scorer(self) -> SpeedScorer | None:
        """The reward model; None where there is none. Raises ValueError for one of other features."""
        return _scorer(self.directory / REWARD) if (self.directory / REWARD).is_file() else None

    def harmony(self) -> Harmony | None:
        """Harmony's policy; None where there is none. Raises ValueError for one of other features."""
        if not all((self.directory / name).is_file() for name in POLICY_GRAPHS):
            return None
        return Harmony(_policy_net(self.directory), placement_policies()[_FALLBACK])

    def policies(self) -> dict[str, PlacementPolicy]:
        """Every placement policy by name: the heuristics, and the learned ones this bundle has models for."""
        found = placement_policies()
        harmony, scorer = self.harmony(), self.scorer
        if harmony is not None:
            found[harmony.name] = harmony
        if scorer is not None:
            found[BestOfK.name] = search_policy(scorer, found, harmony=harmony)
        return found

    def policy(self, name: str) -> PlacementPolicy:
        """Raises NeedsBundleError for a learned one without a model here, ValueError for an unknown name."""
        policies = self.policies() if name in LEARNED else placement_policies()
        if name in policies:
            return policies[name]
        if name in LEARNED:
            raise NeedsBundleError(f"needs a bundle: {self.directory.name} holds no model for {name}")
        known = ", ".join(sorted({*policies, *LEARNED}))
        raise ValueError(f"no placement policy is called {name!r}; there are: {known}")


_THROUGHPUT = "throughput.json"


@functools.cache
def shipped() -> Bundle:
    """The bundle that comes with the service."""
    return Bundle(shipped_bundle())


def opened(directory: Path | None) -> Bundle:
    """The bundle in a directory, or the shipped one. Raises ValueError where there is no directory."""
    if directory is None:
        return shipped()
    if not directory.is_dir():
        raise ValueError(f"{directory} is not a bundle: no such directory")
    return Bundle(directory)


@functools.cache
def _throughput(directory: Path) -> ThroughputModel:
    document: Mapping[str, Any] = json.loads((directory / _THROUGHPUT).read_text("utf-8"))
    return ThroughputModel(document)


@functools.cache
def _scorer(path: Path) -> SpeedScorer:
    from placewise_training.sim.nets import OnnxScorer  # noqa: PLC0415 (a simulation of heuristics needs no runtime)

    return OnnxScorer.load(path)


@functools.cache
def _policy_net(directory: Path) -> Any:
    from placewise_training.sim.nets import OnnxPolicy  # noqa: PLC0415

    return OnnxPolicy.load(directory)
