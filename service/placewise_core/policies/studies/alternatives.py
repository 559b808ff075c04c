"""The alternatives of one decision: each policy's placement, its probability and its forecast. Decides nothing.

Works on a copy of the view as it was before the job was placed. Probabilities follow explore.py; those of the chosen
placement are the decision's own. Policies are asked without a clock here: each once, and none whose proposal the
decision has. If the clock had stopped a policy, the probability of any other placement is unknown. If the search
compared all the placements, its forecasts and its model's inputs are those of the alternatives.
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
from placewise_core.policies.explore import Drawn, Exploration, asked_once
from placewise_core.policies.search import BestOfK, PlacementScores
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
    place. `given`: proposals made for the decision, by policy."""

    job: Job
    view: ClusterView
    policy: PlacementPolicy
    exploration: Exploration
    drawn: Drawn | None
    now_s: float
    seed: int
    interference: GpuInterference
    barred: BoolArray | None = None
    given: Mapping[object, Proposal | None] = field(default_factory=dict)

    def context(self, slices: Slices) -> PlaceContext:
        """A context like that of the decision, without its deadline."""
        return PlaceContext(self.now_s, self.seed, interference=self.interference, slices=slices, barred=self.barred)

    def lasting(self) -> dict[object, Proposal | None]:
        """The proposals of the decision that their policies make without a clock, too."""
        return {
            policy: proposal
            for policy, proposal in self.given.items()
            if proposal is None or not (proposal.is_fallback or explore.stop_of(proposal))
        }


@frozen
class Studied:
    """The alternatives of one job, and the reward model's tokens, a row for each; None without a model."""

    alternatives: tuple[Alternative, ...]
    tokens: PartTokens | None


def studied(
    study: Study, policies: Mapping[str, PlacementPolicy], reward_model: BestOfK | None, context: PlaceContext
) -> Studied:
    """The placement chosen, and every other one that the policy in force, an explorer or one of ASKED gives; none for
    a job that found no place. `reward_model`: the search, which forecasts each; None without one. `context`: the
    study's."""
    drawn = study.drawn
    if drawn is None:
        return Studied((), None)
    context.is_recording, context.given = True, study.lasting()
    chosen = action_of(drawn.proposal.assignments)
    explorers = [explorer.policy for explorer in study.exploration.explorers] if drawn.rate > 0 else []
    others = [policies[name] for name in ASKED if name in policies]
    asked = [_PolicyProposal.of(each, study, context) for each in dict.fromkeys((study.policy, *explorers, *others))]
    found: dict[Action, tuple[str, Proposal]] = {chosen: (drawn.explorer or study.policy.name, drawn.proposal)}
    for each in asked:
        if each.proposal is not None and not each.proposal.is_fallback:
            found.setdefault(each.action, (each.policy.name, each.proposal))
    judged, has_spread = _judged(study, [proposal for _, proposal in found.values()], reward_model, context)
    scores = judged.scores if judged is not None else None
    rows = []
    for k, (action, (name, proposal)) in enumerate(found.items()):
        gives = {each.policy: each.gives(action, proposal, study, context) for each in asked}
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
                {each.policy.name: share for each in asked if (share := gives[each.policy])},
            )
        )
    return Studied(tuple(rows), judged.tokens if judged is not None else None)


@frozen
class _PolicyProposal:
    """A policy, its proposal and where that puts the tasks."""

    policy: PlacementPolicy
    proposal: Proposal | None
    action: Action = ()

    @classmethod
    def of(cls, policy: PlacementPolicy, study: Study, context: PlaceContext) -> "_PolicyProposal":
        proposal = asked_once(policy, study.job, study.view, context)
        return cls(policy, proposal, action_of(proposal.assignments) if proposal is not None else ())

    def gives(self, action: Action, proposal: Proposal, study: Study, context: PlaceContext) -> float | None:
        """As explore.gives, of a placement that puts the tasks so."""
        if self.proposal is not None and self.proposal.propensity == 1.0:
            return float(self.action == action)
        return explore.gives(self.policy, self.proposal, proposal, study.job, study.view, context)


def _probabilities(study: Study, drawn: Drawn, gives: Mapping[PlacementPolicy, float | None]) -> tuple[float, float]:
    """(π(a), P(a)) of a placement."""
    own = gives[study.policy] or 0.0
    if not drawn.rate:
        return own, own
    explorers = study.exploration.explorers
    shares = [gives[explorer.policy] for explorer in explorers]
    return own, explore.mixed(own, drawn.rate, shares, [explorer.weight for explorer in explorers])


def _judged(
    study: Study, proposals: Sequence[Proposal], search: BestOfK | None, context: PlaceContext
) -> tuple[PlacementScores | None, bool]:
    """The reward model's forecasts and whether it knows their spread; none without a model, or if it fails."""
    if search is None:
        return None, False
    try:
        answer = asked_once(search, study.job, study.view, context)
        known = answer.judgement.of(proposals, study.view) if answer is not None and answer.judgement else None
        return known or search.judge(study.job, proposals, study.view, context.slices), search.has_spread
    except Exception:  # the placements are worth a record without forecasts
        return None, False
