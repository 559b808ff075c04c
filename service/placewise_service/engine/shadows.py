"""Who decides in the shadow of which cluster's answers, in this process. A shadow never answers."""

import enum
from collections.abc import Callable, Collection, Mapping
from dataclasses import field

from placewise_core.admit.policy import AdmissionPolicy
from placewise_core.basics.frozen import frozen
from placewise_core.domain.errors import InvalidRequestError
from placewise_core.gang.neighbours import ProfileModel, SoloSpeed, no_profile
from placewise_core.gang.policy import PlacementPolicy
from placewise_core.partition.policy import PartitionPolicy
from placewise_core.speed.completed_interference import InterferenceSource
from placewise_core.subtasks.iawp import SubtaskScheduler
from placewise_core.view.speeds import LearnedSpeedOf
from placewise_models.bundle import Bundle, BundleError
from placewise_models.learned import LearnedPolicies


class LeftOut(enum.StrEnum):
    """Why a job of a cluster with a shadow has no decision of it."""

    BUSY = "busy"  # there was no time
    CALL = "call"  # the shadow's policy is one of another call, or a bundle has nothing to say beside this answer
    FAILED = "failed"  # the shadow's policy raised an error
    JOBS = "jobs"  # of a request with more jobs than a shadow decides about
    POLICY = "policy"  # the bundle in force does not have the policy


class Agreement(enum.StrEnum):
    """A shadow's decision about a job beside the answer."""

    SAME = "same"
    OTHER = "other"
    EXPLORED = "explored"  # the answer was not that of its own policy
    ANSWER_ONLY = "answer_only"  # the shadow found no place
    SHADOW_ONLY = "shadow_only"


@frozen
class PolicySet:
    """The policies of a bundle, by call and name, and the predictions that placements and their answers rest on.
    `learned` are the placement policies that rest on nets of the bundle."""

    placement: Mapping[str, PlacementPolicy]
    learned: LearnedPolicies
    interference: InterferenceSource
    solo_speed: SoloSpeed
    learned_speed: LearnedSpeedOf
    explorers: Mapping[str, PlacementPolicy] = field(default_factory=dict)
    admission: Mapping[str, AdmissionPolicy] = field(default_factory=dict)
    partition: Mapping[str, PartitionPolicy] = field(default_factory=dict)
    subtasks: Mapping[str, SubtaskScheduler] = field(default_factory=dict)
    profile_model: ProfileModel = no_profile

    @property
    def of_other_calls(self) -> Collection[str]:
        """Names of the policies of AdmitOrWait, Partition and scope NODE."""
        return {*self.admission, *self.partition, *self.subtasks}


@frozen
class Shadow:
    """A policy of the bundle that is shadowing, with its `policies`; both None: of the bundle in force. `policy` names
    it; "" is the policy that answered if it rests on the bundle's nets, else the first one that does."""

    policies: PolicySet | None = None
    bundle: Bundle | None = None
    policy: str = ""

    def policy_for(self, answered: str, policies: PolicySet) -> PlacementPolicy | None:
        """Of the shadow's `policies`, the one that decides where `answered` did; None if they lack it."""
        learned = policies.learned.names
        name = self.policy or (answered if answered in learned else next(iter(learned), ""))
        return policies.placement.get(name)

    def policy_beside(self, answered: str, names: Collection[str], resting: Collection[str]) -> str:
        """The policy that decides beside `answered` in a call with these policies, of which some rest on the bundle; ""
        if the shadow has nothing to say there."""
        name = self.policy or (answered if self.bundle is not None else "")
        return name if name in names and (self.bundle is None or name in resting) else ""


class Shadows:
    """The shadows in force, by cluster; "" for every cluster that has none of its own. One event loop owns it.

    `built` makes the policies of a bundle and may raise BundleError; `active` has those of the bundle in force.
    """

    def __init__(self, active: PolicySet, built: Callable[[Bundle], PolicySet]) -> None:
        self.active = active
        self.built = built
        self.by_cluster: Mapping[str, Shadow] = {}  # empty as a rule: then a decision asks no further

    def of(self, cluster: str) -> Shadow | None:
        """Who shadows the cluster; None if nobody does."""
        return self.by_cluster.get(cluster) or self.by_cluster.get("")

    @property
    def bundles(self) -> Collection[Bundle]:
        """Bundles that shadow a cluster."""
        return [shadow.bundle for shadow in self.by_cluster.values() if shadow.bundle is not None]

    def kept(self, name: str, digest: str) -> Bundle | None:
        """A bundle that shadows already under this digest: it need not be read again."""
        found = (bundle for bundle in self.bundles if digest and (bundle.name, bundle.digest) == (name, digest))
        return next(found, None)

    def ready(self, bundle: Bundle | None, policy: str) -> Shadow:
        """A shadow to be put into force. Raises InvalidRequestError if nothing can be built from the bundle, or it has
        no net that places jobs."""
        if bundle is None:
            return Shadow(policy=policy)
        kept = (shadow.policies for shadow in self.by_cluster.values() if shadow.bundle is bundle)
        try:
            policies = next(kept, None) or self.built(bundle)
        except BundleError as error:
            raise InvalidRequestError(str(error), "name") from error
        if not policies.learned.by_name:
            raise InvalidRequestError(f"the bundle {bundle.name!r} has no net that places jobs: name another", "name")
        return Shadow(policies, bundle, policy)

    def use(self, by_cluster: Mapping[str, Shadow]) -> None:
        """Puts these shadows into force, and no others."""
        self.by_cluster = dict(by_cluster)
