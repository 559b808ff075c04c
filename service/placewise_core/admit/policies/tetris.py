"""Tetris with a throughput model: jobs by alignment with free resources, each in its fastest (or cheapest) shape.

Order, as Tetris defines it: alignment a = Σ over the nodes taken of (GPUs asked there / G)·(GPUs free there / G), plus
(ā/p̄)·(−p) with p the work that remains, so that short jobs go first among equals. A job that does not fit is passed.
"""

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from placewise_core.admit.greedy import GreedyAdmission, Round, WaitingJob
from placewise_core.admit.shapes import Options
from placewise_core.basics.arrays import FloatArray
from placewise_core.basics.slices import spaced


class _Tetris(GreedyAdmission):
    stops_at_first_wait = False

    @abstractmethod
    def merit(self, waiting: WaitingJob, options: Options, state: Round) -> FloatArray:
        """(K,) the merit of each shape; the largest is chosen."""

    def choose(self, waiting: WaitingJob, options: Options, state: Round) -> int | None:
        return int(np.argmax(self.merit(waiting, options, state)))

    def order(self, waiting: Sequence[WaitingJob], state: Round) -> Sequence[WaitingJob]:
        if not waiting:
            return waiting
        alignment = np.array([self._alignment(w, state) for w in spaced(waiting, state.context.slices, 1)])
        work = np.array([w.single_s for w in waiting])
        score = alignment - alignment.mean() / max(float(work.mean()), 1e-9) * work
        return [waiting[int(i)] for i in np.argsort(-score, kind="stable")]

    def _alignment(self, waiting: WaitingJob, state: Round) -> float:
        options = state.pool.options(waiting.job)
        if len(options) == 0:
            return 0.0
        i = self.choose(waiting, options, state)
        if i is None:
            return 0.0
        per_node = float(options.gpus_per_node[i])
        fitting = state.pool.gpus[state.pool.gpus >= per_node]
        fullest = float(fitting.max(initial=0))
        return float(options.nodes[i]) * per_node * fullest / state.facts.gpus_per_node**2


class TetrisPerf(_Tetris):
    """Tetris order; the shape of highest throughput."""

    name = "tetris-perf"

    def merit(self, waiting: WaitingJob, options: Options, state: Round) -> FloatArray:
        return state.rate(waiting, options)


class TetrisCer(_Tetris):
    """Tetris order; the shape of highest CER, regardless of the expected completion."""

    name = "tetris-cer"

    def merit(self, waiting: WaitingJob, options: Options, state: Round) -> FloatArray:
        return state.cer(waiting, options)
