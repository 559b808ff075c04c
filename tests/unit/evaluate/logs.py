"""Small logs of decisions, made by hand."""

import numpy as np

from placewise_core.basics.arrays import FloatArray, IntArray
from placewise_training.evaluate.decisions import LoggedDecisions, Options


def made(
    reward: FloatArray,
    action: IntArray,
    propensity: FloatArray,
    candidate: FloatArray,
    own: FloatArray,
    block: IntArray | None = None,
    features: FloatArray | None = None,
) -> LoggedDecisions:
    """From (N,) rewards and actions, and (N, A) probabilities of each of A placements; (N, A, F) features."""
    count, actions = propensity.shape
    each = np.arange(count)
    inputs = np.tile(np.eye(actions), (count, 1, 1)) if features is None else features
    return LoggedDecisions(
        reward,
        propensity[each, action],
        candidate[each, action],
        own[each, action],
        each if block is None else block,
        inputs[each, action],
        Options(
            np.repeat(each, actions),
            candidate.ravel(),
            own.ravel(),
            propensity.ravel(),
            inputs.reshape(count * actions, -1),
        ),
    )


def weighed(weights: FloatArray, reward: FloatArray | None = None) -> LoggedDecisions:
    """One decision for each weight: the candidate's placement was drawn with probability 1/w, or, for w = 0, another
    one. The policy in force always gives the other."""
    chance = np.divide(1.0, weights, out=np.full(len(weights), 0.5), where=weights > 0)
    propensity = np.stack([1.0 - chance, chance], axis=1)
    candidate = np.tile([0.0, 1.0], (len(weights), 1))
    rewards = np.ones(len(weights)) if reward is None else reward
    return made(rewards, (weights > 0).astype(np.int64), propensity, candidate, 1.0 - candidate)
