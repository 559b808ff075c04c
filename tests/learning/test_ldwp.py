"""LDWP's trainer on a small budget: it learns, resumes, exports its net; the meaning of its rows."""

import json
from pathlib import Path

import numpy as np
import pytest

from placewise_core.inputs.ldwp import COLUMNS
from placewise_models.ldwp import LdwpRuntime
from placewise_models.session import ModelError
from placewise_training.ldwp.card import card
from placewise_training.ldwp.data import MOST_NODES, Recorder, Replay, situation
from placewise_training.ldwp.export import GRAPH, export_ldwp
from placewise_training.ldwp.judge import judged
from placewise_training.ldwp.train import Args, State, TorchValues, fresh, load_net, train, update
from placewise_training.sim.pipelines.choosers import DrainFirst

TINY = Args(logged=3, episodes=1, tasks=40, updates=40, batch=32, validations=1, validate_every=2, judged_seeds=0)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("ldwp")
    train(Args(**{**{f: getattr(TINY, f) for f in TINY.__dataclass_fields__}, "out": out}))
    return out


def episode(
    seed: int, guided: float, explore: float = 0.0, values: TorchValues | None = None
) -> tuple[float, Recorder]:
    """Mean turnaround in seconds, and the observations."""
    now = situation(seed, 60)
    seen = Recorder(now.truth, now.has_times, values, explore, guided, seed)
    return float(np.mean(list(now.simulate(seen)[1].values()))), seen


def test_after_a_few_episodes_it_is_better_than_random_where_it_never_was(run: Path) -> None:
    net = TorchValues(load_net(run / "ldwp.pt"))
    ours, random = [], []
    for seed in (501, 502, 503):
        now = situation(seed, 60)
        for costs, values, explore in ((ours, net, 0.0), (random, None, 1.0)):
            seen = Recorder(now.truth, now.has_times, values, explore, 0.0, seed, TINY.balance)
            took = now.simulate(seen)[1]
            costs.append((-seen.rewards(took).mean(), np.mean(list(took.values()))))
    cost, turnaround = np.log(ours).mean(axis=0) - np.log(random).mean(axis=0)
    assert cost < -0.2
    assert turnaround < 0


def test_a_stopped_run_ends_as_one_that_was_not(run: Path, tmp_path: Path) -> None:
    options = {f: getattr(TINY, f) for f in TINY.__dataclass_fields__}

    def stop(title: str, done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(Args(**{**options, "out": tmp_path}), stop)
    resumed = train(Args(**{**options, "out": tmp_path, "resume": True}))
    whole = json.loads((run / "ldwp.json").read_text("utf-8"))
    assert resumed["data"] == whole["data"]
    assert resumed["validation"]["best"] == pytest.approx(whole["validation"]["best"], abs=1e-6)


def test_a_foreign_checkpoint_is_refused(run: Path) -> None:
    with pytest.raises(ValueError, match="wide"):
        train(Args(out=run, width=32, resume=True))


def test_the_export_answers_as_torch_and_the_service_takes_it(run: Path, tmp_path: Path) -> None:
    model = export_ldwp(run, tmp_path)
    assert GRAPH.parity(load_net(run / "ldwp.pt"), model) <= 1e-5
    report = json.loads((tmp_path / "ldwp.json").read_text("utf-8"))
    runtime = LdwpRuntime.load(model.read_bytes(), report)
    rows = np.random.default_rng(0).random((7, len(COLUMNS)), dtype=np.float32)
    np.testing.assert_array_equal(runtime.values(rows), LdwpRuntime.opened(model.read_bytes()).values(rows))
    assert "double DQN" in card(report)
    for content, changed in (
        (model.read_bytes()[:-40], report),
        (model.read_bytes(), {**report, "schema": "other/1"}),
        (model.read_bytes(), {**report, "sample": {**report["sample"], "q": [[0.0] * 4] * 2}}),
    ):
        with pytest.raises(ModelError):
            LdwpRuntime.load(content, changed)


def test_double_dqn_solves_a_toy_problem() -> None:
    """One row stands out, and choosing it is rewarded: values say so for rows never seen."""
    args = Args(batch=32, gamma=0.0)
    state: State = fresh(args)
    rng = np.random.default_rng(0)
    rows = rng.random((400, MOST_NODES, len(COLUMNS)), dtype=np.float32)
    mask = np.ones((400, MOST_NODES), dtype=np.float32)
    action = rng.integers(MOST_NODES, size=400)
    reward = rows[np.arange(400), action, 10]
    state.replay = Replay(rows, mask, action, action, reward, np.full(400, -1))
    losses = [float(update(state, args, 0.0)) for _ in range(120)]
    assert np.mean(losses[-20:]) < 0.2 * np.mean(losses[:20])
    unseen = rng.random((20, len(COLUMNS)), dtype=np.float32)
    assert np.corrcoef(TorchValues(state.net).values(unseen), unseen[:, 10])[0, 1] > 0.9


def test_replay_follows_episodes_and_forgets_the_oldest() -> None:
    took, first = episode(601, guided=1.0)
    _, second = episode(602, guided=1.0)
    assert took > 0
    done = dict.fromkeys(range(60), 300.0)
    replay = Replay.empty().with_episode(first, done, 1000).with_episode(second, done, 1000)
    assert len(replay) == 120
    assert [replay.next[i] for i in (0, 58, 59, 60, 119)] == [1, 59, -1, 61, -1]
    assert set(replay.reward) == {-1.0}
    kept = replay.last(70)
    assert len(kept) == 70
    assert [kept.next[i] for i in (0, 9, 10, 69)] == [1, -1, 11, -1]


def test_judgement_compares_the_same_tasks() -> None:
    class First:
        def values(self, rows: np.ndarray) -> np.ndarray:
            return -np.arange(len(rows), dtype=np.float32)

    found = judged(First(), 1, 12)
    assert set(found["9 nodes"]) == {"ldwp", "ldwp, times unknown", "drain", "ect", "pats", "random"}
    assert found["9 nodes"]["ldwp"] == found["9 nodes"]["ldwp, times unknown"]  # all to the first node, either way


def test_a_decision_costs_more_the_more_its_node_is_loaded() -> None:
    now = situation(603, 40)
    plain, balanced = (Recorder(now.truth, now.has_times, None, 1.0, 0.0, 603, balance) for balance in (0.0, 2.0))
    took, same = now.simulate(plain)[1], now.simulate(balanced)[1]
    assert took == same
    for rows, action, excess in zip(plain.rows, plain.actions, plain.excess, strict=True):
        loads = rows[:, :4].mean(axis=1)  # CPU, GPU, memory, GPU memory: (7)
        assert excess == pytest.approx(loads[action] - loads.mean(), abs=1e-6)
    costs = plain.rewards(took) - balanced.rewards(took)
    np.testing.assert_allclose(costs, 2.0 * np.array(plain.excess), atol=1e-6)
    assert min(plain.excess) < 0 < max(plain.excess)


def test_a_teacher_to_whom_load_counts_balances_it() -> None:
    plain, balanced = [], []
    for seed in (604, 605, 606):
        now = situation(seed, 80)
        plain.append(now.simulate(DrainFirst(now.truth))[0].load_balance)
        balanced.append(now.simulate(DrainFirst(now.truth, load_s=600.0))[0].load_balance)
    assert np.mean(balanced) > np.mean(plain) + 0.01
