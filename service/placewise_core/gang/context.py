"""Inputs of one decision besides the view."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from placewise_core.basics.arrays import BoolArray
from placewise_core.basics.slices import ONE_SLICE, Slices
from placewise_core.speed.interference import GpuInterference, NoInterference


@dataclass(slots=True)
class PlaceContext:
    """Inputs of one decision besides the view.

    `deadline_s` is a reading of `Clock.monotonic_s`; a policy that searches stops before it. `is_explaining` asks for
    candidates with their score terms, `is_recording` for a net's inputs (policy.NetRead). `randomness` is a generator
    or its seed: most decisions draw nothing, and building a generator costs more than scoring thirty nodes. `slices`
    may be other than one only if the view is the decision's own. `barred`: (M,) nodes that the heads of queues keep
    from the job (heads.py); None for none. `first_offers` is the business of gang.py alone; in `notes` a policy keeps,
    under itself, results that serve it again within the request. `given` has the proposals for one job, by policy
    (explore.asked_once); None if every question is a new one. `heeds_together` and `heeds_network`: whether the wishes
    of those names (domains.py) bind the gang; why.py asks without them.
    """

    now_s: float
    randomness: np.random.Generator | int
    deadline_s: float = float("inf")
    is_explaining: bool = False
    is_recording: bool = False
    interference: GpuInterference = field(default_factory=NoInterference)
    slices: Slices = ONE_SLICE
    barred: BoolArray | None = None
    first_offers: Any = field(default=None, compare=False, repr=False)
    notes: dict[object, Any] = field(default_factory=dict, compare=False, repr=False)
    given: dict[object, Any] | None = field(default=None, compare=False, repr=False)
    heeds_together: bool = True
    heeds_network: bool = True

    @property
    def rng(self) -> np.random.Generator:
        """Seeded by the request, so that a decision can be repeated."""
        if isinstance(self.randomness, int):
            self.randomness = np.random.default_rng(self.randomness)
        return self.randomness
