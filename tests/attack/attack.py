"""One attack: the promise that it tries to break, the test that holds the promise, and a measurement of a source tree.

An attack runs real processes of a `Source` (today's tree, or that of an earlier commit) and returns figures. Whether
the promise holds is computed from the figures alone, so that the same script judges both trees.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.attack.source import Source

# Figure name, its unit in the name's suffix → a number or a word.
Figures = Mapping[str, float | int | str]


class CannotRunError(Exception):
    """This machine lacks something that the attack needs; the text says what."""


@dataclass(frozen=True, slots=True)
class Attack:
    """`measure` raises CannotRunError if the machine lacks something it needs. `is_quick`: the attack takes seconds and
    belongs to the short form. `needs` names settings, commands or fields that the earlier tree does not have: there the
    attack is not run, and the report gives the reason."""

    name: str
    promise: str
    test: str  # "tests/contract/test_x.py::test_y"
    measure: Callable[[Source], Figures]
    holds: Callable[[Figures], bool]
    is_quick: bool = True
    needs: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """The effect of an attack on one tree. `figures` is empty if it did not run; `reason` then gives the cause."""

    attack: Attack
    figures: Figures = field(default_factory=dict)
    reason: str = ""
    seconds: float = 0.0
    is_skipped: bool = False

    @property
    def is_held(self) -> bool:
        return bool(self.figures) and self.attack.holds(self.figures)
