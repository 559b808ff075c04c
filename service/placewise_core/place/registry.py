"""The placement policies by name. Nothing here decides."""

from collections.abc import Mapping

from placewise_core.place.bin_packing import BinPacking
from placewise_core.place.consolidate import Consolidate
from placewise_core.place.ect import ExpectedCompletionTime
from placewise_core.place.lif import LeastInterference
from placewise_core.place.load_balance import LoadBalance
from placewise_core.place.pats import RelativePerformance
from placewise_core.place.policy import PlacementPolicy
from placewise_core.place.random_fit import Random
from placewise_core.place.search import BestOfK, SpeedScorer
from placewise_core.place.tables import PlacementTables, packaged_tables
from placewise_core.place.tetris import Tetris
from placewise_core.place.tiresias import Tiresias

DEFAULT_POLICY = "load-balance"
SEARCH_POLICY = BestOfK.name
# Who proposes to the search, in order of trust: deterministic ones only, so that a choice has propensity 1.
PROPOSERS = (
    "consolidate",
    "tiresias",
    "tetris",
    "load-balance",
    "lif-quadratic",
    "pats",
    "lif-linear",
    "bin-packing",
    "ect",
)


def placement_policies(tables: PlacementTables | None = None) -> dict[str, PlacementPolicy]:
    """Every heuristic policy by its name, on the packaged tables unless others are given."""
    known = tables or packaged_tables()
    policies: tuple[PlacementPolicy, ...] = (
        LoadBalance(),
        BinPacking(),
        Tetris(),
        Tiresias(known.skew),
        LeastInterference("lif-linear", known.lif_linear),
        LeastInterference("lif-quadratic", known.lif_quadratic),
        Consolidate(),
        Random(),
        ExpectedCompletionTime(known.gpu_speeds),
        RelativePerformance(known.gpu_speeds),
    )
    return {policy.name: policy for policy in policies}


def search_policy(scorer: SpeedScorer, policies: Mapping[str, PlacementPolicy], most: int = 8) -> BestOfK:
    """Best of `most` placements of the heuristics in `policies`, judged by `scorer`."""
    return BestOfK([policies[name] for name in PROPOSERS], scorer, most)
