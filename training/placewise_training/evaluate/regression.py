"""The direct method's forecast: ridge regression of our own, cross-fitted by blocks of time.

It reads given features, and neither the candidate's nor the incumbent's reward model: a candidate chosen by a model
would look as good as that model thinks.
"""

import numpy as np

from placewise_core.basics.arrays import IntArray
from placewise_training.evaluate.decisions import LoggedDecisions
from placewise_training.evaluate.estimators import Forecast
from placewise_training.log.choosing.ridge import Ridge

FOLDS = 5


def folds_of(block: IntArray, count: int = FOLDS) -> IntArray:
    """(N,) fold of each decision: contiguous runs of blocks, about equally many blocks each."""
    found, place = np.unique(block, return_inverse=True)
    return place * min(count, len(found)) // len(found)


def cross_fitted(log: LoggedDecisions, folds: int = FOLDS) -> Forecast:
    """q̂ of each decision and its options from a ridge that has seen no decision of their fold. Raises ValueError for
    fewer than two blocks, which leave nothing to fit on."""
    fold = folds_of(log.block, folds)
    if fold[-1] == fold[0]:
        raise ValueError("all decisions are of one block of time: a forecast cannot be cross-fitted")
    logged, options = np.empty(len(log.reward)), np.empty(len(log.options.decision))
    option_fold = fold[log.options.decision]
    for one in np.unique(fold):
        mine = fold == one
        ridge = Ridge.fitted(log.features[~mine], log.reward[~mine])
        logged[mine] = ridge.predicted(log.features[mine])
        theirs = option_fold == one
        options[theirs] = ridge.predicted(log.options.features[theirs])
    return Forecast(logged, options)
