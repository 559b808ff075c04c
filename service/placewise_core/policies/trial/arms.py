"""Which arm of a canary answers a job, and the probability of a placement over both arms. Draws nothing.

By job, the canary has the jobs whose u(salt, job) is below its share, where u is a hash on [0, 1): a larger share keeps
every job of a smaller one. By time, two blocks of equal length make a period; the canary has one of them, the first if
u(salt, number of the period) is below a half. Over the salts both are draws, so that a placement a has the propensity

    P(a) = (1 − s)·P₀(a) + s·P₁(a)

with the share s and the propensities P₀ and P₁ that explore.py states for either arm.
"""

import enum
import hashlib
import math
from typing import Final

from placewise_core.basics.frozen import frozen
from placewise_core.domain.job import Job
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.guard import verdict
from placewise_core.gang.policy import PlacementPolicy, Proposal
from placewise_core.policies.explore import Exploration, gives, mixed
from placewise_core.speed.interference import GpuInterference
from placewise_core.view.view import ClusterView

_UNIT: Final = 2.0**-64


class Arm(enum.StrEnum):
    """Who answers a job."""

    INCUMBENT = "incumbent"
    CANARY = "canary"


class Unit(enum.StrEnum):
    """The unit that belongs to one arm."""

    JOB = "job"
    TIME = "time"


@frozen
class Side:
    """Policy, exploration and predictions of one arm."""

    policy: PlacementPolicy
    exploration: Exploration
    interference: GpuInterference


class UnknownMixtureError(Exception):
    """The propensity over both arms cannot be stated; the message says why."""


@frozen
class Arms:
    """The rule of one canary: its `salt`, its `share` in (0, 1), a half by time. `period_s` and `washout_s` (the first
    part of each block, which counts for neither arm) are by time."""

    salt: str
    share: float
    unit: Unit = Unit.JOB
    period_s: float = 0.0
    washout_s: float = 0.0

    def of(self, job_id: str, now_s: float) -> Arm:
        """The arm of a job that is decided now."""
        if self.unit is Unit.JOB:
            return Arm.CANARY if _uniform(self.salt, job_id) < self.share else Arm.INCUMBENT
        period = math.floor(now_s / self.period_s)
        is_second = now_s - period * self.period_s >= self.period_s / 2
        is_canary_second = _uniform(self.salt, str(period)) >= 0.5
        return Arm.CANARY if is_second == is_canary_second else Arm.INCUMBENT

    def is_washout(self, now_s: float) -> bool:
        """Whether a decision of this moment counts for neither arm."""
        return self.unit is Unit.TIME and math.fmod(now_s, self.period_s / 2) < self.washout_s


def _uniform(salt: str, of: str) -> float:
    """u(salt, of) on [0, 1)."""
    digest = hashlib.blake2b(of.encode(), digest_size=8, key=salt.encode()).digest()
    return int.from_bytes(digest) * _UNIT


def over_both(share: float, incumbent: float, canary: float) -> float:
    """P(a) over both arms from P₀(a) and P₁(a)."""
    return (1.0 - share) * incumbent + share * canary


def propensity(
    policy: PlacementPolicy,
    exploration: Exploration,
    chosen: Proposal,
    job: Job,
    view: ClusterView,
    context: PlaceContext,
) -> float:
    """P(a) of a placement that the other arm chose, if this policy decides and explores. The policy's errors go on.

    Raises UnknownMixtureError if an error or the clock kept a policy from answering.
    """
    spared = exploration.rate > 0 and verdict(exploration.guard, job, view, context)
    explorers = exploration.explorers if exploration.rate > 0 and not spared else ()
    policies = [policy, *(each.policy for each in explorers)]
    given = [each.propose(job, view, context) for each in policies]
    for each, proposal in zip(policies, given, strict=True):
        check_exact(each.name, proposal)
    own, *shares = [
        gives(each, proposal, chosen, job, view, context) for each, proposal in zip(policies, given, strict=True)
    ]
    if not explorers:
        return own or 0.0
    return mixed(own or 0.0, exploration.rate, shares, [each.weight for each in explorers])


def check_exact(name: str, proposal: Proposal | None) -> None:
    """Raises UnknownMixtureError for a proposal that another look might not give again."""
    if proposal is None:
        return
    if is_accident(proposal.fallback_reason):
        raise UnknownMixtureError(f"{name}: {proposal.fallback_reason}")
    if proposal.info.get("cut"):
        raise UnknownMixtureError(f"{name}: its search was cut by the clock")


def is_accident(fallback_reason: str) -> bool:
    """Whether a heuristic stood in because of the clock or of an error, of which the reason has the class. All other
    reasons hold whenever the same job meets the same view."""
    word = fallback_reason.rpartition(": ")[2]
    return word == "deadline" or (word.isidentifier() and word[0].isupper())
