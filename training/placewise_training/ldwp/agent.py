"""LDWP's DQN as the paper writes it (Algorithm 1, 4.2): it chooses nodes and learns while it does. Simulates nothing.

Replay, a target net cloned every μ steps, batches of 20, SGD at 0.1, γ = 0.8, ε-greedy, squared error; reward is the
change of cluster throughput. When nodes come or go the net is rebuilt by parameter transfer. The paper leaves open: μ,
ε, the size of the memory, the window of the throughput, and how pre-training is supervised; here by the choices of a
log. Gradients are clipped: at a rate of 0.1 a few surprises would otherwise end the net.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from placewise_core.inputs.cluster import UTILISATION_COLUMNS
from placewise_core.inputs.ldwp_paper import order_of, state_of
from placewise_core.view.view import ClusterView
from placewise_training.ldwp.net import FixedDqn, transferred
from placewise_training.sim.pipelines.applications import APPLICATIONS, PipelineTask
from placewise_training.sim.pipelines.choosers import NodeChooser
from placewise_training.sim.pipelines.queues import NodeQueue

Vector = NDArray[np.float32]
TYPES = tuple(APPLICATIONS)
_TASK = len(TYPES) + 1
_NODE = len(UTILISATION_COLUMNS)


@dataclass(frozen=True, slots=True)
class DqnSettings:
    """Rates as in 5.1; the rest is ours."""

    rate: float = 0.1
    gamma: float = 0.8
    batch: int = 20
    memory: int = 2000
    target_every: int = 100  # μ
    explore: float = 0.05
    window_s: float = 60.0
    reward_scale: float = 0.1  # throughput changes by some tasks a minute from one task to the next
    most_gradient: float = 1.0


@dataclass(slots=True)
class Experience:
    """One experience (s_t, a_t, r_t, s_t+1)."""

    state: Vector
    action: int
    reward: float
    following: Vector


@dataclass(slots=True)
class PaperDqn:
    """A NodeChooser. `rewards` are its throughputs over the window, one per decision: the curve of Fig. 3."""

    net: FixedDqn | None = None
    settings: DqnSettings = field(default_factory=DqnSettings)
    seed: int = 0
    is_learning: bool = True
    name: str = "dqn"
    throughputs: list[float] = field(default_factory=list)
    _target: FixedDqn | None = None
    _memory: deque[Experience] = field(default_factory=deque)
    _last: tuple[Vector, int, float] | None = None  # state, action, throughput before it
    _throughput: "_Throughput | None" = None
    _steps: int = 0

    def choose(self, task: PipelineTask, view: ClusterView, nodes: Mapping[str, NodeQueue], now_s: float) -> str:
        net = self.net_for(tuple(nodes))
        if self._throughput is None:
            self._throughput = _Throughput(self.settings.window_s)
        throughput = self._throughput.at(now_s, nodes)
        self.throughputs.append(throughput)
        state = _state(task, view, net.nodes)
        self.arrive(net, state, throughput)
        action = self._chosen(net, state, task.number)
        self.take(state, action, throughput)
        return net.nodes[action]

    def arrive(self, net: FixedDqn, state: Vector, throughput: float) -> None:
        """The next task is there: the step before it is complete, and one more is learned. `net` as of net_for."""
        if self._last is None:
            return
        reward = self.settings.reward_scale * (throughput - self._last[2])
        self._memory.append(Experience(self._last[0], self._last[1], reward, state))
        if len(self._memory) > self.settings.memory:
            self._memory.popleft()
        if self.is_learning:
            self._learn(net)

    def take(self, state: Vector, action: int, throughput: float) -> None:
        """The task went to a node. Any chooser will do, as Q learning is off policy."""
        self._last = (state, action, throughput)

    def follow(self, net: FixedDqn, state: Vector, action: int, throughput: float) -> None:
        """A task that another policy placed."""
        self.arrive(net, state, throughput)
        self.take(state, action, throughput)

    def interrupt(self) -> None:
        """Ends the chain: the next state does not follow from the last one."""
        self._last = None

    def net_for(self, names: tuple[str, ...]) -> FixedDqn:
        """The net, rebuilt if nodes came or went; the memory is dropped then, as its rows have other columns."""
        if self.net is not None and self.net.nodes == names:
            if self._target is None:
                self._target = clone(self.net)
            return self.net
        torch.manual_seed(self.seed)
        self.net = FixedDqn(names, _TASK, _NODE) if self.net is None else transferred(self.net, names)
        self._target = clone(self.net)
        self._memory.clear()
        self._last = None
        return self.net

    def _chosen(self, net: FixedDqn, state: Vector, number: int) -> int:
        rng = np.random.default_rng((self.seed, 75, number))
        if rng.random() < self.settings.explore:
            return int(rng.integers(len(net.nodes)))
        return int(_forward(_weights(net), state[None])[-1].argmax())

    def _learn(self, net: FixedDqn) -> None:
        """Lines 11 to 14: one step on a random batch."""
        settings, target = self.settings, self._target
        if len(self._memory) < settings.batch or target is None:
            return
        rng = np.random.default_rng((self.seed, 76, self._steps))
        batch = [self._memory[int(i)] for i in rng.integers(len(self._memory), size=settings.batch)]
        states = np.stack([step.state for step in batch])
        actions = np.array([step.action for step in batch])
        ahead = _forward(_weights(target), np.stack([step.following for step in batch]))[-1].max(axis=1)
        wanted = np.array([step.reward for step in batch], dtype=np.float32) + np.float32(settings.gamma) * ahead
        descend(net, states, actions, wanted, settings)
        self._steps += 1
        if self._steps % settings.target_every == 0:
            target.load_state_dict(net.state_dict())


@dataclass(slots=True)
class Logged:
    """Another chooser's decisions as the paper's DQN would have seen them, for pre-training."""

    chooser: NodeChooser
    states: list[Vector] = field(default_factory=list)
    actions: list[int] = field(default_factory=list)
    nodes: tuple[str, ...] = ()
    name: str = "logged"

    def choose(self, task: PipelineTask, view: ClusterView, nodes: Mapping[str, NodeQueue], now_s: float) -> str:
        self.nodes = tuple(nodes)
        self.states.append(_state(task, view, self.nodes))
        chosen = self.chooser.choose(task, view, nodes, now_s)
        self.actions.append(self.nodes.index(chosen))
        return chosen


def pretrained(log: Logged, seed: int, steps: int = 600) -> FixedDqn:
    """The MLP trained by supervision before it becomes the DQN (4.2.2): which node the log's chooser took."""
    return cloned_choices(log.nodes, log.states, log.actions, seed, steps)


def cloned_choices(
    nodes: Sequence[str], seen: Sequence[Vector], taken: Sequence[int], seed: int, steps: int = 600
) -> FixedDqn:
    """As pretrained, of states (columns,) and the nodes that were taken."""
    torch.manual_seed(seed)
    net = FixedDqn(nodes, _TASK, _NODE)
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-3)
    states, actions = torch.from_numpy(np.stack(seen)), torch.tensor(taken)
    rng = np.random.default_rng((seed, 77))
    for _ in range(steps):
        chosen = torch.from_numpy(rng.integers(len(actions), size=64))
        loss = torch.nn.functional.cross_entropy(net(states[chosen]), actions[chosen])
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return net


def _state(task: PipelineTask, view: ClusterView, nodes: Sequence[str]) -> Vector:
    """As it is served."""
    return state_of(task.job, view, TYPES, order_of(view, nodes))


class _Throughput:
    """Tasks' worth of subtasks done per minute over a window that ends now."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._seen: deque[tuple[float, float]] = deque([(0.0, 0.0)])
        self._done: dict[str, float] = {}  # nodes that left keep theirs

    def at(self, now_s: float, nodes: Mapping[str, NodeQueue]) -> float:
        self._done.update({name: queue.work_done for name, queue in nodes.items()})
        done = sum(self._done.values())
        self._seen.append((now_s, done))
        while len(self._seen) > 1 and self._seen[1][0] <= now_s - self._window_s:
            self._seen.popleft()
        since_s, before = self._seen[0]
        return 60.0 * (done - before) / max(1.0, now_s - since_s)


def clone(net: FixedDqn) -> FixedDqn:
    """With weights of its own."""
    copy = FixedDqn(net.nodes, net.task_features, net.node_features)
    copy.load_state_dict(net.state_dict())
    return copy


def descend(net: FixedDqn, states: Vector, actions: NDArray[np.int64], wanted: Vector, settings: DqnSettings) -> None:
    """One step of plain SGD (5.1) on the mean squared error of Q(s, a) against the target; (B, F), (B,), (B,).

    By hand, on the parameters' own memory: for layers this small four fifths of torch's time is its bookkeeping.
    """
    weights = _weights(net)
    first, hidden, values = _forward(weights, states)
    rows = np.arange(len(states))
    into_values = np.zeros_like(values)
    into_values[rows, actions] = (values[rows, actions] - wanted) * np.float32(2.0 / len(states))
    into_hidden = (into_values @ weights[4]) * (hidden > 0)
    into_first = (into_hidden @ weights[2]) * (first > 0)
    gradients = []
    for before, into in ((states, into_first), (first, into_hidden), (hidden, into_values)):
        gradients += [into.T @ before, into.sum(axis=0)]
    norm = math.sqrt(sum(float(np.vdot(g, g)) for g in gradients))
    rate = np.float32(settings.rate * min(1.0, settings.most_gradient / (norm + 1e-6)))
    for weight, gradient in zip(weights, gradients, strict=True):
        np.subtract(weight, rate * gradient, out=weight)


def _weights(net: FixedDqn) -> list[Vector]:
    """Weight and bias of each layer, sharing the net's memory."""
    return [parameter.detach().numpy() for parameter in net.parameters()]


def _forward(weights: Sequence[Vector], states: Vector) -> tuple[Vector, Vector, Vector]:
    """Both hidden layers after their ReLU, and the values: (B, 256), (B, 128), (B, M)."""
    first = np.maximum(states @ weights[0].T + weights[1], 0.0)
    hidden = np.maximum(first @ weights[2].T + weights[3], 0.0)
    return first, hidden, hidden @ weights[4].T + weights[5]
