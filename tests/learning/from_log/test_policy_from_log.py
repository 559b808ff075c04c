"""Harmony's nets learn from the service's log of views, alternatives and rewards."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tests.fakes.logs.simulated_log import simulated_log

from placewise_core.domain.cluster import Assignment, Node
from placewise_core.domain.events import ClusterRecords
from placewise_core.domain.job import NodeId, Resources
from placewise_core.gang.policy import action_of
from placewise_core.view.view import ClusterView
from placewise_log.manifest import LogManifest
from placewise_models.folder import shipped_bundle
from placewise_training.log.placed import placed_jobs
from placewise_training.policy import train as train_policy
from placewise_training.policy.args import Args
from placewise_training.policy.card import card
from placewise_training.policy.export import export_policy
from placewise_training.policy.graphs import parity
from placewise_training.policy.logged.from_log import Choice, PolicyRow, PolicyRows, counts_of
from placewise_training.policy.logged.weights import begun
from placewise_training.policy.printed import train as train_printed
from placewise_training.policy.printed.export import export_harmony_paper
from placewise_training.policy.printed.from_log import intervals_of
from placewise_training.policy.printed.rollouts import PaperStep
from placewise_training.sim.hardware import harmony_cluster
from placewise_training.sim.truths import make_truth
from placewise_training.sim.workloads import HarmonyWorkload

SEED, NODES, JOBS = 11, 6, 60


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder, truth = tmp_path_factory.mktemp("log"), make_truth("train", SEED)
    jobs = HarmonyWorkload(jobs=JOBS, per_interval=3.0, pattern="poisson").generate(truth, SEED)
    asyncio.run(simulated_log(folder, harmony_cluster(NODES), jobs, truth, seed=SEED, has_views=True))
    return str(folder)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_the_net_of_a_bundle_answers_as_its_graphs() -> None:
    assert parity(begun(shipped_bundle()), shipped_bundle()) <= 1e-5


def test_graphs_of_another_form_are_refused(tmp_path: Path) -> None:
    report = json.loads((shipped_bundle() / "policy.json").read_text("utf-8"))
    for changed, message in (
        ({**report, "feature_schema": "other"}, "reads other features"),
        ({**report, "dims": {**report["dims"], "width": 32}}, "have another version's form"),
    ):
        for file in shipped_bundle().glob("policy_*.onnx"):
            (tmp_path / file.name).write_bytes(file.read_bytes())
        (tmp_path / "policy.json").write_text(json.dumps(changed))
        with pytest.raises(ValueError, match=message):
            begun(tmp_path)


def test_the_nodes_of_an_alternative_become_counts_by_role(log: str) -> None:
    """As the placement that was answered has them."""
    for placed in placed_jobs(log):
        (decided,) = placed.record.place.decisions if placed.record.place is not None else ()
        names = sorted({node for option in placed.options for node in option.nodes})
        nodes = tuple(Node(NodeId(name), Resources()) for name in names)
        view = ClusterView(ClusterRecords("c", 0, "life", nodes))
        chosen = next(option for option in placed.options if option.is_chosen)
        assert chosen.nodes == tuple(node for _, node in action_of(decided.assignments))
        counts = counts_of(chosen.nodes, placed.job, view)
        assert counts is not None
        for m, name in enumerate(names):
            tasks: list[Assignment] = [task for task in decided.assignments if task.node == name]
            workers = sum(task.role.value == "WORKER" for task in tasks)
            assert counts[:, m].tolist() == [workers, len(tasks) - workers]


def test_a_decision_with_a_propensity_that_is_none_teaches_nothing(tmp_path: Path, log: str) -> None:
    """Above 1, below 0, no number, and 0 for the placement that was taken."""
    whole = PolicyRows(log, lambda *_: (), lambda *_: None)
    known = [row.time_s for row in whole]
    shutil.copytree(log, tmp_path / "log")
    wrong = iter([1.5, -0.1, float("nan"), 0.0])
    for path in sorted((tmp_path / "log" / "decisions").glob("*/*.parquet")):
        table = pq.read_table(path, partitioning=None)
        for row in (rows := table.to_pylist()):
            if row["alternatives"] and (propensity := next(wrong, None)) is not None:
                next(each for each in row["alternatives"] if each["is_chosen"])["propensity"] = propensity
        pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
    found = PolicyRows(str(tmp_path / "log"), lambda *_: (), lambda *_: None)
    assert len(known) - len([row.time_s for row in found]) == 4
    assert found.counts["of a propensity outside (0, 1]"] == 4


def test_a_reward_belongs_to_its_own_decision_and_probabilities_multiply_to_p() -> None:
    way = PaperStep(np.zeros((1, 2), np.float32), np.ones(2, np.bool_), 0, 1.0)
    made = Choice((way, way), 0.25, is_chosen=True)
    rows = [PolicyRow(1200.0 * i, None, (made,), reward, np.zeros(1)) for i, reward in enumerate((1.0, None, 3.0))]
    found = intervals_of(rows)
    assert [(each.reward, each.passed) for each in found] == [(1.0, 2.0), (3.0, 1.0)]
    assert np.prod([step.probability for step in found[0].steps]) == pytest.approx(0.25)


@pytest.mark.slow
def test_the_policy_is_taught_on_the_views_of_the_log(tmp_path: Path, log: str) -> None:
    """Its likeliest ways come nearer to the teacher's; the outcome is judged on later decisions."""
    args = Args(out=tmp_path, log=log, only_log=True, tasks=200, validation_simulations=0, judged_seeds=0)
    report = train_policy.train(args)
    assert report["log"]["rows"] == JOBS * 4 // 5
    assert report["log"]["digest"] == LogManifest.read(Path(log)).digest
    assert report["log"]["later"]["rows"] > 0
    export_policy(tmp_path, tmp_path)
    assert parity(begun(tmp_path), tmp_path) <= 1e-5
    assert "gain on later decisions" in card(json.loads((tmp_path / "policy.json").read_text("utf-8")))


@pytest.mark.slow
def test_the_papers_actor_critic_goes_on_from_a_bundle(tmp_path: Path, log: str) -> None:
    args = train_printed.Args(
        out=tmp_path / "a", log=log, only_log=True, nodes=NODES, width=16, heads=2, layers=1, passes=1
    )
    first = train_printed.train(args)
    assert (first["tasks"], first["log"]["rows"]) == (0, JOBS * 4 // 5)
    assert first["log"]["digest"] == LogManifest.read(Path(log)).digest
    export_harmony_paper(tmp_path / "a", tmp_path / "a")
    (tmp_path / "a" / train_printed.CHECKPOINT).unlink()  # as a bundle has it
    again = train_printed.train(replace(args, out=tmp_path / "b", start=tmp_path / "a"))
    before, after = again["log"]["later"]["error_before"], first["log"]["later"]["error_after"]
    assert before == pytest.approx(after, abs=1e-6)


def test_only_the_log_needs_a_log_and_imitation(tmp_path: Path) -> None:
    for run in (
        lambda: train_policy.train(Args(out=tmp_path, only_log=True)),
        lambda: train_printed.train(train_printed.Args(out=tmp_path, only_log=True)),
    ):
        with pytest.raises(ValueError, match="--only-log needs a log"):
            run()
    with pytest.raises(ValueError, match="learns by --method imitate"):
        train_policy.train(Args(out=tmp_path, log="log", method="ppo"))
