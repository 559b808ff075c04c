"""The service's own policies, by name, on the numbers and nets of a bundle. Adds none.

NeedsBundleError names the model that a bundle lacks, so that a table can have a row for it.
"""

import functools
from pathlib import Path

from placewise_core.admit.policy import AdmissionPolicy
from placewise_core.admit.registry import admission_policies
from placewise_core.gang.policy import PlacementPolicy
from placewise_core.policies.registry import placement_policies
from placewise_core.speed.throughput import ThroughputModel
from placewise_models import bundle as bundles
from placewise_models.bundle import THROUGHPUT, Bundle
from placewise_models.folder import shipped_bundle
from placewise_models.learned import LEARNED_POLICIES, explorers, learned_policies


class NeedsBundleError(Exception):
    """The method is learned, and the bundle holds no model of it."""


def shipped() -> Bundle:
    """The bundle that comes with the service."""
    return _opened(shipped_bundle())


def opened(directory: Path | None) -> Bundle:
    """The bundle in a directory, or the shipped one; loaded once. Raises ValueError if there is no directory, or a
    net in it is of other features."""
    if directory is None:
        return shipped()
    if not directory.is_dir():
        raise ValueError(f"{directory} is not a bundle: there is no such directory")
    return _opened(directory)


@functools.cache
def throughput_model(bundle: Bundle | None = None) -> ThroughputModel:
    """The throughput model that admission believes: the bundle's, or the shipped one's if it has none. Never the truth
    of a simulation."""
    documents = (bundle or shipped()).documents
    return ThroughputModel(documents.get(THROUGHPUT) or shipped().document(THROUGHPUT))


def policies_of(bundle: Bundle) -> dict[str, PlacementPolicy]:
    """New instances by name: the heuristics, and the learned ones that the bundle has nets for."""
    heuristics = placement_policies()
    return heuristics | learned_policies(bundle, heuristics).by_name


def explorers_of(bundle: Bundle) -> dict[str, PlacementPolicy]:
    """These and those that only explore, by name."""
    heuristics = placement_policies()
    learned = learned_policies(bundle, heuristics)
    return explorers(heuristics | learned.by_name, learned.harmony)


def placement_policy(name: str, bundle: Bundle | None = None) -> PlacementPolicy:
    """A new instance. Raises ValueError for an unknown name, NeedsBundleError for a learned one without a model."""
    bundle = bundle or shipped()
    policies = policies_of(bundle)
    if name in policies:
        return policies[name]
    if name in LEARNED_POLICIES:
        raise NeedsBundleError(f"needs a bundle: {bundle.name} holds no model for {name}")
    known = ", ".join(sorted({*policies, *LEARNED_POLICIES}))
    raise ValueError(f"no placement policy is called {name!r}; there are: {known}")


def admission_policy(name: str, bundle: Bundle | None = None) -> AdmissionPolicy | None:
    """None for "none" and "": every job asks for a place as soon as it can. Raises ValueError for an unknown name."""
    if name in ("", "none"):
        return None
    policies = admission_policies(throughput_model(bundle))
    if name not in policies:
        raise ValueError(f"no admission policy is called {name!r}; there are: none, {', '.join(sorted(policies))}")
    return policies[name]


_opened = functools.cache(bundles.opened)
