"""The worth of a net's choices on logged decisions: equal to the truth in the mean, whatever the level."""

from dataclasses import replace

import numpy as np
import pytest
from tests.fakes.declog import decision

from placewise_core.policies.studies.alternatives import Alternative
from placewise_training.log.choosing.choices import LoggedChoice, gain_of_choices, worth
from placewise_training.log.choosing.pipelines import _options

TRUE = (1.0, 3.0, 2.0)  # of three placements
P = (0.7, 0.2, 0.1)


@pytest.mark.parametrize("level", [0.0, 2.5])
def test_its_mean_over_what_the_log_could_have_taken_is_the_reward_of_the_choice(level: float) -> None:
    for choice, true in enumerate(TRUE):
        taken = [LoggedChoice(0.0, P, k, reward) for k, reward in enumerate(TRUE)]
        found = worth(taken, [choice] * 3, np.full(3, level))
        assert float(np.dot(P, found)) == pytest.approx(true - level)


def test_the_better_choice_gains_and_equal_ones_do_not() -> None:
    rng = np.random.default_rng(0)
    taken = rng.choice(3, size=2000, p=P)
    log = [LoggedChoice(float(i), P, int(k), TRUE[k] + rng.normal()) for i, k in enumerate(taken)]
    levels = np.full(len(log), 1.5)
    better = gain_of_choices(log, [0] * len(log), [1] * len(log), levels)
    low, high = better["gain_interval"]
    assert 0.0 < low < TRUE[1] - TRUE[0] < high
    assert gain_of_choices(log, [2] * len(log), [2] * len(log), levels)["gain_interval"] == [0.0, 0.0]


def test_without_decisions_nothing_is_said() -> None:
    with pytest.raises(ValueError, match="no later decision has a reward"):
        gain_of_choices([], [], [], np.zeros(0))


@pytest.mark.parametrize(
    ("taken", "other", "found"),
    [
        (0.75, 0.25, ((1, 0.75), (0, 0.25))),
        (1.0, 0.0, ((1, 1.0),)),
        (None, 0.25, ((0, 0.25),)),
        (0.0, 1.0, ()),
        (1.5, 0.25, ()),
        (0.75, -0.25, ()),
        (0.75, float("nan"), ()),
    ],
)
def test_options_whose_probabilities_are_none_judge_no_choice(
    taken: float | None, other: float, found: tuple[tuple[int, float], ...]
) -> None:
    rows = (Alternative("j1", "ldwp", ("b",), True, taken, 1.0), Alternative("j1", "random", ("a",), False, other, 0.0))
    assert _options(replace(decision(1), alternatives=rows), "j1", ("a", "b")) == found
