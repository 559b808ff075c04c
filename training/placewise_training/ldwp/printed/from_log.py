"""LDWP's DQN learns from a decision log as it does while it serves: each pipeline is an action, whoever chose it.

The reward is the change of throughput, which of a log is pipelines ended per minute, as in online/following.py.
"""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from placewise_core.basics.arrays import Float32, FloatArray
from placewise_core.domain.job import Job
from placewise_core.inputs.ldwp_paper import order_of, state_of
from placewise_core.view.view import ClusterView
from placewise_training.ldwp.agent import TYPES, DqnSettings, PaperDqn, cloned_choices
from placewise_training.ldwp.data import late
from placewise_training.ldwp.net import FixedDqn, transferred
from placewise_training.log.choosing.pipelines import PipelineStep, PipelineSteps, centred, choice_gain
from placewise_training.log.later import HeldBack, gain, held_back

_SETTINGS = DqnSettings()


class PaperState(NamedTuple):
    """The state of the paper (columns,) over these nodes."""

    nodes: tuple[str, ...]
    state: Float32


PaperStep = PipelineStep[PaperState]


class LogSteps(NamedTuple):
    """Steps of one cluster, and the pipelines per minute that ended in the window before each."""

    rows: HeldBack[PaperStep]
    learn: FloatArray
    later: FloatArray

    @property
    def nodes(self) -> tuple[str, ...]:
        """Those of the latest step to learn from."""
        return self.rows.learn[-1].state.nodes


def log_steps(where: str, before_s: float = 0.0) -> LogSteps:
    """Of decisions before `before_s`, 0 for all; of the cluster with most of them. Raises LogError, and ValueError for
    too few steps."""
    log = held_back(lambda store, index: PipelineSteps(store, index, _state), where, before_s)
    cluster, _ = Counter(step.cluster for step in log.learn).most_common(1)[0]
    learn, later = ([step for step in steps if step.cluster == cluster] for steps in (log.learn, log.later))
    ends = np.sort([step.end_time_s for step in (*learn, *later) if step.end_time_s is not None and not step.is_bound])
    kept = log._replace(learn=learn, later=later)
    return LogSteps(kept, *(_throughput(np.array([step.time_s for step in steps]), ends) for steps in (learn, later)))


def _state(job: Job, view: ClusterView) -> tuple[PaperState, Sequence[str]] | None:
    names = tuple(view.nodes.records[m].id for m in range(view.nodes.size))
    if job.model not in TYPES:
        return None
    return PaperState(names, state_of(job, view, TYPES, order_of(view, names))), names


def _throughput(time_s: FloatArray, ends_s: FloatArray) -> FloatArray:
    until, since = (np.searchsorted(ends_s, at, side="right") for at in (time_s, time_s - _SETTINGS.window_s))
    return np.asarray(60.0 * (until - since) / _SETTINGS.window_s)


def pretrained_by(log: LogSteps, seed: int) -> FixedDqn:
    """The MLP trained by supervision (4.2.2), by the choices of the log itself."""
    steps = [step for step in log.rows.learn if step.state.nodes == log.nodes]
    return cloned_choices(log.nodes, [step.state.state for step in steps], [step.action for step in steps], seed)


def learned(net: FixedDqn, log: LogSteps, seed: int, passes: int) -> FixedDqn:
    """The net after Algorithm 1 on the steps, again and again in their order."""
    agent = PaperDqn(net=net, seed=seed)
    for _ in range(passes):
        agent.interrupt()
        for step, throughput in zip(log.rows.learn, log.learn.tolist(), strict=True):
            agent.follow(agent.net_for(step.state.nodes), step.state.state, step.action, throughput)
    return agent.net_for(log.nodes)


def log_report(where: str, log: LogSteps, before: FixedDqn, after: FixedDqn) -> dict[str, Any]:
    """The part of the report about the log: steps, and how much better the new net chooses on the later ones, by their
    turnarounds; beside it the temporal differences. Raises ValueError if they are on other nodes or have no
    alternatives."""
    steps = [step for step in log.rows.later if step.state.nodes == log.nodes]
    if len(steps) < len(log.rows.later) or len(steps) < 2:
        raise ValueError("the nodes of the cluster are others in the later part of the log")
    found = [_errors(net, steps, log.later) for net in (before, after)]
    differences = gain(found[0], found[1], np.array([step.time_s for step in steps[:-1]]))
    earned, usual = (late(np.array([step.took_s for step in part])) for part in (steps, log.rows.learn))
    levels = np.full(len(steps), usual.mean())
    later = choice_gain(steps, earned, partial(_values, before), partial(_values, after), levels)
    return {**log.rows.report(where, later), "later_differences": differences}


def _values(net: FixedDqn, seen: PaperState) -> FloatArray:
    with torch.no_grad():
        return np.asarray(net(torch.from_numpy(seen.state)[None])[0].double().numpy())


def _errors(net: FixedDqn, steps: Sequence[PaperStep], throughput: FloatArray) -> FloatArray:
    with torch.no_grad():
        values = net(torch.from_numpy(np.stack([step.state.state for step in steps]))).double().numpy()
    rewards = _SETTINGS.reward_scale * np.array([after - before for before, after in pairwise(throughput)])
    own = values[np.arange(len(steps)), [step.action for step in steps]]
    missing = rewards + _SETTINGS.gamma * values[1:].max(axis=1) - own[:-1]
    return centred(missing, np.zeros(len(missing), dtype=np.bool_))


def on_nodes(net: FixedDqn, nodes: Sequence[str]) -> FixedDqn:
    """The net, transferred if it is of other nodes."""
    return net if net.nodes == tuple(nodes) else transferred(net, nodes)
