"""Ridge regression, its penalty by generalised cross-validation. Pure."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from placewise_core.basics.arrays import FloatArray

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
