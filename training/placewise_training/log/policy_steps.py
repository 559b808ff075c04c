"""Decisions of Harmony's net from a log: inputs at each task, the node taken, probabilities and reward.

Of decisions whose alternatives were worked out by a service with the net; whichever policy decided, the steps are those
by which the net would have come to the answered placement. An override keeps that placement, and is marked.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from placewise_core.basics.arrays import Float32, FloatArray, IntArray
from placewise_log.record import Choice
from placewise_log.store import LogStore
from placewise_training.log.index import LogIndex
from placewise_training.log.places import Placed, Places


class PolicySteps(NamedTuple):
    """One job of T tasks with C candidate nodes: tokens (T, C, F), action (T,) candidate of each task, probability (T,)
    of the net for it. `propensity` is P and `own` π of the policy in force, `reward` None if it is not known (yet).
    `choice` has the whole observation, if it was logged."""

    time_s: float
    policy: str
    tokens: Float32
    action: IntArray
    probability: FloatArray
    propensity: float
    own: float
    reward: float | None
    is_overridden: bool
    choice: Choice | None


@dataclass(slots=True)
class PolicyStepRows:
    """The index reads the column of `joined` that is the reward. `counts` as those of Places."""

    store: LogStore
    index: LogIndex
    counts: Counter[str] = field(default_factory=Counter)

    def __iter__(self) -> Iterator[PolicySteps]:
        """Raises LogError."""
        places = Places(self.store, self.index)
        left_out: Counter[str] = Counter()
        for placed in places:
            found = _steps_of(placed)
            if found is None:
                left_out["without the net's steps"] += 1
            else:
                yield found
        self.counts = places.counts + left_out


def _steps_of(placed: Placed) -> PolicySteps | None:
    record, job_id = placed.record, placed.job.id
    steps = next((each for each in record.steps if each.job_id == job_id), None)
    nodes = {task.task: task.node for task in placed.decided.assignments}
    if steps is None or any(nodes.get(task) not in steps.nodes for task in steps.tasks):
        return None
    draw = record.draw_of(job_id)
    return PolicySteps(
        record.time_s,
        (draw.explorer if draw is not None else "") or record.meta.policy,
        steps.tokens.unpack().astype(np.float32),
        np.array([steps.nodes.index(nodes[task]) for task in steps.tasks]),
        np.array(steps.probabilities),
        placed.decided.propensity,
        draw.own_propensity if draw is not None else placed.decided.propensity,
        placed.outcome.reward,
        placed.outcome.is_overridden,
        next((each for each in record.choices if each.job_id == job_id), None),
    )
