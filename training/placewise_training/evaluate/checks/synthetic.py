"""Synthetic logs whose truth is known in closed form, to measure how often an interval holds it.

Four placements: 0 is the incumbent's, 1 the candidate's. Load and hidden interference are step functions of time with
memory, so rewards near in time depend on one another; the probability of the candidate's placement falls with the load.
"""

from dataclasses import dataclass

import numpy as np
from scipy import signal, special

from placewise_core.basics.arrays import FloatArray
from placewise_training.evaluate.decisions import LoggedDecisions, Options

BLOCKS = 40
_STEPS_PER_BLOCK = 8
# Of two neighbouring steps. The correlation has fallen to 1/e after two steps, a quarter of a block.
_MEMORY = np.exp(-0.5)
_PLACEMENTS = 4
_INCUMBENT, _CANDIDATE = 0, 1
# Added to the mean reward by each placement, at mean load.
_EFFECT = np.array([0.0, 0.05, -0.1, -0.2])
# Shares of the probability that the candidate's placement leaves.
_OTHERS = np.array([0.8, 0.0, 0.1, 0.1])
# Largest mean, (1 + 0.3 + 0.2 + 2 · 0.05) · 1.2, times the largest noise, 2.
REWARD_BOUND = 3.84


@dataclass(frozen=True, slots=True)
class Weights:
    """Probabilities of the candidate's placement: log-uniform from `least` to `most`. A weight is 1 over it, or 0."""

    least: float
    most: float

    @property
    def mean_square(self) -> float:
        """E w² = E 1/p."""
        return float((1.0 / self.least - 1.0 / self.most) / np.log(self.most / self.least))


# Heavy: at an ESS of 100 the largest weight has 5 % of the sum, half of what evaluation refuses.
WEIGHTS = {"light": Weights(0.3, 0.7), "heavy": Weights(0.005, 0.5)}
TRUE_VALUE = float(1.0 + 0.2 * np.exp(-0.5) + _EFFECT[_CANDIDATE])
TRUE_GAIN = float(_EFFECT[_CANDIDATE] - _EFFECT[_INCUMBENT])


def synthetic_log(weights: Weights, ess: float, seed: int) -> LoggedDecisions:
    """A log of N = `ess` · E w² decisions, in 40 blocks of time. Equal seeds give equal logs."""
    rng = np.random.default_rng(seed)
    count = round(ess * weights.mean_square)
    step = np.sort(rng.integers(BLOCKS * _STEPS_PER_BLOCK, size=count))
    load, hidden = _with_memory(rng)[step], _with_memory(rng)[step]
    size = rng.standard_normal(count)
    rank = special.ndtr(0.5 * load + np.sqrt(0.75) * rng.standard_normal(count))
    chance = weights.most * (weights.least / weights.most) ** rank
    propensity = _OTHERS * (1.0 - chance[:, None])
    propensity[:, _CANDIDATE] = chance
    action = (rng.random(count)[:, None] > propensity.cumsum(axis=1)[:, :-1]).sum(axis=1)
    mean = (1.0 - 0.3 * np.tanh(load) + 0.2 * np.cos(size) + _EFFECT[action] * (1.0 + np.tanh(load))) * (
        1.0 + 0.2 * np.tanh(hidden)
    )
    reward = mean * 2.0 * rng.beta(2.0, 2.0, count)
    features = _features(load, size)
    logged = np.arange(count) * _PLACEMENTS + action
    every = np.arange(count * _PLACEMENTS)
    kind = every % _PLACEMENTS
    candidate, own = (kind == _CANDIDATE).astype(np.float64), (kind == _INCUMBENT).astype(np.float64)
    return LoggedDecisions(
        reward,
        propensity.ravel()[logged],
        candidate[logged],
        own[logged],
        step // _STEPS_PER_BLOCK,
        features[logged],
        Options(every // _PLACEMENTS, candidate, own, propensity.ravel(), features),
    )


def _with_memory(rng: np.random.Generator) -> FloatArray:
    """(steps,) a stationary AR(1) of variance 1."""
    noise = rng.standard_normal(BLOCKS * _STEPS_PER_BLOCK)
    noise[1:] *= np.sqrt(1.0 - _MEMORY**2)
    values: FloatArray = signal.lfilter([1.0], [1.0, -_MEMORY], noise)
    return values


def _features(load: FloatArray, size: FloatArray) -> FloatArray:
    """(4 N, 9) load, size, load², the placement, and load beside each placement. A line cannot follow tanh and cos, and
    interference is hidden: the forecast is wrong on purpose."""
    placement = np.tile(np.eye(_PLACEMENTS)[:, 1:], (len(load), 1))
    context = np.repeat(np.stack([load, size, load**2], axis=1), _PLACEMENTS, axis=0)
    return np.hstack([context, placement, placement * context[:, :1]])
