"""A service whose bundle has the nets of `harmony-paper` and `ldwp-paper` answers by them, on their number of nodes."""

import json
from pathlib import Path

import pytest
from tests.fakes.bundles import copy_bundle, rewrite
from tests.fakes.engine import ask_place, place, running_engine

from placewise_core.domain.decision import Outcome
from placewise_core.domain.job import Job, JobId, Resources, Role, Subtask, TaskGroup
from placewise_models.bundle import load
from placewise_models.printed.harmony_paper import HARMONY_PAPER_MODEL, HARMONY_PAPER_REPORT
from placewise_models.printed.ldwp_paper import LDWP_PAPER_MODEL, LDWP_PAPER_REPORT
from placewise_training.ldwp.printed import train as ldwp
from placewise_training.ldwp.printed.export import export_ldwp_paper
from placewise_training.policy.printed import train as harmony
from placewise_training.policy.printed.export import export_harmony_paper

NODES = 4
FILES = (HARMONY_PAPER_MODEL, HARMONY_PAPER_REPORT, LDWP_PAPER_MODEL, LDWP_PAPER_REPORT)


@pytest.fixture(scope="module")
def nets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("nets")
    harmony.train(
        harmony.Args(
            out=out, nodes=NODES, tasks=20, simulations=1, jobs=4, width=16, layers=1, validation_simulations=1
        )
    )
    ldwp.train(ldwp.Args(out=out, nodes=NODES, tasks=25, logged=25))
    export_harmony_paper(out, out)
    export_ldwp_paper(out, out)
    return out


def gang(name: str) -> Job:
    return Job(JobId(name), model="vgg16", groups=(TaskGroup(Role.WORKER, 2, Resources(cpu_cores=1, gpus=1)),))


def pipeline(name: str) -> Job:
    return Job(JobId(name), model="video_synopsis", subtasks=(Subtask("s", "stitching", size=3000.0),))


@pytest.mark.parametrize(("nodes", "reason"), [(NODES, ""), (5, "its net is for 4 nodes, the cluster has 5")])
async def test_a_service_answers_by_the_nets_of_its_bundle(nets: Path, tmp_path: Path, nodes: int, reason: str) -> None:
    folder = copy_bundle(tmp_path / "printed")
    for name in FILES:
        (folder / name).write_bytes((nets / name).read_bytes())
    files = json.loads((folder / "manifest.json").read_text())["files"]
    rewrite(folder, files={**files, **dict.fromkeys(FILES, "")})
    asked = {
        "harmony-paper": place(gang("a"), gang("b"), policy="harmony-paper"),
        "ldwp-paper": place(pipeline("c"), policy="ldwp-paper"),
    }
    async with running_engine(nodes=nodes) as engine:
        engine._parts.registry._on_activate(load(folder))
        for name, command in asked.items():
            decided = await ask_place(engine, command)
            assert {decision.outcome for decision in decided.decisions} == {Outcome.PLACED}
            assert (decided.meta.policy, decided.meta.fallback_reason) == (name, reason and f"{name}: {reason}")
