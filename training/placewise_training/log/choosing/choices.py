"""How well a net would have chosen on logged decisions, between the placements that the log could have taken. Pure.

Each of these has its probability P, so 1{a = the net's choice} / P(a) · reward of the placement a that was taken
estimates, without bias, the mean reward if this one decision were the net's. A forecast's error may fall though the net
learned nothing of the choice; this does not.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from placewise_core.basics.arrays import FloatArray
from placewise_training.log.later import gain


class LoggedChoice(NamedTuple):
    """A decision between K placements with these probabilities (K,), of which the `taken` earned `reward`."""

    time_s: float
    propensities: Sequence[float]
    taken: int
    reward: float


def worth(decisions: Sequence[LoggedChoice], choices: Sequence[int], levels: FloatArray) -> FloatArray:
    """Importance-weighted rewards (N,) of a net that would have made these choices.

    Each reward is taken relative to its entry of `levels` (N,), a baseline that depends on the decision but not on the
    placement: it lowers the noise and leaves the mean."""
    return np.array(
        [
            (each.reward - level) / each.propensities[each.taken] if each.taken == choice else 0.0
            for each, choice, level in zip(decisions, choices, levels.tolist(), strict=True)
        ]
    )


def gain_of_choices(
    decisions: Sequence[LoggedChoice], before: Sequence[int], after: Sequence[int], levels: FloatArray
) -> dict[str, Any]:
    """As gain(), with minus the worth as error. Raises ValueError without decisions."""
    if not decisions:
        raise ValueError("no later decision has a reward and alternatives with probabilities: export a longer log")
    errors = [-worth(decisions, choices, levels) for choices in (before, after)]
    return gain(errors[0], errors[1], np.array([each.time_s for each in decisions]))
