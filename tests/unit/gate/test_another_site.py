"""A log of another cluster is refused though the two share a name: its nodes are not those of the candidate's log."""

import json
from pathlib import Path

import msgspec
import pytest
from tests.fakes.bundles import copy_bundle, rewrite
from tests.fakes.logs.simulated_log import CLUSTER, simulated_log

from placewise_log.store import LogStore
from placewise_models.bundle import MANIFEST, Manifest
from placewise_models.folder import shipped_bundle
from placewise_training.gate.gate import RETRAINED, GateArgs, gate
from placewise_training.log.nodes import nodes_of
from placewise_training.sim.hardware import uniform_cluster
from placewise_training.sim.truths import make_truth
from placewise_training.sim.workloads import HarmonyWorkload

SEED = 3


async def logged(folder: Path, nodes: int, gpu_model: str) -> Path:
    truth = make_truth("site", SEED)
    jobs = HarmonyWorkload(jobs=20, per_interval=3.0).generate(truth, SEED)
    await simulated_log(folder, uniform_cluster(nodes, 4, gpu_model), jobs, truth, seed=SEED, has_views=True)
    return folder


def learned_from(log: Path, folder: Path) -> Path:
    """A bundle whose retraining says that it learned from this log."""
    copy_bundle(folder)
    (folder / RETRAINED).write_text(json.dumps({"log": {"nodes": nodes_of(LogStore(log))}}), "utf-8")
    manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    return rewrite(folder, files={**manifest.files, RETRAINED: ""})


async def test_a_log_of_another_cluster_of_the_same_name_is_refused_by_its_nodes(tmp_path: Path) -> None:
    log = await logged(tmp_path / "log", 6, "V100")
    candidate = learned_from(log, tmp_path / "next")
    for name, nodes, gpu_model, known in (("other-gpus", 6, "T4", 0), ("other-nodes", 16, "V100", 6)):
        foreign = await logged(tmp_path / name, nodes, gpu_model)
        found = gate(GateArgs(foreign, candidate, shipped_bundle(), cluster=CLUSTER))
        assert [check.name for check in found.failed] == ["log of this cluster"]
        assert found.failed[0].text.startswith(f"{known} of its {nodes} nodes have name and GPU model as in the log")


async def test_its_own_log_and_one_with_a_node_more_are_judged(tmp_path: Path) -> None:
    log = await logged(tmp_path / "log", 6, "V100")
    candidate = learned_from(log, tmp_path / "next")
    for own in (log, await logged(tmp_path / "grown", 7, "V100")):
        with pytest.raises(ValueError, match="blocks of time"):  # beyond the check: so short a log has no stretches
            gate(GateArgs(own, candidate, shipped_bundle(), cluster=CLUSTER))
