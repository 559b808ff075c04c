"""A bundle that never served is asked for the logged decisions again."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.logs.simulated_log import simulated_log
from typer.testing import CliRunner

from placewise_models.folder import shipped_bundle
from placewise_training.evaluate.command import evaluate_app
from placewise_training.sim.hardware import harmony_cluster
from placewise_training.sim.truths import make_truth
from placewise_training.sim.workloads import HarmonyWorkload

JOBS, SEED = 260, 4


async def logged(folder: Path, *, has_views: bool = True) -> Path:
    truth = make_truth("site", SEED)
    jobs = HarmonyWorkload(jobs=JOBS, per_interval=3.0, pattern="poisson").generate(truth, SEED)
    await simulated_log(folder, harmony_cluster(6), jobs, truth, seed=SEED, has_views=has_views)
    return folder


def evaluated(log: Path, *arguments: str) -> Any:
    options = ["--log", str(log), "--block-min", "60", "--json", *arguments]
    done = CliRunner().invoke(evaluate_app, options)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return json.loads(done.stdout)


@pytest.mark.slow
async def test_a_bundle_that_places_as_an_explorer_does_is_estimated_as_it_is(tmp_path: Path) -> None:
    log = await logged(tmp_path)
    (known,) = evaluated(log, "--policy", "load-balance")["candidates"]
    report = evaluated(log, "--bundle", str(shipped_bundle()), "--policy", "load-balance")
    (again,) = report["candidates"]
    assert again["candidate"] == f"{shipped_bundle().name}/load-balance"
    assert (again["support"], again["refusals"]) == (known["support"], known["refusals"])
    assert again["estimates"] == known["estimates"]
    assert (report["log"]["not_asked"], report["log"]["not_asked_reasons"]) == (0, {})


@pytest.mark.slow
async def test_placements_that_nobody_in_the_log_gives_have_no_support(tmp_path: Path) -> None:
    report = evaluated(await logged(tmp_path), "--bundle", str(shipped_bundle()), "--policy", "tetris")
    (one,) = report["candidates"]
    assert one["support"]["unsupported"] > 0.05
    assert "WITHOUT_SUPPORT" in [reason["name"] for reason in one["refusals"]]


@pytest.mark.slow
async def test_the_policy_in_force_is_asked_unless_one_is_named(tmp_path: Path) -> None:
    report = evaluated(await logged(tmp_path), "--bundle", str(shipped_bundle()))
    (one,) = report["candidates"]
    assert one["candidate"].endswith("/consolidate")
    assert one["support"]["differing"] == 0


@pytest.mark.slow
async def test_without_views_the_reason_is_told(tmp_path: Path) -> None:
    log = await logged(tmp_path, has_views=False)
    with pytest.raises(Exception, match=r"of this log: \d+ cannot be rebuilt: the record does not say which"):
        evaluated(log, "--bundle", str(shipped_bundle()))


def test_a_candidate_is_needed(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="name a candidate: --policy, --bundle or both"):
        evaluated(tmp_path)
