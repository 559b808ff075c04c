"""Transitions of LDWP's net from a decision log, and how much better it chooses on later decisions than another.

Q learning is off policy, so the decisions of any policy give transitions. A log's return is no yardstick, as its later
decisions are mostly others than the net's. Nor are temporal differences alone: they also fall for a net that only
learned to give all states one value.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from placewise_core.basics.arrays import Float32, FloatArray
from placewise_core.domain.job import Job
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.gang import Gang
from placewise_core.inputs.ldwp import COLUMNS, RowEncoder, shortlist
from placewise_core.policies.ldwp import MOST_NODES
from placewise_core.view.view import ClusterView
from placewise_models.ldwp import LDWP_MODEL, LDWP_REPORT
from placewise_training.lab.traced import filled
from placewise_training.ldwp.data import Replay, excess_of, late
from placewise_training.ldwp.net import NodeDqn
from placewise_training.log.choosing.pipelines import PipelineStep, PipelineSteps, centred, choice_gain, following
from placewise_training.log.choosing.ridge import Ridge
from placewise_training.log.later import HeldBack, gain, held_back

NodeStep = PipelineStep[Float32]


class Weighing(Protocol):
    """Of rewards: the cost of a node's load above the mean, and the discount."""

    @property
    def balance(self) -> float: ...

    @property
    def gamma(self) -> float: ...


@dataclass(slots=True)
class NodeRows:
    """The rows of the nodes that the policy would have looked at, as it encodes them."""

    _encoder: RowEncoder = field(default_factory=RowEncoder)

    def __call__(self, job: Job, view: ClusterView) -> tuple[Float32, Sequence[str]] | None:
        gang = Gang(job, view, PlaceContext(0.0, 0))
        offer = gang.offer(gang.groups()[0])
        if offer is None:
            return None
        nodes = shortlist(view, offer.mask, MOST_NODES, offer)
        return self._encoder.encode(job, view, nodes, offer), [view.nodes.records[m].id for m in nodes.tolist()]


def log_steps(where: str, before_s: float = 0.0) -> HeldBack[NodeStep]:
    """Of decisions before `before_s`, 0 for all. Raises LogError, and ValueError for too few steps."""
    return held_back(lambda store, index: PipelineSteps(store, index, NodeRows()), where, before_s, choose=0.1)


def rewards_of(steps: Sequence[NodeStep], balance: float) -> FloatArray:
    """(N,) as data.Recorder gives them. A task that still runs earned at most this."""
    took = np.array([step.took_s for step in steps])
    excess = np.array([excess_of(step.state, step.action) for step in steps])
    return late(took) - balance * excess


def replay_of(steps: Sequence[NodeStep], balance: float) -> Replay:
    """Their transitions. The last of a cluster is followed by itself, as its successor is unknown."""
    after = following(steps)
    widest = max(len(step.state) for step in steps)
    rows = np.zeros((len(steps), widest, len(COLUMNS)), np.float32)
    mask = np.zeros((len(steps), widest), np.float32)
    for i, step in enumerate(steps):
        rows[i, : len(step.state)], mask[i, : len(step.state)] = step.state, 1.0
    action = np.array([step.action for step in steps])
    return Replay(
        rows, mask, action, action, rewards_of(steps, balance).astype(np.float32),
        np.array([i if at < 0 else at for i, at in enumerate(after)]),
        np.array([step.is_bound for step in steps]),
    )  # fmt: skip


def begun(bundle: Path) -> NodeDqn:
    """The net of a bundle. Raises ValueError for a graph of another form, OSError."""
    width = json.loads((bundle / LDWP_REPORT).read_text("utf-8"))["args"]["width"]
    return filled(NodeDqn(len(COLUMNS), width), bundle / LDWP_MODEL)


def log_report(where: str, log: HeldBack[NodeStep], before: NodeDqn, after: NodeDqn, args: Weighing) -> dict[str, Any]:
    """The part of the report about the log: steps, and how much better the new net chooses on the later ones; beside it
    the temporal differences. Raises ValueError if no later step has its alternatives."""
    usual = Ridge.fitted(_situations(log.learn), rewards_of(log.learn, args.balance))
    rewards, levels = rewards_of(log.later, args.balance), usual.predicted(_situations(log.later))
    later = choice_gain(log.later, rewards, partial(values_of, before), partial(values_of, after), levels)
    times = [step.time_s for step, at in zip(log.later, following(log.later), strict=True) if at >= 0]
    found = [errors(net, log.later, args) for net in (before, after)]
    return {**log.report(where, later), "later_differences": gain(found[0], found[1], np.array(times))}


def _situations(steps: Sequence[NodeStep]) -> FloatArray:
    """(N, 2 · COLUMNS) of all nodes together: the mean and the least of each column."""
    return np.array([np.concatenate([step.state.mean(axis=0), step.state.min(axis=0)]) for step in steps])


def errors(net: NodeDqn, steps: Sequence[NodeStep], args: Weighing) -> FloatArray:
    """(N,) temporal differences |r + γ max Q(s′) − Q(s, a)| of steps with a successor, the mean difference apart: which
    node is best does not depend on the level of Q, and a net that learned the mean reward alone has learned nothing.
    Beyond a bound there is no error."""
    values = [values_of(net, step.state) for step in steps]
    after = following(steps)
    kept = [i for i, at in enumerate(after) if at >= 0]
    best = np.array([values[after[i]].max() for i in kept])
    own = np.array([values[i][steps[i].action] for i in kept])
    missing = rewards_of(steps, args.balance)[kept] + args.gamma * best - own
    return centred(missing, np.array([steps[i].is_bound for i in kept], dtype=np.bool_))


def values_of(net: NodeDqn, rows: Float32) -> Float32:
    """(C,) Q of each node from the rows (C, COLUMNS)."""
    device = net.value.bias.device
    with torch.no_grad():
        found = net(torch.from_numpy(rows)[None].to(device), torch.ones(1, len(rows), device=device))
    values: Float32 = found[0].cpu().numpy()
    return values
