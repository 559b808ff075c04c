"""The benchmark commands on a small scale: that they measure, and that the promises hold. Figures: `make bench`."""

import json
import shutil
from pathlib import Path

import pytest
from tests.fakes.policy_net import write_policy

from placewise_models.folder import shipped_bundle
from placewise_service.cli import invoke
from placewise_service.commands.exits import Exit

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("rpc", ["place", "admit", "partition"])
def test_a_benchmark_measures_service_and_echo_in_one_run(rpc: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert invoke(["bench", rpc, "--nodes", "4", "--jobs", "4", "--tasks", "2", "--rounds", "3", "--json"]) == 0
    figures = json.loads(capfd.readouterr().out)
    assert figures["errors"] == 0
    assert figures["calls"] > 30
    assert min(figures["p50_ms"], figures["echo_p50_ms"]) > 0
    assert figures["p50_ratio"] == pytest.approx(figures["p50_ms"] / figures["echo_p50_ms"])
    assert figures["rps_ratio"] == pytest.approx(figures["rps"] / figures["echo_rps"])


@pytest.mark.slow
def test_learned_policies_are_measured_one_by_one_and_in_batches(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bundle = tmp_path / "default"
    shutil.copytree(shipped_bundle(), bundle)
    (bundle / "manifest.json").unlink()
    write_policy(bundle)
    assert invoke(["bundle", "build", str(bundle), "--from", str(bundle), "--json"]) == 0
    capfd.readouterr()
    few = ["--nodes", "4", "--jobs", "4", "--tasks", "2", "--rounds", "3", "--batch", "20", "--batch-rounds", "2"]
    assert invoke(["bench", "learned", *few, "--bundles", str(tmp_path), "--json"]) == 0
    figures = json.loads(capfd.readouterr().out)
    for policy in ("harmony", "search"):
        assert figures[f"{policy}_p50_ratio"] == pytest.approx(
            figures[f"{policy}_p50_ms"] / figures[f"{policy}_echo_p50_ms"]
        )
    for way in ("request", "stream", "concurrent"):
        assert figures[f"decisions_per_s_{way}"] > 1
    assert (figures["batch_errors"], figures["batch_fallbacks"]) == (0, 0)


def test_a_workload_that_does_not_fit_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert invoke(["bench", "place", "--nodes", "1", "--jobs", "8", "--tasks", "1"]) == 2
    assert "need over 1 × 8 GPUs" in capfd.readouterr().err


@pytest.mark.slow
def test_two_replicas_on_nearly_full_nodes_keep_their_promises(capfd: pytest.CaptureFixture[str]) -> None:
    assert invoke(["bench", "contention", "--decisions", "3000", "--clients", "32", "--nodes", "8", "--json"]) == 0
    figures = json.loads(capfd.readouterr().out)
    assert (figures["handed_out_twice"], figures["leaked"], figures["unexpected"]) == (0, 0, 0)
    assert figures["outcomes"]["PLACED"] > 100
    assert figures["outcomes"]["WAIT"] > 100  # otherwise the nodes were not nearly full


@pytest.mark.slow
def test_a_redis_that_is_killed_breaks_no_promise(capfd: pytest.CaptureFixture[str]) -> None:
    code = invoke(["bench", "chaos", "--decisions", "1000", "--clients", "16", "--kills", "2", "--json"])
    out, err = capfd.readouterr()
    assert out, err
    figures = json.loads(out)
    assert (figures["handed_out_twice"], figures["leaked"], figures["unexpected"]) == (0, 0, 0)
    assert figures["lost"] == 0
    assert figures["acknowledged"] > 0, "clients held something at the kills"
    assert figures["kills"] == 2
    assert code in (0, 5)  # 5: recovery took longer than the limit, which a busy machine may cause


@pytest.mark.slow
def test_a_shadow_is_measured_where_few_gangs_fit(capfd: pytest.CaptureFixture[str]) -> None:
    few = ["--nodes", "8", "--jobs", "4", "--tasks", "8", "--turns", "1", "--seconds", "1", "--concurrency", "16"]
    assert invoke(["bench", "shadow", *few, "--json"]) in (0, Exit.NEGATIVE)
    figures = json.loads(capfd.readouterr().out)
    assert (figures["errors"], figures["answers_equal"]) == (0, True)
    assert figures["calls"] > 50


@pytest.mark.slow
def test_a_shadow_is_measured_by_turns(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACEWISE_NO_SETTING", "1")  # the caller's own settings are none of the measured service
    few = ["--nodes", "60", "--jobs", "4", "--tasks", "2", "--turns", "2", "--seconds", "2"]
    # NEGATIVE: beyond the limits of the ratios, as a busy machine may be.
    assert invoke(["bench", "shadow", *few, "--json"]) in (0, Exit.NEGATIVE)
    figures = json.loads(capfd.readouterr().out)
    assert (figures["errors"], figures["answers_equal"]) == (0, True)
    assert figures["shadowed"] > 0
    assert figures["left_out_busy"] > 0, "at saturation"
    assert len(figures["p50_ms_ratios"]) == 2
    low, high = figures["p99_ms_ratio_interval"]
    assert low <= figures["p99_ms_ratio"] <= high
    assert figures["control_p99_ms_ratio_interval"] != [low, high]
    assert figures["paced_rps"] == pytest.approx(figures["saturation_rps"] / 2)
