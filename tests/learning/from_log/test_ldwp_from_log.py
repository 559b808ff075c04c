"""LDWP's nets learn from the service's log of pipelines: one constant of the truth is changed, and they follow."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.fakes.logs.pipeline_log import pipeline_log

from placewise_log.manifest import LogManifest
from placewise_models.folder import shipped_bundle
from placewise_models.ldwp import LdwpRuntime
from placewise_training.ldwp import train as train_ldwp
from placewise_training.ldwp.card import card
from placewise_training.ldwp.export import export_ldwp
from placewise_training.ldwp.from_log import NodeStep, begun, log_steps
from placewise_training.ldwp.judge import learned
from placewise_training.ldwp.printed import train as train_ldwp_paper
from placewise_training.ldwp.printed.export import export_ldwp_paper
from placewise_training.ldwp.train import TorchValues
from placewise_training.log.choosing.pipelines import centred, choice_gain, following
from placewise_training.sim.hardware import ldwp_cluster
from placewise_training.sim.pipelines import engine
from placewise_training.sim.pipelines.applications import PipelineWorkload

TRUTH, SEED, NODES, TASKS = "draw77", 3, 6, 1000
SLOWER = 0.3  # the P4s of this site, in their known speed
QUICK: dict[str, Any] = {"logged": 0, "episodes": 6, "tasks": 60, "judged_seeds": 0, "validate_every": 2, "rate": 5e-4}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The shipped net and chance choose by turns."""
    folder, known = tmp_path_factory.mktemp("log"), engine.gpu_speed
    tasks = PipelineWorkload(tasks=TASKS, per_minute=50.0).generate(TRUTH, SEED)
    chooser = learned(TorchValues(begun(shipped_bundle())), SEED, TRUTH)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(engine, "gpu_speed", lambda model: known(model) * (SLOWER if model == "P4" else 1.0))
        asyncio.run(pipeline_log(folder, ldwp_cluster(NODES), tasks, TRUTH, chooser, seed=SEED))
    return str(folder)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def learnt(out: Path, log: str, **options: Any) -> dict[str, Any]:
    args = train_ldwp.Args(out=out, log=log, start=shipped_bundle(), **{**QUICK, **options})
    found: dict[str, Any] = train_ldwp.train(args)["log"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("only_log", [False, True])
def test_its_later_choices_get_better_once_a_constant_of_the_truth_has_changed(
    tmp_path: Path, log: str, only_log: bool
) -> None:
    found = learnt(tmp_path, log, only_log=only_log)
    assert found["later"]["rows"] == TASKS // 5
    assert found["digest"] == LogManifest.read(Path(log)).digest
    assert found["later"]["gain_interval"][0] > 0.0
    assert found["later_differences"]["gain_interval"][0] > 0.0
    model = export_ldwp(tmp_path, tmp_path)
    report = json.loads((tmp_path / "ldwp.json").read_text("utf-8"))
    LdwpRuntime.load(model.read_bytes(), report)
    assert "error on later decisions" in card(report)


@pytest.mark.slow
def test_shuffled_outcomes_teach_no_better_choices(tmp_path: Path, log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Learnt from, the turnarounds are of other tasks; judged on, their own."""
    whole = log_steps(log)

    def shuffled(steps: Sequence[NodeStep]) -> list[NodeStep]:
        order = np.random.default_rng(9).permutation(len(steps))
        others = (steps[i] for i in order)
        return [s._replace(took_s=o.took_s, is_bound=o.is_bound) for s, o in zip(steps, others, strict=True)]

    mixed = whole._replace(learn=shuffled(whole.learn), choose=shuffled(whole.choose))
    monkeypatch.setattr(train_ldwp, "log_steps", lambda where, before_s: mixed)
    assert learnt(tmp_path, log, only_log=True)["later"]["gain_interval"][0] <= 0.0


@pytest.mark.slow
def test_the_papers_dqn_learns_from_the_log_and_goes_on_from_a_bundle(tmp_path: Path, log: str) -> None:
    first = train_ldwp_paper.train(train_ldwp_paper.Args(out=tmp_path / "a", log=log, only_log=True))
    assert first["tasks"] == 0
    assert first["log"]["digest"] == LogManifest.read(Path(log)).digest
    assert first["args"]["nodes"] == NODES
    differences = first["log"]["later_differences"]
    assert differences["error_after"] < differences["error_before"]
    export_ldwp_paper(tmp_path / "a", tmp_path / "a")
    (tmp_path / "a" / train_ldwp_paper.CHECKPOINT).unlink()  # as a bundle has it
    again = train_ldwp_paper.train(
        train_ldwp_paper.Args(out=tmp_path / "b", log=log, only_log=True, start=tmp_path / "a", passes=1)
    )
    assert again["is_transferred"]
    assert again["log"]["later"]["error_before"] == pytest.approx(first["log"]["later"]["error_after"], abs=1e-6)


def test_a_task_that_still_runs_bounds_its_reward_from_above() -> None:
    missing, is_bound = np.array([0.5, -0.5, 0.4, -0.4]), np.array([False, False, True, True])
    np.testing.assert_allclose(centred(missing, is_bound), [0.5, 0.5, 0.0, 0.4])


def test_choices_after_the_first_task_that_still_runs_are_not_judged() -> None:
    """Of these only the fast ones would be known."""
    ended = NodeStep(1.0, "a", np.zeros((2, 1)), 0, 1.0, False, 2.0, ((0, 0.5), (1, 0.5)))
    runs = ended._replace(time_s=2.0, is_bound=True, end_time_s=None)
    steps = [ended, runs, ended._replace(time_s=3.0)]
    found = choice_gain(steps, np.ones(3), lambda rows: np.array([0, 1]), lambda rows: np.array([1, 0]), np.zeros(3))
    assert (found["rows"], found["gain"]) == (1, 2.0)
    with pytest.raises(ValueError, match="no later decision"):
        choice_gain(steps[1:], np.ones(2), lambda rows: rows[:, 0], lambda rows: rows[:, 0], np.zeros(2))


def test_steps_of_two_clusters_follow_their_own() -> None:
    steps = [NodeStep(float(i), name, np.zeros((1, 1)), 0, 1.0, False, None) for i, name in enumerate("abab")]
    assert following(steps) == [2, 3, -1, -1]


def test_only_the_log_needs_a_log(tmp_path: Path) -> None:
    for run in (
        lambda: train_ldwp.train(train_ldwp.Args(out=tmp_path, only_log=True)),
        lambda: train_ldwp_paper.train(train_ldwp_paper.Args(out=tmp_path, only_log=True)),
    ):
        with pytest.raises(ValueError, match="--only-log needs a log"):
            run()
