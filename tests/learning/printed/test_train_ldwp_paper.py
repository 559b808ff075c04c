"""`placewise train ldwp-paper`: a small run, its transfer to another number of nodes, and the bundle that serves it."""

from pathlib import Path

import pytest
import torch

from placewise_core.inputs.ldwp_paper import columns
from placewise_core.policies.registry import placement_policies
from placewise_models.bundle import Bundle, Manifest, load, write_manifest
from placewise_models.learned import learned_policies
from placewise_models.printed.ldwp_paper import LDWP_PAPER_MODEL, LDWP_PAPER_REPORT, LdwpPaperRuntime
from placewise_models.session import ModelError
from placewise_training.ldwp.agent import TYPES
from placewise_training.ldwp.printed.card import card
from placewise_training.ldwp.printed.export import export_ldwp_paper
from placewise_training.ldwp.printed.train import Args, load_net, train
from placewise_training.sim.hardware import ldwp_cluster
from placewise_training.sim.pipelines.applications import PipelineWorkload
from placewise_training.sim.pipelines.choosers import PolicyChooser
from placewise_training.sim.pipelines.engine import PipelineSimulation
from placewise_training.sim.pipelines.units import IawpUnits

SMALL = {"tasks": 60, "logged": 40, "per_minute": 20.0}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("ldwp-paper")
    train(Args(out=out, nodes=4, **SMALL))  # type: ignore[arg-type]
    return out


def bundle_of(run: Path, folder: Path) -> Bundle:
    export_ldwp_paper(run, folder)
    files = dict.fromkeys((LDWP_PAPER_MODEL, LDWP_PAPER_REPORT), "")
    write_manifest(folder, Manifest(folder.name, created="2026-11-24T00:00:00Z", files=files))
    return load(folder)


def reasons_of(bundle: Bundle, nodes: int) -> set[str]:
    """Why the policy of a bundle fell back, over a simulation on that many nodes."""
    policy = learned_policies(bundle, placement_policies()).by_name["ldwp-paper"]
    reasons: set[str] = set()
    propose = policy.propose

    def watched(*asked: object) -> object:
        proposal = propose(*asked)  # type: ignore[arg-type]
        assert proposal is not None
        reasons.add(proposal.fallback_reason)
        return proposal

    policy.propose = watched  # type: ignore[method-assign, assignment]
    tasks = PipelineWorkload(tasks=10, per_minute=20.0).generate("judge", 0)
    result = PipelineSimulation(ldwp_cluster(nodes), tasks, "judge", PolicyChooser(policy), IawpUnits()).run()
    assert result.finished == 10
    return reasons


def test_equal_seeds_train_equal_nets(run: Path, tmp_path: Path) -> None:
    report = train(Args(out=tmp_path, nodes=4, **SMALL))  # type: ignore[arg-type]
    first, second = (torch.load(out / "ldwp_paper.pt", weights_only=True)["net"] for out in (run, tmp_path))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert "pre-trained by ECT's choices" in card(report)


def test_a_bundle_with_the_net_serves_its_number_of_nodes(run: Path, tmp_path: Path) -> None:
    bundle = bundle_of(run, tmp_path / "printed")
    assert reasons_of(bundle, 4) == {""}
    assert reasons_of(bundle, 5) == {"ldwp-paper: its net is for 4 nodes, the cluster has 5"}


def test_the_transferred_net_serves_the_new_number_and_knows_the_nodes_that_stay(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    report = train(Args(out=out, nodes=5, start=run, **{**SMALL, "tasks": 1}))  # type: ignore[arg-type]
    assert report["is_transferred"]
    before, after = load_net(run / "ldwp_paper.pt"), load_net(out / "ldwp_paper.pt")
    torch.testing.assert_close(after.hidden.weight, before.hidden.weight)
    torch.testing.assert_close(after.last.weight[:4], before.last.weight)
    assert reasons_of(bundle_of(out, tmp_path / "transferred"), 5) == {""}


def test_a_net_with_another_input_column_is_refused(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(
            "placewise_training.ldwp.printed.export.columns", lambda types, nodes: (*columns(TYPES, nodes)[:-1], "z")
        )
        export_ldwp_paper(run, tmp_path)
    content = (tmp_path / LDWP_PAPER_MODEL).read_bytes()
    with pytest.raises(ModelError, match="other columns"):
        LdwpPaperRuntime.opened(content)
