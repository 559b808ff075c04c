"""Capability and heat of units are fitted to the service's log: constants of the truth are changed, and they follow."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.fakes.declog import NOON_S, decision_id, outcome
from tests.fakes.logs.simulated_log import LoggedRing

from placewise_core.domain.cluster import Gpu, Hardware, Node, NodeTelemetry
from placewise_core.domain.commands import JobEventKind, ShareOutcome
from placewise_core.domain.decision import DecisionMeta, Outcome, PartitionDecision, PartitionPlan, Share
from placewise_core.domain.divisible import DivisibleTask
from placewise_core.domain.events import ClusterRecords
from placewise_core.domain.job import JobId, NodeId, Resources
from placewise_core.partition.capability import Weights, node_capabilities
from placewise_core.partition.thermal import ThermalModel, peak_celsius, readings_of, thermal_state
from placewise_core.partition.units import CPU_UNIT, units_of
from placewise_core.view.view import ClusterView
from placewise_log.manifest import LogManifest
from placewise_log.record import DecisionRecord, OutcomeRecord, ViewRead
from placewise_log.views import Snapshot, encode_snapshot
from placewise_models.bundle import CAPABILITY
from placewise_models.folder import shipped_bundle
from placewise_service.declog.export import export
from placewise_training.capability.card import card
from placewise_training.capability.train import Args, train

TASKS, NOISE, AMBIENT = 80, 0.03, 25.0
UNITS = (("n0", "gpu0"), ("n1", "gpu0"), ("n2", CPU_UNIT), ("n3", CPU_UNIT))
LEVEL = {"render": 1.0, "encode": 0.2}  # users count the scale of the second kind in smaller units
Order = Callable[[list[float]], list[float]]


def shipped() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((shipped_bundle() / CAPABILITY).read_text("utf-8"))
    return found


def true_weights() -> Weights:
    """Of a site whose tasks live on the clock of GPUs, not on their memory."""
    weights = shipped()["weights"]
    return Weights.from_mapping({**weights, "gpu": weights["gpu_memory"], "gpu_memory": weights["gpu"]})


def shipped_heat(name: str) -> ThermalModel:
    return ThermalModel.from_mapping(shipped()["thermal"][name])


def true_heat(name: str) -> ThermalModel:
    """Of a site whose coolers are half as good."""
    model = shipped_heat(name)
    return replace(model, resistance_k_per_w=2.0 * model.resistance_k_per_w)


def drawn_view(rng: np.random.Generator) -> ClusterView:
    """Two nodes with GPUs and two without, each with a load of its own."""
    nodes = []
    for i, (gib, ghz) in enumerate(((16.0, 1.8), (80.0, 1.2), (0.0, 0.0), (0.0, 0.0))):
        util = rng.uniform(0.0, 0.8, 4).tolist()
        telemetry = NodeTelemetry(
            cpu_util=util[0], memory_util=util[1], gpu_util=util[2], gpu_memory_util=util[3],
            cpu_celsius=float(rng.uniform(30, 50)), gpu_celsius=float(rng.uniform(30, 50)) if gib else float("nan"),
            ambient_celsius=AMBIENT, observe_time_s=NOON_S,
        )  # fmt: skip
        gpus = (Gpu(0, "V100", gib),) if gib else ()
        capacity = Resources(16.0, float(len(gpus)), 64.0 * (1 + i))
        nodes.append(Node(NodeId(f"n{i}"), capacity, gpus, hardware=Hardware(2.0 + i, 0.0, ghz), telemetry=telemetry))
    return ClusterView(ClusterRecords("c", 7, "e", nodes=tuple(nodes)))


async def logged(
    folder: Path, order: Order = list, heat_order: Order = list, heat_of: Callable[[str], ThermalModel] = true_heat
) -> Path:
    """Tasks of four shares, each on a view of its own. `order` may shuffle the speeds of the earlier four fifths,
    `heat_order` their peaks, which `heat_of` makes. The last share of every eighth task takes twice as long as the log
    goes on."""
    rng, entries, views, speeds = np.random.default_rng(4), [], [], []
    states = [drawn_view(rng) for _ in range(TASKS)]
    for view in states:
        parts = node_capabilities(view, units_of(view).gpu_memory_gib, units_of(view).has_gpu, true_weights()) * 4
        capability = [parts[3:, m].sum() if m < 2 else parts[:3, m].sum() for m in range(4)]
        speeds.append((np.array(capability) * np.exp(NOISE * rng.normal(size=4))).tolist())
    cut = 4 * TASKS // 5
    speeds[:cut] = np.array(order([each for row in speeds[:cut] for each in row])).reshape(-1, 4).tolist()
    end_s = NOON_S + 1000.0 * TASKS
    ended: list[OutcomeRecord] = []
    for n, (view, row) in enumerate(zip(states, speeds, strict=True), start=1):
        time_s, kind = NOON_S + 1000.0 * n, ("render", "encode")[n % 2]
        scales = rng.uniform(20.0, 200.0, 4)
        if n % 8 == 0:
            scales[3] = 2.0 * (end_s - time_s) * row[3] * LEVEL[kind]
        shares = tuple(Share(NodeId(a), b, float(t), 1.0, 0.0, 1.0) for (a, b), t in zip(UNITS, scales, strict=True))
        plan, read = PartitionPlan(Outcome.PLACED, shares), ViewRead(f"v{n}", 7, 0.0, view.digest())
        made = DecisionRecord(
            "Partition", time_s, "c", task=DivisibleTask(f"t{n}", float(scales.sum()), kind=kind), reads=(read,),
            partition=PartitionDecision(plan, DecisionMeta(decision_id(n, time_s), "heat-island")),
        )  # fmt: skip
        entries.append(made)
        views.append(encode_snapshot(Snapshot.of(f"v{n}", view, time_s, ())))
        heat = readings_of(view)
        for i, (share, speed) in enumerate(zip(shares, row, strict=True)):
            seconds, name, at = share.scale / speed / LEVEL[kind], "gpu" if i < 2 else "cpu", i if i < 2 else 4 + i
            if i == 3 and n % 8 == 0:
                continue
            of = [np.array([x[at]]) for x in (heat.celsius, heat.limit, heat.ambient, heat.watts)]
            peak = float(peak_celsius(thermal_state(heat_of(name), *of), np.array([seconds]))[0])
            done = ShareOutcome(kind, share.node, share.unit, share.scale, seconds, 2.5, peak + float(rng.normal()))
            made_of = outcome(
                n, JobEventKind.SHARE_FINISHED, min(time_s + seconds, end_s), decided_s=time_s, share=done
            )
            ended.append(replace(made_of, event=replace(made_of.event, job_id=JobId(f"t{n}"))))
    entries += with_peaks(ended, heat_order)
    ring = LoggedRing(entries, *views)
    ring.now_s = end_s + 1.0
    await export(ring, folder)
    return folder


def with_peaks(ended: list[OutcomeRecord], order: Order) -> list[OutcomeRecord]:
    """The reports with the peaks of the earlier four fifths in another order."""
    shares = [report.event.share for report in ended]
    peaks = [share.peak_celsius for share in shares if share is not None]
    cut = 4 * len(peaks) // 5
    peaks[:cut] = order(peaks[:cut])
    return [
        replace(report, event=replace(report.event, share=replace(report.event.share, peak_celsius=peak)))
        for report, peak in zip(ended, peaks, strict=True)
    ]


def learnt(out: Path, log: Path, **options: Any) -> dict[str, Any]:
    shown: list[tuple[str, int, int | None]] = []
    report = train(Args(out=out, log=str(log), **options), lambda *step: shown.append(step))
    assert shown == [("capability", done, 2) for done in range(3)]
    assert json.loads((out / CAPABILITY).read_text("utf-8")) == report
    assert report["log"]["digest"] == LogManifest.read(log).digest
    return report


@pytest.mark.parametrize("only_log", [False, True])
async def test_the_error_on_later_shares_falls_once_constants_of_the_truth_have_changed(
    tmp_path: Path, only_log: bool
) -> None:
    report = learnt(tmp_path / "out", await logged(tmp_path / "log"), only_log=only_log)
    log, wanted = report["log"], true_weights()
    assert log["later"]["gain_interval"][0] > 0.0
    assert log["counts"]["bounds"] == TASKS // 8 - 1  # the last one was decided as the log ended
    for name in ("gpu", "cpu"):
        assert log["later_heat"][name]["gain_interval"][0] > 0.0
        assert report["thermal"][name]["resistance_k_per_w"] == pytest.approx(
            true_heat(name).resistance_k_per_w, rel=0.1
        )
    assert report["default_overhead_s"] == 2.5
    assert sum(report["weights"].values()) == pytest.approx(1.0, abs=1e-9)
    if only_log:
        assert log["later"]["error_after"] < 2 * NOISE
        assert report["weights"]["gpu"] == pytest.approx(wanted.gpu, abs=0.05)
    assert "K/W" in card(report)


async def test_shuffled_outcomes_teach_nothing(tmp_path: Path) -> None:
    def shuffled(speeds: list[float]) -> list[float]:
        return np.random.default_rng(9).permutation(speeds).tolist()

    report = learnt(tmp_path / "out", await logged(tmp_path / "log", shuffled), only_log=True)
    assert report["log"]["later"]["gain_interval"][0] <= 0.0


@pytest.mark.parametrize("only_log", [False, True])
async def test_shuffled_peaks_teach_no_heat(tmp_path: Path, only_log: bool) -> None:
    """The truth is the shipped one. The mean of the peaks outlives a shuffle, and tells a changed resistance."""

    def shuffled(peaks: list[float]) -> list[float]:
        return np.random.default_rng(9).permutation(peaks).tolist()

    log = await logged(tmp_path / "log", heat_order=shuffled, heat_of=shipped_heat)
    later = learnt(tmp_path / "out", log, only_log=only_log)["log"]["later_heat"]
    assert {name for name in ("gpu", "cpu") if later[name]["gain_interval"][0] > 0.0} == set()


def test_it_needs_a_log(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--log"):
        train(Args(out=tmp_path))
