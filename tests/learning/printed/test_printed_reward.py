"""Harmony's reward model as printed: inputs, batch norm beside padding, the paper's protocol."""

import numpy as np
import pytest
import torch

from placewise_training.policy.printed import reward_model
from placewise_training.policy.printed.reward_model import Budget, PrintedReward, Trace, judged_as_printed, trace_of
from placewise_training.sim.truths import make_truth
from placewise_training.sim.workloads import HARMONY_MODELS

SMALL = Budget(samples=60, steps=30, jobs=30, warm_up=20)


@pytest.fixture(scope="module")
def trace() -> Trace:
    return trace_of(make_truth("judge", 3), 3, SMALL)


def test_a_row_is_x_w_p_and_d_and_nothing_else(trace: Trace) -> None:
    is_job = trace.model >= 0
    kinds, counts = np.split(trace.rows[is_job], [len(HARMONY_MODELS)], axis=1)
    np.testing.assert_array_equal(kinds.argmax(axis=1), trace.model[is_job])
    np.testing.assert_array_equal(kinds.sum(axis=1), 1.0)
    workers, servers = counts[:, 2::2], counts[:, 3::2]
    assert workers.shape[1] == servers.shape[1] == 6
    np.testing.assert_allclose(counts[:, 0], workers.sum(axis=1))
    np.testing.assert_allclose(counts[:, 1], servers.sum(axis=1))
    assert (workers.sum(axis=1) > 0.0).all()
    assert not trace.rows[~is_job].any()


def test_a_sample_is_all_that_runs_after_a_start(trace: Trace) -> None:
    gpus = trace.rows[..., len(HARMONY_MODELS)].sum(axis=1) / 0.25
    assert len(trace.rows) == SMALL.samples
    assert gpus.max() <= 12.0, "six servers have twelve GPUs"
    assert np.percentile(gpus, 90) == 12.0, "the jobs saturate the cluster"
    assert (trace.speed[trace.model >= 0] > 0.0).all()


def test_by_default_the_net_and_its_training_are_the_papers() -> None:
    net, budget = PrintedReward(20), Budget()
    assert (net.out.in_features, len(net.layers), net.layers[0].attention.num_heads) == (128, 2, 8)
    assert sum(isinstance(m, torch.nn.BatchNorm1d) for m in net.modules()) == 4
    assert not any(isinstance(m, torch.nn.LayerNorm) for m in net.modules())
    assert (budget.samples, budget.batch, reward_model.HELD_BACK) == (29_264, 32, 0.1)


@pytest.mark.parametrize("is_training", [True, False])
def test_padding_changes_no_answer(trace: Trace, is_training: bool) -> None:
    """Statistics of the batch are those of its jobs."""
    torch.manual_seed(1)
    net = PrintedReward(trace.rows.shape[2]).train(is_training)
    rows, is_job = torch.from_numpy(trace.rows[:8]), torch.from_numpy(trace.model[:8] >= 0)
    padded = torch.nn.functional.pad(rows, (0, 0, 0, 5))
    longer = torch.nn.functional.pad(is_job, (0, 5))
    with torch.no_grad():
        torch.testing.assert_close(net(padded, longer)[longer], net(rows, is_job)[is_job])


def test_a_tenth_is_judged_once_shuffled_and_once_later_and_equal_seeds_give_equal_errors() -> None:
    truth = make_truth("judge", 3)
    found = judged_as_printed(truth, 3, SMALL)
    again = judged_as_printed(truth, 3, SMALL)
    trace = trace_of(truth, 3, SMALL)
    assert len(found["later"].error) == (trace.model[-6:] >= 0).sum()
    for name in ("shuffled", "later"):
        np.testing.assert_array_equal(found[name].error, again[name].error)


@pytest.mark.slow
def test_it_predicts_better_than_the_mean_speed_of_each_model() -> None:
    budget = Budget(samples=1000, steps=400, warm_up=200)
    truth = make_truth("judge", 3)
    trace = trace_of(truth, 3, budget)
    ratio = np.concatenate([trace.speed[trace.model == k] / trace.speed[trace.model == k].mean() for k in range(6)])
    constant = min(float(np.mean(np.abs(c - ratio) / ratio)) for c in np.linspace(0.5, 1.5, 101))
    assert judged_as_printed(truth, 3, budget)["shuffled"].error.mean() < 0.8 * constant
