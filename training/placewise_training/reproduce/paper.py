"""A paper as it is reproduced: its experiments and its claims. Plain data; runs nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from placewise_training.reproduce.claims import Claim
from placewise_training.reproduce.design import Experiment


@dataclass(frozen=True, slots=True)
class Paper:
    """A whole evaluation. `assumptions`: points that the paper leaves open, and our choices."""

    name: str
    title: str
    experiments: Sequence[Experiment]
    claims: Sequence[Claim]
    assumptions: Sequence[str] = ()
