"""PlacementEnv: Gymnasium's checker, masks, ends of episodes, determinism, and the service's own observation."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from placewise_core.domain.cluster import RunningJob
from placewise_core.domain.events import ClusterRecords
from placewise_core.inputs.cluster import Encoder
from placewise_core.view.view import ClusterView
from placewise_training.sim.discipline import Discipline
from placewise_training.sim.environments.placement import EnvConfig, PlacementEnv
from placewise_training.sim.environments.vector import PlacementVectorEnv
from placewise_training.sim.gangs.engine import SimOptions, Simulation
from placewise_training.sim.hardware import harmony_cluster
from placewise_training.sim.policies import placement_policy
from placewise_training.sim.truths import make_truth
from placewise_training.sim.workloads import HarmonyWorkload

SHORT = EnvConfig(workload=HarmonyWorkload(jobs=12).generate)


def play(
    env: PlacementEnv, seed: int, choose: np.random.Generator | None = None
) -> tuple[list[float], dict[str, object]]:
    """One episode; actions at random by `choose`, else the first allowed one."""
    seen, _ = env.reset(seed=seed)
    rewards: list[float] = []
    while True:
        allowed = np.flatnonzero(seen["action_mask"])
        action = choose.choice(allowed) if choose is not None else allowed[0]
        seen, reward, terminated, truncated, info = env.step(action)
        rewards.append(reward)
        if terminated or truncated:
            return rewards, info


def test_gymnasiums_checker_passes() -> None:
    check_env(PlacementEnv(SHORT), skip_render_check=True)


def test_gymnasium_makes_it_by_name_and_maskable_agents_find_its_masks() -> None:
    env = gymnasium.make("placewise_training.sim.environments:placewise/Placement-v0", config=SHORT)
    seen, _ = env.reset(seed=3)
    while True:
        allowed = env.get_wrapper_attr("action_masks")()  # as sb3-contrib's MaskablePPO asks
        assert allowed.dtype == np.bool_
        assert allowed.any()
        assert np.array_equal(allowed, seen["action_mask"].astype(bool))
        seen, _, terminated, truncated, info = env.step(int(np.flatnonzero(allowed)[-1]))
        assert not info["is_invalid"]
        if terminated or truncated:
            break


def test_an_episode_ends_terminated_with_every_job_done() -> None:
    env = PlacementEnv(SHORT)
    rewards, info = play(env, 0, np.random.default_rng(0))
    assert env.simulation is not None
    assert env.simulation.metrics.jct.count == 12
    assert info["avg_jct_s"] == env.simulation.metrics.jct.mean > 0
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(np.int64(0))
    assert sum(rewards) <= 12


def test_jobs_keep_what_was_claimed_for_them_and_give_all_of_it_back() -> None:
    env = PlacementEnv(SHORT)
    seen, _ = env.reset(seed=3)
    while env.has_decision:
        seen, *_ = env.step(np.flatnonzero(seen["action_mask"])[0])
        simulation = env.simulation
        assert simulation is not None
        held = sum(live.gpus for live in simulation.running.values())
        claimed = sum(len(a.gpu_indices) for placed in env.batch()[2].values() for a in placed)
        view = simulation.view
        assert int(view.nodes.gpu_exists.sum() - view.usage.free_gpus.sum()) == held + claimed
    assert (view.usage.free == view.nodes.capacity).all()
    assert not view.usage.task_count.any()


def test_undiscounted_progress_is_one_per_job() -> None:
    rewards, _ = play(PlacementEnv(EnvConfig(workload=HarmonyWorkload(jobs=12).generate, gamma=1.0)), 0)
    assert sum(rewards) == pytest.approx(12.0, rel=1e-9)


def test_undiscounted_jct_reward_is_the_time_in_the_system() -> None:
    env = PlacementEnv(EnvConfig(workload=HarmonyWorkload(jobs=12).generate, gamma=1.0, reward="jct"))
    rewards, _ = play(env, 0)
    assert env.simulation is not None
    late = env.simulation.metrics.jct
    first_interval = -sum(rewards) * 1200.0  # rewards of reset's own intervals are nobody's
    assert first_interval == pytest.approx(late.total, rel=0.15)
    assert first_interval <= late.total + 1e-6


def test_an_episode_is_truncated_at_its_limit() -> None:
    env = PlacementEnv(EnvConfig(workload=HarmonyWorkload(jobs=400).generate, most_intervals=5))
    seen, _ = env.reset(seed=0)
    ends = (False, False)
    while not any(ends):
        seen, _, *ends_and_info = env.step(np.flatnonzero(seen["action_mask"])[0])
        ends = (ends_and_info[0], ends_and_info[1])
    assert ends == (False, True)
    assert not seen["action_mask"].any()


def test_masked_actions_change_nothing_and_cost() -> None:
    env = PlacementEnv(SHORT)
    seen, _ = env.reset(seed=0)
    forbidden = np.flatnonzero(seen["action_mask"] == 0)
    after, reward, terminated, truncated, info = env.step(forbidden[0])
    assert (reward, terminated, truncated, info["is_invalid"]) == (-1.0, False, False, True)
    for name, value in seen.items():
        np.testing.assert_array_equal(after[name], value)


def test_every_allowed_action_can_be_taken() -> None:
    """The mask is exact: placing at random by it never fails and never oversubscribes."""
    env = PlacementEnv(SHORT)
    rng = np.random.default_rng(3)
    seen, _ = env.reset(seed=5)
    for _ in range(200):
        seen, _, terminated, truncated, info = env.step(rng.choice(np.flatnonzero(seen["action_mask"])))
        assert not info["is_invalid"]
        assert env.simulation is not None
        assert (env.simulation.view.usage.free >= 0).all()
        if terminated or truncated:
            seen, _ = env.reset()


def test_equal_seeds_and_actions_give_equal_episodes() -> None:
    first = play(PlacementEnv(SHORT), 4, np.random.default_rng(1))
    again = play(PlacementEnv(SHORT), 4, np.random.default_rng(1))
    assert first == again
    assert play(PlacementEnv(SHORT), 5, np.random.default_rng(1))[1]["event_hash"] != first[1]["event_hash"]


def test_the_environment_and_a_policy_driven_run_are_one_simulator() -> None:
    """Load balance through actions gives the same run, event by event, as load balance as a policy."""
    from placewise_core.gang.actions import action_of

    truth_seed = 7
    env = PlacementEnv(SHORT)
    env.reset(seed=0, options={"workload_seed": truth_seed})
    policy = placement_policy("load-balance")
    info: dict[str, object] = {}
    ended = False
    while not ended:
        assert env.simulation is not None
        jobs, current, placed = env.batch()
        job = jobs[current]
        if not placed[job.id]:
            proposal = policy.propose(job, env.simulation.view, env.simulation.context)
            if proposal is None:  # it does not fit whole: fill it up until it is stuck
                wanted = []
            else:
                view = env.simulation.view
                wanted = [action_of(a.role, view.nodes.index[a.node], view.nodes.size) for a in proposal.assignments]
        action = wanted.pop(0) if wanted else int(np.flatnonzero(env.action_masks())[0])
        _, _, terminated, truncated, info = env.step(np.int64(action))
        ended = terminated or truncated
    truth = make_truth("train", truth_seed)
    jobs_again = HarmonyWorkload(jobs=12).generate(truth, truth_seed)
    options = SimOptions(discipline=Discipline(every_s=1200.0, order="fifo"))
    result = Simulation(harmony_cluster(), jobs_again, truth, policy, options=options, seed=truth_seed).run()
    assert info["event_hash"] == result.event_hash


def test_the_observation_is_the_services_own() -> None:
    """A view built from records, as the service builds it from its store, encodes to the same arrays."""
    env = PlacementEnv(SHORT)
    seen, _ = env.reset(seed=2)
    rng = np.random.default_rng(0)
    for _ in range(25):
        seen, *_ = env.step(rng.choice(np.flatnonzero(seen["action_mask"])))
        assert env.simulation is not None
        sim = env.simulation
        batch, current, placed = env.batch()
        running = tuple(
            RunningJob(**{f: getattr(held, f) for f in RunningJob.__slots__}) for held in sim.view.jobs.values()
        )
        served = ClusterView(
            ClusterRecords("served", 1, "e", nodes=tuple(s.node for s in harmony_cluster()), jobs=running)
        )
        for assignment in placed.get(batch[current].id, ()):
            served.usage.claim(batch[current], assignment)
        ours = Encoder().encode(served, batch, sim.now_s, current=current, placed=placed)
        count = int(seen["job_mask"].sum())
        np.testing.assert_array_equal(seen["nodes"], ours.nodes)
        np.testing.assert_array_equal(seen["jobs"][:count], ours.jobs)
        np.testing.assert_array_equal(seen["placement"][:count], ours.placement)
        assert not seen["jobs"][count:].any()


def test_vectorised_environments_step_together_and_alike() -> None:
    envs = PlacementVectorEnv(SHORT, 3)
    seen, _ = envs.reset(seed=[0, 1, 0])
    for _ in range(30):
        actions = seen["action_mask"].argmax(axis=1)
        seen, rewards, *_ = envs.step(actions)
        assert seen["nodes"].shape[0] == rewards.shape[0] == 3
        np.testing.assert_array_equal(seen["nodes"][0], seen["nodes"][2])
    envs.close()


def test_stepping_together_gives_what_gymnasiums_own_vector_gives() -> None:
    """Over several episodes each, with actions the mask forbids among them."""
    ours = PlacementVectorEnv(SHORT, 2)
    theirs = gymnasium.vector.SyncVectorEnv([lambda: PlacementEnv(SHORT)] * 2)
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    rng = np.random.default_rng(2)
    steps: list[Any] = [ours.reset(seed=5), theirs.reset(seed=5)]
    restarts = 0
    for _ in range(400):
        for mine, other in zip(steps[0][:-1], steps[1][:-1], strict=True):
            np.testing.assert_equal(mine, other)
        assert steps[0][-1].keys() == steps[1][-1].keys()
        for name, values in steps[0][-1].items():
            np.testing.assert_array_equal(values, steps[1][-1][name])
        restarts += "_event_hash" in steps[0][-1]
        mask = steps[0][0]["action_mask"]
        actions = (rng.random(mask.shape) * (mask + 1e-3)).argmax(axis=1)
        steps = [ours.step(actions), theirs.step(actions)]
    assert restarts > 2
