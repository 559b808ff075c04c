"""A paper as it is reproduced: its experiments and its claims. Plain data; runs nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

from placewise_training.reproduce.claims import Claim
from placewise_training.reproduce.design import Experiment, NeedsBundleError, TrialOf, TrialOutcome


@dataclass(frozen=True, slots=True)
class Paper:
    """A whole evaluation. `assumptions`: points that the paper leaves open, and our choices."""

    name: str
    title: str
    experiments: Sequence[Experiment]
    claims: Sequence[Claim]
    assumptions: Sequence[str] = ()

    def attempt(self, one: TrialOf) -> TrialOutcome | NeedsBundleError:
        """The outcome of a trial, or why it cannot have one."""
        experiment = next(each for each in self.experiments if each.key == one.experiment)
        try:
            return experiment.trial(one.setting, one.method, one.seed)
        except NeedsBundleError as error:
            return error
