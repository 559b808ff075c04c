"""How soon the paper's DQN is worth having, with pre-training and without. Judges nothing."""

import functools

import numpy as np

from placewise_training.ldwp.judge import SIZES
from placewise_training.reproduce.design import Curve, InterruptedRunError
from placewise_training.reproduce.harmony.runs import FIRST_SEED
from placewise_training.reproduce.ldwp.runs import TRUTH, UNITS, written_dqn
from placewise_training.sim.hardware import ldwp_cluster
from placewise_training.sim.pipelines.applications import PipelineWorkload
from placewise_training.sim.pipelines.engine import PipelineSimulation

_WIDTH = 100  # decisions a point of the curve is the mean of
_BAND = 0.1


def iterations(is_pretrained: bool, seed: int, tasks: int) -> tuple[float, Curve]:
    """Decisions until the mean of a hundred is within a tenth of the better plateau; all of them if never. And the
    curve."""
    curves = {kind: _smoothed(seed, tasks, is_pretrained=kind) for kind in (True, False)}
    goal = max(float(np.mean(curve[-max(1, len(curve) // 3) :])) for curve in curves.values())
    curve = curves[is_pretrained]
    reached = np.flatnonzero(np.array(curve) >= (1.0 - _BAND) * goal)
    width = min(_WIDTH, tasks)
    found = float(reached[0] + width) if len(reached) else float(tasks)
    return found, (list(range(width, width + len(curve))), list(curve))


@functools.cache
def _smoothed(seed: int, tasks: int, *, is_pretrained: bool) -> tuple[float, ...]:
    agent = written_dqn(FIRST_SEED + seed, is_pretrained=is_pretrained)
    work = PipelineWorkload(tasks=tasks, per_minute=50.0, sizes=SIZES).generate(TRUTH, FIRST_SEED + seed)
    units = UNITS["algorithm 2"](FIRST_SEED + seed)
    simulation = PipelineSimulation(ldwp_cluster(11), work, TRUTH, agent, units, seed=FIRST_SEED + seed)
    if simulation.run().is_partial:
        raise InterruptedRunError
    width = min(_WIDTH, tasks)
    return tuple(np.convolve(agent.throughputs[:tasks], np.full(width, 1.0 / width), mode="valid").tolist())
