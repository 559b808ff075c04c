"""Whether a log says enough about a candidate, and the names of the reasons for which it does not."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Self

import numpy as np

from placewise_core.basics.arrays import FloatArray
from placewise_training.evaluate.decisions import LoggedDecisions

MOST_UNSUPPORTED = 0.05
LEAST_ESS = 100.0
MOST_SHARE = 0.1


class Refusal(StrEnum):
    """Why a candidate is not evaluated."""

    NO_EXPLORATION = "NO_EXPLORATION"
    WITHOUT_SUPPORT = "WITHOUT_SUPPORT"
    LOW_ESS = "LOW_ESS"
    HEAVY_WEIGHT = "HEAVY_WEIGHT"


class Refused(NamedTuple):
    """A reason with its numbers in words."""

    name: Refusal
    text: str


@dataclass(frozen=True, slots=True)
class Support:
    """How much a log holds of a candidate. The last three are of the decisions on which the two differ."""

    decisions: int
    ess: float
    explored: int  # decisions whose placement was drawn, P < 1
    differing: int
    unsupported: float  # share of the candidate's probability on placements that the log could not have held
    differing_ess: float
    largest_share: float  # of the largest weight in their sum

    @classmethod
    def of(cls, log: LoggedDecisions) -> Self:
        differs = log.differing
        weights, unsupported = log.weights[differs], log.unsupported[differs]
        total = float(weights.sum())
        return cls(
            decisions=len(log.reward),
            ess=effective_size(log.weights),
            explored=int((log.propensity < 1.0).sum()),
            differing=int(differs.sum()),
            unsupported=float(unsupported.mean()) if len(unsupported) else 0.0,
            differing_ess=effective_size(weights),
            largest_share=float(weights.max()) / total if total else 0.0,
        )

    @property
    def refusals(self) -> tuple[Refused, ...]:
        """Every reason not to evaluate the candidate, with its numbers; empty if there is none."""
        found = []
        if self.explored == 0:
            found.append(
                Refused(Refusal.NO_EXPLORATION, f"none of {self.decisions} decisions was drawn: all have probability 1")
            )
        if self.unsupported > MOST_UNSUPPORTED:
            found.append(
                Refused(
                    Refusal.WITHOUT_SUPPORT,
                    f"the log could not have held {self.unsupported:.1%} of the candidate's placements on the "
                    f"{self.differing} decisions on which the two differ; {MOST_UNSUPPORTED:.0%} are allowed",
                )
            )
        if self.differing_ess < LEAST_ESS:
            found.append(
                Refused(
                    Refusal.LOW_ESS,
                    f"the {self.differing} decisions on which the two differ say as much as "
                    f"{self.differing_ess:.1f} of the candidate's own; {LEAST_ESS:.0f} are needed",
                )
            )
        if self.largest_share > MOST_SHARE:
            found.append(
                Refused(
                    Refusal.HEAVY_WEIGHT,
                    f"one decision has {self.largest_share:.1%} of all weight on those on which the two differ; "
                    f"{MOST_SHARE:.0%} are allowed",
                )
            )
        return tuple(found)


def effective_size(weights: FloatArray) -> float:
    """ESS = (Σw)² / Σw²: as many decisions of the candidate's own would say as much (Kish 1965). 0 without weights."""
    squares = float(np.square(weights).sum())
    return float(weights.sum()) ** 2 / squares if squares else 0.0
