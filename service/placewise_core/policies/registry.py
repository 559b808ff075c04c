"""The placement policies by name. Nothing here decides."""

from collections.abc import Mapping, Sequence

from placewise_core.gang.policy import PlacementPolicy
from placewise_core.policies.adaptive import Adaptive
from placewise_core.policies.apart import ConsolidateApart
from placewise_core.policies.bin_packing import BinPacking
from placewise_core.policies.consolidate import Consolidate
from placewise_core.policies.harmony import Harmony, HarmonySample, PolicyNet
from placewise_core.policies.ldwp import LearnedNodes, NodeValues
from placewise_core.policies.load_balance import LoadBalance
from placewise_core.policies.profiled.ect import ExpectedCompletionTime
from placewise_core.policies.profiled.lif import LeastInterference
from placewise_core.policies.profiled.pats_on_nodes import RelativePerformance
from placewise_core.policies.profiled.tables import PlacementTables, packaged_tables
from placewise_core.policies.profiled.tiresias import Tiresias
from placewise_core.policies.random_fit import Random
from placewise_core.policies.search import BestOfK, SpeedScorer
from placewise_core.policies.tetris import Tetris

DEFAULT_POLICY = "load-balance"
SEARCH_POLICY = BestOfK.name
ADAPTIVE_POLICY = Adaptive.name
HARMONY_POLICY = Harmony.name
LDWP_POLICY = LearnedNodes.name
# Proposers for the search, in order of trust: the first one answers if the scorer fails. Tiresias is not among
# them: its placement is always that of consolidate or of load-balance.
PROPOSERS = (
    "consolidate",
    "tetris",
    "load-balance",
    "lif-linear",
    "pats",
    "bin-packing",
    "ect",
    "lif-quadratic",
)


def placement_policies(
    tables: PlacementTables | None = None, others: Sequence[PlacementPolicy] = ()
) -> dict[str, PlacementPolicy]:
    """Every heuristic policy by its name, on the packaged tables unless others are given; and `others` of the caller's
    own. Raises ValueError if two have one name."""
    known = tables or packaged_tables()
    policies: tuple[PlacementPolicy, ...] = (
        LoadBalance(),
        BinPacking(),
        Tetris(),
        Tiresias(known.skew),
        *least_interference(known),
        Consolidate(),
        ConsolidateApart(),
        Random(),
        ExpectedCompletionTime(known.gpu_speeds),
        RelativePerformance(known.gpu_speeds),
        *others,
    )
    found = {policy.name: policy for policy in policies}
    if len(found) < len(policies):
        raise ValueError("two placement policies have the same name: rename one")
    return found


def least_interference(tables: PlacementTables) -> Sequence[LeastInterference]:
    """Harmony's two baselines that predict slowdowns."""
    return (
        LeastInterference("lif-linear", tables.lif_linear),
        LeastInterference("lif-quadratic", tables.lif_quadratic),
    )


def harmony_policy(net: PolicyNet, policies: Mapping[str, PlacementPolicy]) -> Harmony:
    """Harmony's net as a policy; the most trusted heuristic answers if the net fails."""
    return Harmony(net, policies[PROPOSERS[0]])


def ldwp_policy(net: NodeValues, policies: Mapping[str, PlacementPolicy]) -> LearnedNodes:
    """LDWP's net as a policy for pipelines; the default policy places other jobs."""
    return LearnedNodes(net, policies[DEFAULT_POLICY])


def search_policy(
    scorer: SpeedScorer,
    policies: Mapping[str, PlacementPolicy],
    most: int = 8,
    harmony: Harmony | None = None,
    samples: int = 0,
) -> BestOfK:
    """Best of the placements of `most` proposers, judged by `scorer`: the heuristics in `policies`, and Harmony's net
    if present, with `samples` further draws from it.

    With a net, its proposal replaces that of the last heuristic, and jobs of a request are placed in Harmony's
    order.
    """
    proposers = [policies[name] for name in PROPOSERS]
    return BestOfK(_with_harmony(proposers, harmony, samples)[:most], scorer, most, arranger=harmony)


def adaptive_policy(
    scorer: SpeedScorer, policies: Mapping[str, PlacementPolicy], most: int = 8, harmony: Harmony | None = None
) -> Adaptive:
    """The search that learns from reports: as `search_policy`, with gangs that keep apart among the proposals."""
    proposers = _with_harmony([policies[name] for name in PROPOSERS], harmony, 0)
    proposers.insert(1, policies[ConsolidateApart.name])
    return Adaptive(proposers[:most], scorer, most, arranger=harmony)


def _with_harmony(proposers: Sequence[PlacementPolicy], harmony: Harmony | None, samples: int) -> list[PlacementPolicy]:
    """Its own proposal and so many draws come second."""
    first, *others = proposers
    if harmony is None:
        return [first, *others]
    return [first, harmony, *(HarmonySample(harmony, seed) for seed in range(1, samples + 1)), *others]
