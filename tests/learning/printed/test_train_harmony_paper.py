"""`placewise train harmony-paper`: a small run, its learning rule, its export, and the bundle that serves it."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from placewise_core.inputs.harmony_paper import columns
from placewise_core.policies.registry import placement_policies
from placewise_models.bundle import Manifest, load, write_manifest
from placewise_models.learned import learned_policies
from placewise_models.printed.harmony_paper import HARMONY_PAPER_MODEL, HARMONY_PAPER_REPORT, HarmonyPaperRuntime
from placewise_models.session import ModelError
from placewise_training.policy.printed.card import card
from placewise_training.policy.printed.export import export_harmony_paper
from placewise_training.policy.printed.net import PaperPolicy
from placewise_training.policy.printed.rollouts import Interval, PaperStep, simulate, situation
from placewise_training.policy.printed.train import CHECKPOINT, REPORT, Args, collate, load_net, samples_of, train

SMALL = {"tasks": 60, "simulations": 1, "jobs": 6, "width": 16, "layers": 1, "validation_simulations": 1}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("harmony-paper")
    train(Args(out=out, **SMALL))  # type: ignore[arg-type]
    return out


def test_by_default_the_net_is_the_papers() -> None:
    args = Args()
    assert (args.layers, args.width, args.heads) == (2, 128, 8)
    assert (args.entropy, args.explore, args.gamma, args.rate) == (0.5, 0.5, 0.9, 1e-4)
    assert (args.batch, args.replay) == (32, 8192)


def test_the_order_of_jobs_changes_nothing_and_padding_neither() -> None:
    torch.manual_seed(1)
    net, rows = PaperPolicy(4, 16, 4, 2).eval(), torch.rand(1, 5, len(columns(4)))
    with torch.no_grad():
        plain = net(rows, torch.ones(1, 5))[0]
        order = torch.tensor([3, 1, 4, 0, 2])
        mixed = net(rows[:, order], torch.ones(1, 5))[0]
        padded = net(torch.cat([rows, torch.rand(1, 2, rows.shape[2])], dim=1), torch.tensor([[1.0] * 5 + [0.0] * 2]))
    torch.testing.assert_close(mixed, plain[order])
    torch.testing.assert_close(padded[0, :5], plain)


def test_a_job_hears_of_the_placements_of_the_others() -> None:
    torch.manual_seed(1)
    net, rows = PaperPolicy(4, 16, 4, 1).eval(), torch.zeros(1, 2, len(columns(4)))
    placed = rows.clone()
    placed[0, 1, columns(4).index("d_2_worker")] = 0.25
    with torch.no_grad():
        assert not torch.equal(net(rows, torch.ones(1, 2))[0, 0], net(placed, torch.ones(1, 2))[0, 0])


def test_a_sample_has_the_reward_of_its_interval_and_the_next_ones_first_state() -> None:
    steps = [PaperStep(np.full((1, 3), i, dtype=np.float32), np.ones(4, dtype=np.bool_), 0, 1.0) for i in range(3)]
    samples = samples_of([Interval(steps[:2], 2.0, 3.0), Interval(steps[2:], 5.0)], gamma=0.5)
    assert [(s.reward, s.discount) for s in samples] == [(2.0, 0.125), (2.0, 0.125), (5.0, 0.5)]
    assert [s.after for s in samples] == [steps[2], steps[2], None]
    rows, mask = collate([steps[0], PaperStep(np.ones((2, 3), dtype=np.float32), steps[0].mask, 0, 1.0)])
    assert (rows.shape, mask.tolist()) == ((2, 2, 3), [[1.0, 0.0], [1.0, 1.0]])


def test_equal_seeds_train_equal_nets(run: Path, tmp_path: Path) -> None:
    again = train(Args(out=tmp_path, **SMALL))  # type: ignore[arg-type]
    first, second = (torch.load(out / "harmony_paper.pt", weights_only=True)["policy"] for out in (run, tmp_path))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert again["tasks"] >= SMALL["tasks"]
    assert "| tasks | JCT |" in card(again)


def test_a_bundle_with_the_net_serves_it(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "printed"
    export_harmony_paper(run, folder)
    files = dict.fromkeys((HARMONY_PAPER_MODEL, HARMONY_PAPER_REPORT), "")
    write_manifest(folder, Manifest("printed", created="2026-11-24T00:00:00Z", files=files))
    bundle = load(folder)
    assert bundle.harmony_paper is not None
    assert bundle.harmony_paper.nodes == 6
    policy = learned_policies(bundle, placement_policies()).by_name["harmony-paper"]
    reasons: set[str] = set()
    propose = policy.propose

    def watched(*asked: object) -> object:
        proposal = propose(*asked)  # type: ignore[arg-type]
        reasons.add(proposal.fallback_reason if proposal is not None else "")
        return proposal

    policy.propose = watched  # type: ignore[method-assign, assignment]
    assert simulate(situation(7, 6, 6), policy) > 0.0
    assert reasons == {""}


def test_a_net_with_another_input_column_is_refused(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "other"
    with monkeypatch.context() as patched:
        patched.setattr("placewise_training.policy.printed.export.columns", lambda nodes: (*columns(nodes)[:-1], "z"))
        export_harmony_paper(run, folder)
    content = (folder / HARMONY_PAPER_MODEL).read_bytes()
    with pytest.raises(ModelError, match="other columns"):
        HarmonyPaperRuntime.opened(content)


def test_a_run_that_is_ended_early_leaves_the_best_net_so_far(tmp_path: Path) -> None:
    def stopped(title: str, done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    args = Args(out=tmp_path, **{**SMALL, "tasks": 400, "validate_every": 1})  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        train(args, stopped)
    report = json.loads((tmp_path / REPORT).read_text())
    assert 0 < report["tasks"] < 400
    assert load_net(tmp_path / CHECKPOINT).shape["nodes"] == args.nodes
