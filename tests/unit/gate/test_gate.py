"""The gate on logs of sites with a truth: the better policy passes, each way to be worse is refused."""

from pathlib import Path
from typing import Any

import pytest
from tests.unit.gate.sites import flipped, shuffled, site
from typer.testing import CliRunner

from placewise_models.folder import shipped_bundle
from placewise_training.gate import checks
from placewise_training.gate.command import gate_app
from placewise_training.gate.gate import GateArgs, GateVerdict, gate
from placewise_training.gate.report import REPORT, as_json

SEED, JOBS = 6, 1500


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`load-balance` is in force; by the truth `consolidate`, which explores, is better by a tenth."""
    return site(tmp_path_factory.mktemp("log"), SEED, JOBS, ("load-balance", "consolidate"))


def judged(log: Path, policy: str, **changes: Any) -> GateVerdict:
    usual: dict[str, Any] = {"candidate": shipped_bundle(), "incumbent": shipped_bundle(), "windows": 4}
    return gate(GateArgs(log, policies=(policy,), **{**usual, **changes}))


def failed(found: GateVerdict) -> set[str]:
    return {check.name for check in found.failed}


@pytest.mark.slow
def test_a_better_candidate_passes_and_the_report_says_what_the_log_could_have_shown(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "MOST_LOSS", 0.1)  # so few jobs rule out no less
    arguments = ["--log", str(log), "--bundle", str(shipped_bundle()), "--incumbent", str(shipped_bundle())]
    done = CliRunner().invoke(
        gate_app, [*arguments, "--policy", "consolidate", "--windows", "4", "--out", str(tmp_path)]
    )
    assert done.exit_code == 0, done.stdout
    assert done.stdout.endswith("promoted: it may go to a canary\n")
    assert '"verdict": "promoted"' in (tmp_path / REPORT).read_text("utf-8")
    page = (tmp_path / "gate.html").read_text("utf-8")
    assert "This log could have shown a gain of" in page
    assert "It could have shown" in page


@pytest.mark.slow
def test_a_log_that_cannot_rule_out_a_loss_of_two_per_cent_promotes_nobody(log: Path) -> None:
    assert failed(judged(log, "consolidate")) == {"no loss by the log"}


@pytest.mark.slow
def test_shuffled_outcomes_promote_nobody(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "MOST_LOSS", 0.1)  # the refusal is the simulation's
    found = judged(shuffled(log, tmp_path / "shuffled"), "consolidate")
    assert not found.is_promoted


@pytest.mark.slow
def test_a_reward_model_upside_down_is_refused(log: Path, tmp_path: Path) -> None:
    found = judged(log, "search", candidate=flipped(tmp_path / "flipped"))
    assert {"no loss by the log", "gain in the paired simulation"} <= failed(found)
    assert "WITHOUT_SUPPORT" in next(check.text for check in found.failed if check.name == "no loss by the log")


@pytest.mark.slow
def test_a_worse_candidate_is_refused_by_its_simulation(tmp_path: Path) -> None:
    log = site(tmp_path / "log", SEED, 900, ("consolidate", "load-balance"))
    found = judged(log, "load-balance", windows=12)
    assert "gain in the paired simulation" in failed(found)
    assert any(name.startswith("JCT of") for name in failed(found))


@pytest.mark.slow
def test_the_same_policy_shows_no_gain(log: Path) -> None:
    found = judged(log, "load-balance")
    assert {"no loss by the log", "gain in the paired simulation"} <= failed(found)


@pytest.mark.slow
def test_a_log_of_another_cluster_is_refused_before_anything_else(log: Path) -> None:
    found = judged(log, "consolidate", cluster="elsewhere")
    assert failed(found) == {"log of this cluster"}
    assert found.failed[0].text == "the log is of c, not of elsewhere"
    assert as_json(found)["verdict"] == "refused"


@pytest.mark.slow
def test_a_torn_bundle_is_refused(log: Path, tmp_path: Path) -> None:
    torn = flipped(tmp_path / "torn")
    (torn / "reward.onnx").write_bytes((torn / "reward.onnx").read_bytes()[:-10])
    found = judged(log, "search", candidate=torn)
    assert failed(found) == {"parity and checksums"}
    assert "reward.onnx differs from the manifest" in found.failed[0].text
