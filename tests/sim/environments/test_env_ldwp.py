"""LdwpEnv: Gymnasium's checker, ends of episodes, nodes that come and go, and rewards that add up to throughput."""

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from placewise_training.sim.environments.ldwp import LdwpConfig, LdwpEnv
from placewise_training.sim.faults import Fault, FaultKind, added
from placewise_training.sim.hardware import ldwp_cluster
from placewise_training.sim.pipelines.applications import PipelineWorkload

SHORT = LdwpConfig(nodes=lambda: ldwp_cluster(4), workload=PipelineWorkload(tasks=25, per_minute=30.0))


def play(env: LdwpEnv, seed: int) -> tuple[list[float], list[int], dict[str, object]]:
    """An episode of random allowed actions: rewards, numbers of nodes seen, last info."""
    rng = np.random.default_rng(seed)
    seen, _ = env.reset(seed=seed)
    rewards, nodes = [], []
    while True:
        nodes.append(int(seen["action_mask"].sum()))
        seen, reward, terminated, _, info = env.step(rng.choice(np.flatnonzero(seen["action_mask"])))
        rewards.append(reward)
        if terminated:
            return rewards, nodes, info


def test_gymnasiums_checker_passes() -> None:
    check_env(LdwpEnv(SHORT), skip_render_check=True)


def test_every_task_is_placed_and_done() -> None:
    env = LdwpEnv(SHORT)
    rewards, nodes, info = play(env, 0)
    assert len(rewards) == 25
    assert set(nodes) == {4}
    result = info["result"]
    assert result.finished == 25  # type: ignore[attr-defined]
    assert sum(rewards) == pytest.approx(info["throughput_per_min"])  # rewards are its changes


def test_episodes_repeat_by_seed() -> None:
    assert play(LdwpEnv(SHORT), 3)[0] == play(LdwpEnv(SHORT), 3)[0]
    assert play(LdwpEnv(SHORT), 3)[0] != play(LdwpEnv(SHORT), 4)[0]


def test_nodes_come_and_go_within_an_episode() -> None:
    late = ldwp_cluster(6)[5]
    faults = (added(10.0, late), Fault(30.0, FaultKind.DOWN, "worker0"))
    config = LdwpConfig(nodes=SHORT.nodes, workload=SHORT.workload, faults=faults)
    _, nodes, info = play(LdwpEnv(config), 1)
    assert set(nodes) == {4, 5}
    assert info["result"].finished == 25  # type: ignore[attr-defined]


def test_a_place_without_a_node_is_refused() -> None:
    env = LdwpEnv(SHORT)
    before, _ = env.reset(seed=0)
    after, reward, terminated, truncated, info = env.step(np.int64(15))
    assert (reward, terminated, truncated, info["is_invalid"]) == (-1.0, False, False, True)
    np.testing.assert_array_equal(before["task"], after["task"])
