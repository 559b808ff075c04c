"""LDWP's Q nets: symmetry, masks, parameter transfer; and the paper's DQN learns and follows nodes that come and go."""

import numpy as np
import pytest
import torch

from placewise_core.inputs.ldwp_paper import order_of, state_of
from placewise_training.ldwp.agent import TYPES, DqnSettings, Experience, Logged, PaperDqn, clone, descend, pretrained
from placewise_training.ldwp.net import FixedDqn, NodeDqn, transferred
from placewise_training.sim.faults import Fault, FaultKind, added
from placewise_training.sim.hardware import ldwp_cluster
from placewise_training.sim.pipelines.applications import PipelineWorkload
from placewise_training.sim.pipelines.choosers import NodeChooser, loaded_pats
from placewise_training.sim.pipelines.engine import PipelineSimulation
from placewise_training.sim.pipelines.units import IawpUnits


def simulation(chooser: NodeChooser, seed: int, tasks: int = 60, **more: object) -> PipelineSimulation:
    work = PipelineWorkload(tasks=tasks, per_minute=40.0, sizes=(1000.0, 2000.0)).generate("train", seed)
    return PipelineSimulation(ldwp_cluster(3), work, "train", chooser, IawpUnits(), seed=seed, **more)  # type: ignore[arg-type]


def test_permuting_nodes_permutes_values_and_padding_changes_nothing() -> None:
    torch.manual_seed(0)
    net, rows, order = NodeDqn(5), torch.rand(1, 4, 5), [2, 0, 3, 1]
    values = net(rows, torch.ones(1, 4))
    torch.testing.assert_close(net(rows[:, order], torch.ones(1, 4)), values[:, order])
    padded = torch.cat([rows, torch.rand(1, 3, 5)], dim=1)
    mask = torch.tensor([[1.0, 1, 1, 1, 0, 0, 0]])
    torch.testing.assert_close(net(padded, mask)[:, :4], values)
    assert (net(padded, mask)[:, 4:] < -1e8).all()


def test_transfer_keeps_what_was_learnt_of_nodes_that_stay() -> None:
    """With the others silent, a node's value comes out as before, wherever it now stands."""
    torch.manual_seed(0)
    net = FixedDqn(("a", "b", "c"), 2, 3)
    new = transferred(net, ("c", "d", "a"))
    torch.testing.assert_close(new.hidden.weight, net.hidden.weight)
    before, after = torch.zeros(1, net.first.in_features), torch.zeros(1, new.first.in_features)
    for source, into in ((net, before), (new, after)):
        into[0, source.columns("a")] = torch.arange(4.0)
        into[0, source.task_columns()] = torch.tensor([0.5, 1.0, -1.0, 2.0])
    torch.testing.assert_close(new(after)[0, [2, 0]], net(before)[0, [0, 2]])
    torch.testing.assert_close(new.last.bias[1], net.last.bias.mean())


def test_pretraining_learns_the_log() -> None:
    log = Logged(loaded_pats())
    simulation(log, 1).run()
    net = pretrained(log, seed=0, steps=80)
    with torch.no_grad():
        guessed = net(torch.from_numpy(np.stack(log.states))).argmax(dim=1).numpy()
    assert (guessed == np.array(log.actions)).mean() > 0.8


def test_the_papers_dqn_follows_nodes_that_come_and_go() -> None:
    more = ldwp_cluster(5)[3:]
    faults = [added(20.0, more[0]), added(20.0, more[1]), Fault(50.0, FaultKind.REMOVE, more[0].id)]
    agent = PaperDqn(seed=0)
    result = simulation(agent, 2, faults=faults).run()
    assert result.finished == 60
    assert agent.net is not None
    assert more[0].id not in agent.net.nodes
    assert more[1].id in agent.net.nodes
    assert len(agent.throughputs) >= 60


def test_the_dqn_of_the_verdict_learns_in_the_state_that_is_served() -> None:
    class Watched(PaperDqn):
        def choose(self, task, view, nodes, now_s):  # type: ignore[no-untyped-def]
            served = state_of(task.job, view, TYPES, order_of(view, tuple(nodes)))
            chosen = PaperDqn.choose(self, task, view, nodes, now_s)
            assert self._last is not None
            np.testing.assert_array_equal(self._last[0], served)
            return chosen

    agent = Watched(seed=0)
    assert simulation(agent, 2, tasks=20).run().finished == 20
    assert len(agent.throughputs) == 20


def test_an_experience_is_state_action_change_of_throughput_and_the_next_state() -> None:
    """(s_t, a_t, r_t, s_t+1); every μ steps the target net is the net."""
    agent = PaperDqn(net=FixedDqn(("a", "b"), 4, 6), settings=DqnSettings(batch=1, target_every=3))
    net = agent.net_for(("a", "b"))
    states = np.random.default_rng(0).random((4, net.first.in_features), dtype=np.float32)
    throughputs, actions = (2.0, 5.0, 4.0, 4.5), (1, 0, 1, 0)

    def is_target_the_net() -> bool:
        assert agent._target is not None
        return all(torch.equal(a, b) for a, b in zip(net.parameters(), agent._target.parameters(), strict=True))

    agent.take(states[0], actions[0], throughputs[0])
    for t in range(3):
        agent.arrive(net, states[t + 1], throughputs[t + 1])
        agent.take(states[t + 1], actions[t + 1], throughputs[t + 1])
        step = agent._memory[-1]
        np.testing.assert_array_equal(step.state, states[t])
        np.testing.assert_array_equal(step.following, states[t + 1])
        assert step.action == actions[t]
        assert step.reward == pytest.approx(0.1 * (throughputs[t + 1] - throughputs[t]))
        assert is_target_the_net() == (t == 2)


@pytest.mark.parametrize("most_gradient", [1e-3, 100.0])
def test_a_step_by_hand_is_the_step_that_torch_would_take(most_gradient: float) -> None:
    torch.manual_seed(3)
    by_hand = FixedDqn(("a", "b", "c"), 4, 6)
    by_torch = clone(by_hand)
    rng = np.random.default_rng(4)
    states = rng.normal(size=(20, by_hand.first.in_features)).astype(np.float32)
    actions, wanted = rng.integers(3, size=20), rng.normal(size=20).astype(np.float32)
    descend(by_hand, states, actions, wanted, DqnSettings(most_gradient=most_gradient))
    values = by_torch(torch.from_numpy(states)).gather(1, torch.from_numpy(actions)[:, None]).squeeze(1)
    (values - torch.from_numpy(wanted)).square().mean().backward()
    torch.nn.utils.clip_grad_norm_(by_torch.parameters(), most_gradient)
    torch.optim.SGD(by_torch.parameters(), lr=DqnSettings().rate).step()
    for mine, theirs in zip(by_hand.parameters(), by_torch.parameters(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-7, rtol=1e-5)


def test_the_papers_dqn_learns_a_toy_problem() -> None:
    """Reward 1 for one of three nodes, for any observation: after some batches it is the best."""
    agent = PaperDqn(net=FixedDqn(("a", "b", "c"), 4, 6), settings=DqnSettings(gamma=0.0, target_every=10))
    agent.net_for(("a", "b", "c"))
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    for _ in range(200):
        state, action = rng.random(agent.net.first.in_features, dtype=np.float32), int(rng.integers(3))  # type: ignore[union-attr]
        agent._memory.append(Experience(state, action, float(action == 1), state))
    for _ in range(100):
        agent._learn(agent.net)  # type: ignore[arg-type]
    with torch.no_grad():
        values = agent.net(torch.rand(50, agent.net.first.in_features))  # type: ignore[union-attr, misc]
    assert float((values.argmax(dim=1) == 1).float().mean()) > 0.9
    assert float(values.mean(dim=0)[1]) == pytest.approx(1.0, abs=0.3)
