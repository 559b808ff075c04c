"""Harmony's actor-critic learns from a decision log: (2) on the placements that were taken, whoever chose them.

The reward of a decision is the progress of its neighbourhood over the paper's interval of 20 minutes, as logged. The
next decision is the next state. A task's behaviour probability is the T-th root of P of its gang of T.
"""

from collections.abc import Sequence

import numpy as np
import torch

from placewise_core.basics.arrays import BoolArray, Float32, FloatArray
from placewise_core.domain.job import Job
from placewise_core.gang.context import PlaceContext
from placewise_core.policies.printed.harmony_paper import HarmonyPaper
from placewise_core.policies.registry import placement_policies
from placewise_core.view.view import ClusterView
from placewise_training.log.later import HeldBack
from placewise_training.policy.logged.from_log import LogPi, PolicyRow, log_rows
from placewise_training.policy.net import masked_log_probabilities
from placewise_training.policy.printed.net import PaperPolicy
from placewise_training.policy.printed.rollouts import ActingNet, Interval, PaperStep
from placewise_training.policy.teacher import Lesson
from placewise_training.sim.arrivals import INTERVAL_S

Steps = tuple[PaperStep, ...]


class Reader:
    """Reads logged views as the net does; of clusters of another size it reads nothing."""

    def __init__(self, net: PaperPolicy) -> None:
        self._net = ActingNet(net)
        self._policy = HarmonyPaper(self._net, placement_policies()["consolidate"])

    def along(self, lesson: Lesson, job: Job, view: ClusterView, context: PlaceContext) -> Steps | None:
        """The steps to the placement of a lesson; None if the net cannot take them."""
        if view.nodes.size != self._net.nodes:
            return None
        steps, left = list[PaperStep](), lesson.counts[lesson.best].reshape(-1).copy()

        def choose(logits: Float32, mask: BoolArray, task: int) -> tuple[int, float]:
            wanted = np.flatnonzero(mask & (left > 0))
            action = int(wanted[0]) if len(wanted) else int(np.flatnonzero(mask)[0])
            left[action] -= 1
            steps.append(PaperStep(self._net.asked, mask.copy(), action, 1.0))
            return action, 1.0

        proposal = self._policy.decode(job, view, context, choose)
        return tuple(steps) if proposal is not None and not left.any() else None


def log_decisions(where: str, before_s: float, net: PaperPolicy) -> HeldBack[PolicyRow[Steps]]:
    """Of decisions before `before_s`, 0 for all. Raises LogError, and ValueError for too few rows."""
    return log_rows(where, before_s, Reader(net).along, lambda job, view, context: None)


def intervals_of(rows: Sequence[PolicyRow[Steps]]) -> list[Interval]:
    """The decisions whose reward is known, each as an interval of its own."""
    known = [(row, row.reward) for row in rows if row.reward is not None]
    after = [row.time_s for row, _ in known[1:]]
    passed = [(until - row.time_s) / INTERVAL_S for (row, _), until in zip(known, after, strict=False)]
    found = []
    for (row, reward), share in zip(known, [*passed, 1.0], strict=True):
        way, propensity, _ = row.choices[row.chosen]
        odds = propensity ** (1.0 / len(way))
        found.append(Interval([PaperStep(s.rows, s.mask, s.action, odds) for s in way], reward, share))
    return found


def log_pi_of(net: PaperPolicy) -> LogPi[Steps]:
    """The log of the probability of each way."""

    def found(ways: Sequence[Steps]) -> FloatArray:
        sums = np.empty(len(ways))
        for i, way in enumerate(ways):
            rows = torch.from_numpy(np.stack([step.rows for step in way]))
            mask = torch.from_numpy(np.stack([step.mask for step in way]))
            with torch.no_grad():
                log_pi = masked_log_probabilities(net(rows, torch.ones(rows.shape[:2]))[:, 0], mask)
            sums[i] = float(log_pi[torch.arange(len(way)), [step.action for step in way]].sum())
        return sums

    return found
