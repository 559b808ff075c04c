"""The service's own policies, by name, on the numbers of a bundle. Adds none."""

from placewise_core.admit.policy import AdmissionPolicy
from placewise_core.admit.registry import admission_policies
from placewise_core.place.policy import PlacementPolicy
from placewise_core.speed.throughput import ThroughputModel
from placewise_training.sim.bundles import Bundle, shipped


def throughput_model(bundle: Bundle | None = None) -> ThroughputModel:
    """What admission believes by the bundle (the shipped one unless given): never what is true here."""
    return (bundle or shipped()).throughput


def placement_policy(name: str, bundle: Bundle | None = None) -> PlacementPolicy:
    """A new instance. Raises ValueError for an unknown name, NeedsBundleError for a learned one without a model."""
    return (bundle or shipped()).policy(name)


def admission_policy(name: str, bundle: Bundle | None = None) -> AdmissionPolicy | None:
    """None for "none" and "": every job asks for a place as soon as it can. Raises ValueError for an unknown name."""
    if name in ("", "none"):
        return None
    policies = admission_policies(throughput_model(bundle))
    if name not in policies:
        raise ValueError(f"no admission policy is called {name!r}; there are: none, {', '.join(sorted(policies))}")
    return policies[name]
