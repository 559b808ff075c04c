"""The service's own policies, by name, on the service's own numbers. Adds none."""

import functools
import json
from importlib import resources

from placewise_core.admit.policy import AdmissionPolicy
from placewise_core.admit.registry import admission_policies
from placewise_core.place.policy import PlacementPolicy
from placewise_core.place.registry import placement_policies
from placewise_core.speed.throughput import ThroughputModel


@functools.cache
def throughput_model() -> ThroughputModel:
    """The throughput model of the bundle the service ships: what admission believes, not what is true here."""
    text = resources.files("placewise_service").joinpath("bundles", "default", "throughput.json").read_text("utf-8")
    return ThroughputModel(json.loads(text))


def placement_policy(name: str) -> PlacementPolicy:
    """Raises ValueError for an unknown name."""
    policies = placement_policies()
    if name not in policies:
        raise ValueError(f"no placement policy is called {name!r}; there are: {', '.join(sorted(policies))}")
    return policies[name]


def admission_policy(name: str) -> AdmissionPolicy | None:
    """None for "none" and "": every job asks for a place as soon as it can. Raises ValueError for an unknown name."""
    if name in ("", "none"):
        return None
    policies = admission_policies(throughput_model())
    if name not in policies:
        raise ValueError(f"no admission policy is called {name!r}; there are: none, {', '.join(sorted(policies))}")
    return policies[name]
