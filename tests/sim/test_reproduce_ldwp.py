"""LDWP's experiments: what a run measures, recovery after cluster changes, and how claims are judged."""

import pytest

from placewise_training.reproduce import ldwp
from placewise_training.reproduce.claims import Verdict, judged
from placewise_training.reproduce.design import NeedsBundleError, Outcome
from placewise_training.reproduce.ldwp_runs import (
    BASELINES,
    IAWP,
    LDWP,
    METHODS,
    Load,
    UseLog,
    dataset_tasks,
    run,
    smoothed,
)
from placewise_training.reproduce.results import Results
from placewise_training.sim.faults import FaultKind
from placewise_training.sim.hardware import ldwp_cluster
from placewise_training.sim.pipeline_engine import NodeQueue

SMALL = Load(nodes=4, tasks=40)


def claim_named(key: str):  # type: ignore[no-untyped-def]
    return next(claim for claim in ldwp.paper(is_quick=True).claims if claim.key == key)


def test_every_figure_of_the_evaluation_is_there() -> None:
    sources = ", ".join(experiment.source for experiment in ldwp.paper(is_quick=False).experiments)
    for figure in ("Fig. 3", "Fig. 5, 6", "Fig. 7, 8", "Fig. 9, 10", "Fig. 11", "Fig. 12", "Fig. 13"):
        assert figure in sources


@pytest.mark.parametrize("method", [*BASELINES, IAWP])
def test_every_method_runs_and_what_it_uses_is_measured(method: str) -> None:
    played = run(SMALL, *METHODS[method], 0)
    assert played.values["throughput"] > played.values["throughput_first"] >= 0
    assert all(0 <= played.values[name] <= 1 for name in ("gpu", "gpu_first", "balance", "cpu"))
    assert run.__wrapped__(SMALL, *METHODS[method], 0).values == played.values
    assert run(SMALL, *METHODS[method], 1).values != played.values


def test_the_learned_choice_of_nodes_says_what_it_needs() -> None:
    with pytest.raises(NeedsBundleError, match="bundle"):
        run(SMALL, *METHODS[LDWP], 0)


def test_three_nodes_join_and_two_of_them_leave() -> None:
    faults = Load(nodes=8, add_min=20, remove_min=40).faults()
    assert [(f.kind, f.time_s) for f in faults] == [(FaultKind.ADD, 1200.0)] * 3 + [(FaultKind.REMOVE, 2400.0)] * 2
    joined = [f.node for f in faults[:3]]
    assert {f.node for f in faults[3:]} < set(joined)
    assert not set(joined) & {spec.id for spec in ldwp_cluster(8)}
    assert Load().faults() == []


def test_nodes_that_come_and_go_lose_no_task() -> None:
    load = Load(nodes=3, tasks=60, per_minute=30, add_min=0.5, remove_min=1.2)
    result = run(load, *METHODS["ect"], 0)
    assert result.values["throughput"] * result.values["makespan"] / 60 == pytest.approx(60)


@pytest.mark.parametrize("megabytes", [5, 10, 120, 400])
def test_a_data_set_is_cut_into_pieces_of_ten_megabytes(megabytes: float) -> None:
    tasks = dataset_tasks(megabytes)
    assert len(tasks) == max(1, megabytes / 10)
    assert sum(task.size for task in tasks) == pytest.approx(200 * megabytes)


def test_use_is_the_time_average_by_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = ldwp_cluster(1)[0]
    queue, log = NodeQueue(spec), UseLog(spec.id)
    uses = iter([(0.0, 0.0, 1.0, 0.0), (0.0, 0.0, 0.5, 0.0), (0.0, 0.0, 0.0, 0.0)])
    current = [(0.0, 0.0, 0.0, 0.0)]
    monkeypatch.setattr(NodeQueue, "utilisation", lambda self: current[0])
    for now_s in (0.0, 30.0, 90.0):
        current[0] = next(uses)
        log.observe(now_s, {spec.id: queue})
    log.observe(120.0, {spec.id: queue})
    assert [row[0] for row in log.minutes] == [pytest.approx(0.75), pytest.approx(0.25)]
    assert log.steady(2)[0] == pytest.approx(0.25)
    assert log.steady(2)[3] == pytest.approx(1.0)


def test_smoothing_keeps_constants_and_is_centred() -> None:
    assert smoothed([3.0] * 7) == [3.0] * 7
    assert smoothed([0, 0, 0, 0, 5, 0, 0, 0, 0]) == [0, 0, 1, 1, 1, 1, 1, 0, 0]


def test_recovery_counts_minutes_to_the_plateau() -> None:
    curve = [20.0] * 20 + [24, 28, 32, 36] + [40.0] * 16 + [40, 36] + [30.0] * 18
    found = ldwp.recovery(curve, 20, 40, 60)
    assert found == {"up": 3.0, "down": 2.0, "gain": pytest.approx(2.0), "loss": pytest.approx(0.75)}
    assert ldwp.recovery([10.0] * 60, 20, 40, 60) == {"up": 0.0, "down": 0.0, "gain": 1.0, "loss": 1.0}


def test_throughput_is_judged_on_the_mean_and_must_beat_each_baseline() -> None:
    def verdict(ours: list[float], best: list[float]) -> Verdict:
        results = Results()
        rows = {"random": [20.0, 22.0, 21.0], "pats": [30.0, 33.0, 31.0], "ect": best, IAWP: ours}
        for method, values in rows.items():
            for seed, value in enumerate(values):
                results.add(("rates", "60", method), seed, Outcome({"throughput": value}))
        return judged(claim_named("rate_60_iawp"), results).verdict

    assert verdict([48.0, 52.8, 50.0], [40.0, 44.0, 42.0]) is Verdict.REPRODUCED
    assert verdict([40.0, 44.0, 42.0], [40.0, 44.0, 42.0]) is Verdict.PARTLY
    assert verdict([20.0, 22.0, 21.0], [40.0, 44.0, 42.0]) is Verdict.NOT
