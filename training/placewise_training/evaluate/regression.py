"""The direct method's forecast: ridge regression of our own, cross-fitted by blocks of time.

It reads given features, and neither the candidate's nor the incumbent's reward model: a candidate chosen by a model
would look as good as that model thinks.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from placewise_core.basics.arrays import FloatArray, IntArray
from placewise_training.evaluate.decisions import LoggedDecisions
from placewise_training.evaluate.estimators import Forecast

FOLDS = 5
# Penalties tried, as shares of the number of rows: features are standardised, so 1 halves a slope.
_PENALTIES = np.logspace(-4, 1, 11)


@dataclass(frozen=True, slots=True, eq=False)
class Ridge:
    """y = mean + (x − centre) / scale · slope, cut off at the least and the largest y that it was fitted to."""

    mean: float
    least: float
    largest: float
    centre: FloatArray  # (F,)
    scale: FloatArray  # (F,)
    slope: FloatArray  # (F,)

    @classmethod
    def fitted(cls, features: FloatArray, target: FloatArray, spent: float = 1.0) -> Self:
        """Of (N, F) and (N,). The penalty has the least generalised cross-validation error (Golub, Heath & Wahba 1979):
        Σ residual² / (1 − degrees of freedom / N)². `spent` of those went into means taken off before."""
        count = len(target)
        mean, centre, scale = float(target.mean()), features.mean(axis=0), features.std(axis=0)
        scale = np.where(scale > 0.0, scale, 1.0)
        inputs, wanted = (features - centre) / scale, target - mean
        eigenvalues, axes = np.linalg.eigh(inputs.T @ inputs / count)
        eigenvalues = np.maximum(eigenvalues, 0.0)
        along = axes.T @ (inputs.T @ wanted) / count  # (F,) covariance with each principal axis
        # (P, F): shrunk slopes along each axis; the residuals follow from the covariances alone
        shrunk = along / (eigenvalues + _PENALTIES[:, None])
        left = float(wanted @ wanted) / count + (shrunk * (eigenvalues * shrunk - 2.0 * along)).sum(axis=1)
        freedom = spent + (eigenvalues / (eigenvalues + _PENALTIES[:, None])).sum(axis=1)
        errors = np.maximum(left, 0.0) / np.maximum(1.0 - freedom / count, 1.0 / count) ** 2
        best = axes @ shrunk[int(errors.argmin())]
        return cls(mean, float(target.min()), float(target.max()), centre, scale, best)

    def predicted(self, features: FloatArray) -> FloatArray:
        """(N,) of (N, F)."""
        line = self.mean + (features - self.centre) / self.scale @ self.slope
        return np.clip(line, self.least, self.largest)


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
