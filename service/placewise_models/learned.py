"""The learned placement policies that a bundle has nets for. The service and the simulator both build them here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from placewise_core.gang.policy import PlacementPolicy
from placewise_core.policies.explorers.harmony_draw import HarmonyDraw
from placewise_core.policies.explorers.random_ahead import RandomAhead
from placewise_core.policies.harmony import Harmony
from placewise_core.policies.printed.harmony_paper import HarmonyPaper
from placewise_core.policies.printed.ldwp_paper import LdwpPaper
from placewise_core.policies.registry import (
    ADAPTIVE_POLICY,
    DEFAULT_POLICY,
    HARMONY_POLICY,
    LDWP_POLICY,
    PROPOSERS,
    SEARCH_POLICY,
    adaptive_policy,
    harmony_policy,
    ldwp_policy,
    search_policy,
)
from placewise_core.policies.search import BestOfK
from placewise_models.bundle import Bundle

# As their papers print them. Without a net for the cluster they answer by a heuristic, and say so.
PRINTED_POLICIES = (HarmonyPaper.name, LdwpPaper.name)
LEARNED_POLICIES = (HARMONY_POLICY, SEARCH_POLICY, LDWP_POLICY, ADAPTIVE_POLICY, *PRINTED_POLICIES)


@dataclass(slots=True)
class LearnedPolicies:
    """Of LEARNED_POLICIES those that a bundle has nets for, by name. `harmony` and `search` are the two among them that
    answer more than `propose`; None without a net."""

    by_name: dict[str, PlacementPolicy] = field(default_factory=dict)
    harmony: Harmony | None = None
    search: BestOfK | None = None

    @property
    def names(self) -> Sequence[str]:
        """The most important one first."""
        return [name for name in LEARNED_POLICIES if name in self.by_name]


def learned_policies(bundle: Bundle, heuristics: Mapping[str, PlacementPolicy]) -> LearnedPolicies:
    """New policies on the nets of a bundle. The heuristics propose to the search and answer in place of a net that
    cannot."""
    learned = LearnedPolicies()
    found = learned.by_name
    if bundle.policy is not None:
        found[HARMONY_POLICY] = learned.harmony = harmony_policy(bundle.policy, heuristics)
    if bundle.ldwp is not None:
        found[LDWP_POLICY] = ldwp_policy(bundle.ldwp, heuristics)
    if bundle.reward is not None:
        found[SEARCH_POLICY] = learned.search = search_policy(bundle.reward, heuristics, harmony=learned.harmony)
        found[ADAPTIVE_POLICY] = adaptive_policy(bundle.reward, heuristics, harmony=learned.harmony)
    if bundle.harmony_paper is not None:
        found[HarmonyPaper.name] = HarmonyPaper(bundle.harmony_paper, heuristics[PROPOSERS[0]])
    if bundle.ldwp_paper is not None:
        found[LdwpPaper.name] = LdwpPaper(bundle.ldwp_paper, heuristics[DEFAULT_POLICY])
    return learned


def bundle_explorer(
    bundle: Bundle, heuristics: Mapping[str, PlacementPolicy], policy: str = ""
) -> PlacementPolicy | None:
    """The policy that explores as BUNDLE/POLICY; under the bundle name alone the first of LEARNED_POLICIES that it has
    nets for. None if it has none."""
    learned = learned_policies(bundle, heuristics)
    wanted = policy or next(iter(learned.names), "")
    found = learned.by_name.get(wanted)
    if found is not None:
        found.name = f"{bundle.name}/{policy}" if policy else bundle.name
    return found


def printed_without_nets(heuristics: Mapping[str, PlacementPolicy]) -> dict[str, PlacementPolicy]:
    """PRINTED_POLICIES by name, as a bundle without their nets has them."""
    return {
        HarmonyPaper.name: HarmonyPaper(None, heuristics[PROPOSERS[0]]),
        LdwpPaper.name: LdwpPaper(None, heuristics[DEFAULT_POLICY]),
    }


def explorers(policies: Mapping[str, PlacementPolicy], harmony: Harmony | None) -> dict[str, PlacementPolicy]:
    """Policies that may explore, by name: all of these, `random` without its dead ends, and draws from Harmony's net if
    there is one."""
    found = {**policies, RandomAhead.name: RandomAhead()}
    if harmony is not None:
        found[HarmonyDraw.name] = HarmonyDraw(harmony)
    return found
