"""The paper's NCF: trained on two metrics of each kind, copied to further GPUs, exported, and read by `iawp-paper`."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.fakes.bundles import copy_bundle, rewrite
from tests.fakes.engine import ask_place, place, running_engine

from placewise_core.domain.commands import Scope
from placewise_core.domain.job import Job, JobId, Subtask
from placewise_core.subtasks.metrics import GPU_METRICS, METRICS
from placewise_models.bundle import BundleError, load
from placewise_models.ncf import NCF_INPUTS, NCF_MODEL, NCF_REPORT, NcfMatrix, ncf_columns
from placewise_models.session import open_session
from placewise_training.stdm import ncf
from placewise_training.stdm.export import export_ncf
from placewise_training.stdm.ncf import Args, begin, new_rows, stitched, train
from placewise_training.stdm.train import Args as StdmArgs

# 5.1 and Table 2 of the paper: nine metrics and the speedup.
PRINTED = (
    "cpu", "host_memory", "sm", "l1", "l2", "texture", "dram", "load_throughput", "store_throughput", "speedup",
)  # fmt: skip


def quick(out: Path, **more: object) -> Args:
    return Args(out=out, draws=2, pretrain_steps=20, sgd_steps=20, **more)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _threads() -> object:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on one measured kind."""
    out: Path = tmp_path_factory.mktemp("ncf")
    (out / "profiles.json").write_text(json.dumps({"detect": {"sm": 0.4, "speedup": 9.0}}))
    train(quick(out, profiles=str(out / "profiles.json")))
    export_ncf(out, out)
    return out


def matrix(run: Path) -> NcfMatrix:
    return NcfMatrix.load((run / NCF_MODEL).read_bytes(), json.loads((run / NCF_REPORT).read_text()))


def test_its_inputs_are_the_papers_and_no_more(run: Path) -> None:
    """A subtask and a metric, by number; the metrics are those of the paper."""
    session = open_session((run / NCF_MODEL).read_bytes(), NCF_MODEL)
    assert tuple(node.name for node in session.get_inputs()) == NCF_INPUTS == ("subtask", "metric")
    assert ncf_columns(1) == METRICS == PRINTED


def test_without_measurements_two_random_metrics_of_each_kind_are_profiled() -> None:
    drawn = [new_rows(Args(seed=seed)) for seed in range(3)]
    assert all(len(row) == 2 for rows in drawn for row in rows.values())
    assert len({tuple(sorted(row)) for rows in drawn for row in rows.values()}) > 5


def test_the_matrix_holds_every_metric_of_the_kinds(run: Path) -> None:
    known = matrix(run)
    row = known.of_kind("detect", 0)
    assert tuple(row) == METRICS
    assert all(0.0 <= row[name] <= 1.0 for name in METRICS[:-1])
    assert known.of_kind("detect", 7) == row
    assert known.of_kind("never seen", 0) == {}


def test_a_new_gpu_begins_with_the_parameters_of_the_first(run: Path) -> None:
    """4.3.4: before any step on it every GPU has the values of the first one."""
    grown = stitched(ncf.load(run), {}, gpus=3)
    with torch.no_grad():
        values = grown.net.table().numpy()
    columns = ncf_columns(3)
    for g in (1, 2):
        for name in GPU_METRICS:
            np.testing.assert_array_equal(values[:, columns.index(f"gpu{g}/{name}")], values[:, columns.index(name)])


def test_the_caller_of_the_transfer_goes_on_from_a_run(run: Path, tmp_path: Path) -> None:
    (tmp_path / "more.json").write_text(json.dumps({"detect": {"gpu1/sm": 0.9}, "track": {"dram": 0.2, "l2": 0.3}}))
    report = train(quick(tmp_path, profiles=str(tmp_path / "more.json"), start=str(run), gpus=2))
    assert (report["gpus"], report["kinds"]) == (2, ["detect", "track"])
    export_ncf(tmp_path, tmp_path)
    known = matrix(tmp_path)
    assert known.of_kind("detect", 1)["sm"] != known.of_kind("detect", 0)["sm"]
    assert tuple(known.of_kind("track", 1)) == METRICS


def test_parameters_are_copied_from_a_node_with_one_gpu_only(run: Path) -> None:
    begun = begin(Args(start=str(run)), StdmArgs())
    with pytest.raises(ValueError, match="from a node with one GPU"):
        stitched(stitched(begun, {}, gpus=2), {}, gpus=4)


def pipeline() -> Job:
    """Two kinds as fast on a GPU; only the net knows their other demands."""
    ready = [Subtask(name, "detect", has_gpu_version=True) for name in ("a", "b")]
    return Job(JobId("p"), subtasks=tuple(ready))


async def test_iawp_paper_reads_the_net_of_its_bundle(run: Path, tmp_path: Path) -> None:
    folder = copy_bundle(tmp_path / "with-ncf")
    for name in (NCF_MODEL, NCF_REPORT):
        (folder / name).write_bytes((run / name).read_bytes())
    files = json.loads((folder / "manifest.json").read_text())["files"]
    rewrite(folder, files={**files, NCF_MODEL: "", NCF_REPORT: ""})
    bundle = load(folder)
    assert bundle.ncf is not None
    asked = place(pipeline(), policy="iawp-paper", scope=Scope.NODE, node_id="n0")
    async with running_engine(nodes=1) as engine:
        without = await ask_place(engine, asked)
        assert without.meta.fallback_reason == "iawp-paper: the bundle has no ncf.onnx: metrics as measured alone"
        engine._parts.registry._on_activate(bundle)
        decided = await ask_place(engine, asked)
        assert (decided.meta.policy, decided.meta.fallback_reason) == ("iawp-paper", "")
        metrics = engine._parts.registry.shadows.active.subtasks["iawp-paper"].metrics_of(
            next(iter(engine._parts.views._live.values())).view
        )
        assert set(metrics.of(pipeline().subtasks[0])) == set(METRICS)


def test_a_torn_net_is_refused(run: Path, tmp_path: Path) -> None:
    folder = copy_bundle(tmp_path / "bad")
    (folder / NCF_MODEL).write_bytes(b"no net")
    (folder / NCF_REPORT).write_bytes((run / NCF_REPORT).read_bytes())
    files = json.loads((folder / "manifest.json").read_text())["files"]
    rewrite(folder, files={**files, NCF_MODEL: "", NCF_REPORT: ""})
    with pytest.raises(BundleError, match=r"ncf\.onnx is not a model"):
        load(folder)
