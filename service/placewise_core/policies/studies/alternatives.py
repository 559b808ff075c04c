"""The alternatives of one decision: each policy's placement, its probability and its forecast. Decides nothing.

Works on a copy of the view as it was before the job was placed. Probabilities follow explore.py; those of the chosen
placement are the decision's own. Policies are asked without a clock here. If it had stopped one, the probability of any
other placement is unknown.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Final, final

from placewise_core.basics.arrays import BoolArray
from placewise_core.basics.frozen import frozen
from placewise_core.basics.slices import Slices
from placewise_core.domain.job import Job
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.policy import Action, PlacementPolicy, Proposal, action_of
from placewise_core.inputs.reward import PartTokens
from placewise_core.policies import explore
from placewise_core.policies.explore import Drawn, Exploration
from placewise_core.policies.search import BestOfK, Judged
from placewise_core.speed.interference import GpuInterference
from placewise_core.view.view import ClusterView

# Asked besides the policy in force and the explorers.
ASKED: Final = ("consolidate", "load-balance", "bin-packing", "tetris", "harmony", "search")


@final
@frozen
class Alternative:
    """One placement of a job: `policy` names the first that gives it, `nodes` are its tasks' in the order of their
    names, `policies` has the probability with which each policy that was asked gives it, without those that never do.

    `propensity` is P(a), `own_propensity` π(a) of the policy in force; None if the clock stopped a policy.
    `progress_per_s` is the reward model's forecast Σ c_n/e_n, `spread` that of the job's log-speed; None without one.
    """

    job_id: str
    policy: str
    nodes: tuple[str, ...]
    is_chosen: bool
    propensity: float | None
    own_propensity: float | None
    progress_per_s: float | None = None
    spread: float | None = None
    policies: Mapping[str, float] = field(default_factory=dict)


@frozen
class Study:
    """One job's decision with copies of its inputs. `view` is the study's own; `drawn` is None if the job found no
    place."""

    job: Job
    view: ClusterView
    policy: PlacementPolicy
    exploration: Exploration
    drawn: Drawn | None
    now_s: float
    seed: int
    interference: GpuInterference
    barred: BoolArray | None = None

    def context(self, slices: Slices) -> PlaceContext:
        """A context like that of the decision, without its deadline."""
        return PlaceContext(self.now_s, self.seed, interference=self.interference, slices=slices, barred=self.barred)


@frozen
class Studied:
    """The alternatives of one job, and the reward model's tokens, a row for each; None without a model."""

    alternatives: tuple[Alternative, ...]
    tokens: PartTokens | None


def studied(
    study: Study, policies: Mapping[str, PlacementPolicy], reward_model: BestOfK | None, slices: Slices
) -> Studied:
    """The placement chosen, and every other one that the policy in force, an explorer or one of ASKED gives; none for
    a job that found no place. `reward_model`: the search, which forecasts each; None without one."""
    context, drawn = study.context(slices), study.drawn
    if drawn is None:
        return Studied((), None)
    chosen = action_of(drawn.proposal.assignments)
    explorers = [explorer.policy for explorer in study.exploration.explorers] if drawn.rate > 0 else []
    others = [policies[name] for name in ASKED if name in policies]
    given = {id(each): each.propose(study.job, study.view, context) for each in (study.policy, *explorers, *others)}
    found: dict[Action, tuple[str, Proposal]] = {chosen: (drawn.explorer or study.policy.name, drawn.proposal)}
    for each in (study.policy, *explorers, *others):
        proposal = given[id(each)]
        if proposal is not None and not proposal.is_fallback:
            found.setdefault(action_of(proposal.assignments), (each.name, proposal))
    judged, has_spread = _judged(study, [proposal for _, proposal in found.values()], reward_model, slices)
    scores = judged.scores if judged is not None else None
    rows = []
    for k, (action, (name, proposal)) in enumerate(found.items()):
        gives = _gives(study, proposal, (study.policy, *explorers, *others), given, context)
        own, mixture = drawn.own_propensity, drawn.proposal.propensity
        if action != chosen:
            own, mixture = _probabilities(study, drawn, gives)
        is_exact = action == chosen or not drawn.stops
        rows.append(
            Alternative(
                study.job.id,
                name,
                tuple(node for _, node in action),
                action == chosen,
                mixture if is_exact else None,
                own if is_exact else None,
                float(scores.progress[k]) if scores is not None else None,
                float(scores.spread[k]) if scores is not None and has_spread else None,
                {each.name: share for each in (study.policy, *explorers, *others) if (share := gives[id(each)])},
            )
        )
    return Studied(tuple(rows), judged.tokens if judged is not None else None)


def _gives(
    study: Study,
    proposal: Proposal,
    asked: Sequence[PlacementPolicy],
    given: Mapping[int, Proposal | None],
    context: PlaceContext,
) -> Mapping[int, float | None]:
    """The probability with which each policy gives a placement, by the policy's identity."""
    return {id(each): explore.gives(each, given[id(each)], proposal, study.job, study.view, context) for each in asked}


def _probabilities(study: Study, drawn: Drawn, gives: Mapping[int, float | None]) -> tuple[float, float]:
    """(π(a), P(a)) of a placement."""
    own = gives[id(study.policy)] or 0.0
    if not drawn.rate:
        return own, own
    explorers = study.exploration.explorers
    shares = [gives[id(explorer.policy)] for explorer in explorers]
    return own, explore.mixed(own, drawn.rate, shares, [explorer.weight for explorer in explorers])


def _judged(
    study: Study, proposals: Sequence[Proposal], search: BestOfK | None, slices: Slices
) -> tuple[Judged | None, bool]:
    """The reward model's forecasts and whether it knows their spread; none without a model, or if it fails."""
    if search is None:
        return None, False
    try:
        return search.judge(study.job, proposals, study.view, slices), search.has_spread
    except Exception:  # the placements are worth a record without forecasts
        return None, False
