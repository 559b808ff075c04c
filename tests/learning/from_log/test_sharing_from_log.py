"""The completion of co-runs learns from the service's log: one constant of the truth is changed, and it follows."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.fakes.declog import NOON_S, decision, outcome
from tests.fakes.logs.simulated_log import LoggedRing

from placewise_core.domain.cluster import Gpu, Node
from placewise_core.domain.commands import JobEventKind
from placewise_core.domain.events import ClusterRecords
from placewise_core.domain.job import NodeId, Resources
from placewise_core.policies.profiled.tables import packaged_tables
from placewise_core.speed.sharing_row import Square
from placewise_core.view.view import ClusterView
from placewise_log.manifest import LogManifest
from placewise_log.record import Entry
from placewise_log.views import Snapshot, encode_snapshot
from placewise_models.folder import shipped_bundle
from placewise_service.declog.export import export
from placewise_training.data.site_rows import SiteRows
from placewise_training.log.co_runs import CoRunRow
from placewise_training.sharing import train as train_sharing
from placewise_training.sharing.card import card
from placewise_training.sharing.export import export_sharing
from placewise_training.sharing.from_log import with_log
from placewise_training.sharing.train import Args, train

GPU, PAIRS, NOISE = "V100", 150, 0.05
MODELS = tuple(f"site{i}" for i in range(8))  # of no family: nobody assumes anything of them
UNLIKE = 1.5  # spread of the networks of this site around the row assumed of them, in log-odds; of the published 0.5
EPOCHS, ALONE_S, BESIDE_S = 30.0, 3000.0, 1000.0


def truth() -> dict[tuple[str, str], tuple[float, float]]:
    """Speeds of each network of the site beside each of the table, and of that one beside it."""
    rng, table = np.random.default_rng(3), packaged_tables().interference
    assumed = Square.of(table, GPU).row(None)
    count, found = len(table.references), {}
    for model in MODELS:
        own, other = UNLIKE * rng.normal(size=2)
        for i, name in enumerate(table.references):
            odds = np.log(assumed[[i, count + i]] / (1.0 - assumed[[i, count + i]]))
            speeds = 1.0 / (1.0 + np.exp(-(odds + np.array([own, other]))))
            found[model, name] = (float(speeds[0]), float(speeds[1]))
    return found


async def logged(folder: Path) -> Path:
    """Pairs on one GPU, one after the other. Every tenth of the first jobs fails before it has reported anything: all
    that is known is that it was no faster."""
    rng, true = np.random.default_rng(5), truth()
    kinds = list(true)
    chosen = [kinds[int(rng.integers(len(kinds)))] for _ in range(PAIRS)]
    speeds = [(np.array(true[kind]) * np.exp(NOISE * rng.normal(size=2))).tolist() for kind in chosen]
    entries: list[Entry] = []
    for n, (kind, pair) in enumerate(zip(chosen, speeds, strict=True)):
        began_s = NOON_S + 10_000.0 * n
        for side, (model, norm) in enumerate(zip(kind, pair, strict=True)):
            start_s, number = began_s + 100.0 * side, 2 * n + side + 1
            made = decision(number, time_s=start_s)
            job = replace(made.jobs[0], model=model, batch_size=32, total_epochs=EPOCHS, single_gpu_s=ALONE_S)
            job = replace(job, gpu_sharing=replace(job.gpu_sharing, allowed=True))
            entries.append(replace(made, jobs=(job,)))
            reported = {"decided_s": start_s}
            placement = made.place.decisions[0].assignments  # type: ignore[union-attr]
            entries.append(outcome(number, JobEventKind.STARTED, start_s, placement=placement, **reported))
            per_s, beside_s = norm * EPOCHS / ALONE_S, began_s + 100.0
            if side == 0 and n % 10 == 0:
                ended_s = beside_s + 0.9 * EPOCHS / per_s
            else:
                for at_s, done in ((beside_s, 1.0), (beside_s + BESIDE_S, 1.0 + per_s * BESIDE_S)):
                    entries.append(outcome(number, JobEventKind.PROGRESS, at_s + 1e-3, epochs_done=done, **reported))
                ended_s = beside_s + BESIDE_S + 1.0
            entries.append(outcome(number, JobEventKind.FAILED, min(ended_s, began_s + 9_000.0), **reported))
    node = Node(NodeId("n1"), Resources(8.0, 1.0, 64.0), (Gpu(0, GPU, 16.0),), max_jobs_per_gpu=2)
    view = ClusterView(ClusterRecords("c", 0, "e", nodes=(node,)))
    ring = LoggedRing(entries, encode_snapshot(Snapshot.of("v", view, NOON_S, ())))
    ring.now_s = NOON_S + 10_000.0 * (PAIRS + 1)
    await export(ring, folder)
    return folder


def learnt(out: Path, log: Path, **options: Any) -> dict[str, Any]:
    report = train(Args(out=out, steps=150, log=str(log), start=shipped_bundle(), **options))
    assert json.loads((out / "sharing.json").read_text("utf-8"))["log"] == report["log"]
    found: dict[str, Any] = report["log"]
    assert found["digest"] == LogManifest.read(log).digest
    return found


@pytest.fixture(autouse=True)
def _threads() -> Any:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("only_log", [False, True])
async def test_the_error_on_later_co_runs_falls_once_a_constant_of_the_truth_has_changed(
    tmp_path: Path, only_log: bool
) -> None:
    found = learnt(tmp_path, await logged(tmp_path / "log"), only_log=only_log)
    assert found["later"]["gain_interval"][0] > 0.0
    assert found["rows"] == 120
    assert found["counts"]["bounds"] == PAIRS // 10
    assert "sharing.onnx" in str(export_sharing(tmp_path, tmp_path))
    assert "## Errors" not in card(json.loads((tmp_path / "sharing.json").read_text("utf-8")))


async def test_shuffled_outcomes_teach_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Learnt from, the speeds belong to other pairs; judged on, to their own."""

    def shuffled(own: SiteRows, rows: Sequence[CoRunRow]) -> SiteRows:
        order = np.random.default_rng(9).permutation(len(rows))
        speeds = [(rows[i].pair.norm_a, rows[i].pair.norm_b) for i in order]
        pairs = [replace(row.pair, norm_a=a, norm_b=b) for row, (a, b) in zip(rows, speeds, strict=True)]
        return with_log(own, [row._replace(pair=pair) for row, pair in zip(rows, pairs, strict=True)])

    monkeypatch.setattr(train_sharing, "with_log", shuffled)
    found = learnt(tmp_path, await logged(tmp_path / "log"), only_log=True)
    assert found["later"]["gain_interval"][0] <= 0.0


def test_only_the_log_needs_a_log(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--only-log needs a log"):
        train(Args(out=tmp_path, only_log=True))
