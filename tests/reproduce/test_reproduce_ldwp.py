"""LDWP's experiments: the figures of a run, recovery after cluster changes, and how claims are judged."""

import functools
import itertools
import re
from pathlib import Path

import pytest

from placewise_core.domain.job import Job, JobId, Subtask
from placewise_training.reproduce.claims import ClaimVerdict, judged
from placewise_training.reproduce.design import NeedsBundleError, TrialOutcome
from placewise_training.reproduce.harmony.runs import FIRST_SEED
from placewise_training.reproduce.ldwp import convergence as ldwp_convergence
from placewise_training.reproduce.ldwp import experiments as ldwp
from placewise_training.reproduce.ldwp import runs as ldwp_runs
from placewise_training.reproduce.ldwp.bound import most_per_min
from placewise_training.reproduce.ldwp.runs import (
    BASELINES,
    CONSOLIDATE,
    ECT,
    IAWP,
    LDWP,
    METHODS,
    OMITTED,
    ORACLE,
    TRUTH,
    WRITTEN,
    Load,
    UseLog,
    dataset_tasks,
    run,
    smoothed,
)
from placewise_training.reproduce.results import Results
from placewise_training.sim.faults import FaultKind
from placewise_training.sim.hardware import ldwp_cluster
from placewise_training.sim.pipelines.applications import APPLICATIONS, subtask_truths
from placewise_training.sim.pipelines.queues import NodeQueue
from placewise_training.sim.pipelines.units import EctUnits, UnitState
from placewise_training.sim.policies import opened

SMALL = Load(nodes=4, tasks=40)


def claim_named(key: str):  # type: ignore[no-untyped-def]
    return next(claim for claim in ldwp.paper(is_quick=True).claims if claim.key == key)


def test_every_figure_of_the_evaluation_is_there() -> None:
    sources = ", ".join(experiment.source for experiment in ldwp.paper(is_quick=False).experiments)
    for figure in ("Fig. 3", "Fig. 5, 6", "Fig. 7, 8", "Fig. 9, 10", "Fig. 11", "Fig. 12", "Fig. 13"):
        assert figure in sources


@pytest.mark.parametrize("method", [*BASELINES, *OMITTED, ORACLE, IAWP, LDWP])
def test_every_method_runs_and_what_it_uses_is_measured(method: str) -> None:
    played = run(SMALL, *METHODS[method], 0)
    assert played.values["throughput"] > played.values["throughput_first"] >= 0
    assert all(0 <= played.values[name] <= 1 for name in ("gpu", "gpu_first", "balance", "cpu"))
    assert run.__wrapped__(SMALL, *METHODS[method], 0).values == played.values
    assert run(SMALL, *METHODS[method], 1).values != played.values


def test_the_learned_choice_of_nodes_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ldwp_runs, "shipped", lambda: opened(tmp_path))
    monkeypatch.setattr(ldwp_runs, "_net", ldwp_runs._net.__wrapped__)
    with pytest.raises(NeedsBundleError, match="bundle"):
        run.__wrapped__(SMALL, *METHODS[LDWP], 0)


def test_the_papers_dqn_is_pretrained_once_and_every_run_learns_on_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ldwp_runs, "_LOGGED", 30)
    monkeypatch.setattr(ldwp_runs, "_pretrained", functools.cache(ldwp_runs._pretrained.__wrapped__))
    first = run.__wrapped__(SMALL, *METHODS[WRITTEN], 0)
    assert first.values["throughput"] > 0
    assert run.__wrapped__(SMALL, *METHODS[WRITTEN], 0).values == first.values


def test_iterations_are_counted_to_the_better_plateau(monkeypatch: pytest.MonkeyPatch) -> None:
    curves = {True: (5.0, 9.0, 10.0, 10.0, 10.0, 10.0), False: (1.0, 2.0, 4.0, 6.0, 8.0, 8.0)}
    monkeypatch.setattr(ldwp_convergence, "_smoothed", lambda seed, tasks, *, is_pretrained: curves[is_pretrained])
    assert ldwp_convergence.iterations(True, 0, 105)[0] == 101.0
    assert ldwp_convergence.iterations(False, 0, 105)[0] == 105.0


def test_nothing_exceeds_the_bound_and_more_nodes_raise_it() -> None:
    load = Load(nodes=4, tasks=60, per_minute=60.0)
    bound = most_per_min(ldwp_cluster(4), load.generate(FIRST_SEED))
    for method in (ECT, IAWP):
        assert run(load, *METHODS[method], 0).values["throughput"] <= 1.05 * bound  # the bound leaves out noise
    assert most_per_min(ldwp_cluster(8), load.generate(FIRST_SEED)) >= bound


def test_one_task_alone_is_bound_by_its_critical_path() -> None:
    (task,) = dataset_tasks(10)
    kinds = subtask_truths(TRUTH)
    stages = [[kinds[name] for name in stage] for stage in APPLICATIONS["video_synopsis"]]
    seconds = 2000 * sum(max(k.core_s / (k.speedup or 1.0) for k in stage) for stage in stages)
    assert most_per_min(ldwp_cluster(1), [task]) == pytest.approx(60.0 / seconds)


def test_ect_counts_what_waits_before_a_subtask() -> None:
    """Eight equal subtasks, two idle GPUs four times as fast as a core: the fourth on a GPU is as late as on a core."""
    subtasks = tuple(
        Subtask(f"s{i}", "k", has_gpu_version=True, profile={"speedup": 4.0}, size=100.0) for i in range(8)
    )
    units = [UnitState(f"cpu{i}", is_gpu=False, running=0, free_in_s=0.0) for i in range(4)]
    units += [UnitState(f"gpu{i}", is_gpu=True, running=0, free_in_s=0.0) for i in range(2)]
    made = EctUnits().assign([Job(JobId("j"), subtasks=subtasks)], "n", None, units, 0.0)  # type: ignore[arg-type]
    assert [unit for _, _, unit in made] == ["gpu0", "gpu1", "cpu0", "cpu1"]


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
    assert found == {"minutes_up": 3.0, "minutes_down": 2.0, "gain": pytest.approx(2.0), "loss": pytest.approx(0.75)}
    assert ldwp.recovery([10.0] * 60, 20, 40, 60) == {"minutes_up": 0.0, "minutes_down": 0.0, "gain": 1.0, "loss": 1.0}
    relapsed = [20.0] * 20 + [40.0] * 10 + [30.0] + [40.0] * 29
    assert ldwp.recovery(relapsed, 20, 40, 60)["minutes_up"] == 11.0, "the last minute off the plateau counts"


def loads_of(ours: list[float], best: list[float], loads: tuple[str, ...] = ("0.5", "2")) -> Results:
    """Throughputs by seed, the same at every load; `best` is ECT's."""
    results = Results()
    rows = {"random": [20.0, 22.0, 21.0], "pats": [30.0, 33.0, 31.0], ECT: best, CONSOLIDATE: best, ORACLE: best}
    for method, values in {**rows, WRITTEN: ours, LDWP: [value / 10 for value in ours]}.items():
        for load in loads:
            for seed, value in enumerate(values):
                outcome = TrialOutcome({"rate 10": value, "rate 60": value, "nodes 10": value})
                results.add(("loads", load, method), seed, outcome)
    return results


def test_a_gain_is_reproduced_if_the_lower_end_of_its_mean_reaches_the_claim() -> None:
    def verdict(ours: list[float], best: list[float]) -> ClaimVerdict:
        return judged(claim_named("rate_60"), loads_of(ours, best)).verdict

    assert verdict([48.0, 52.8, 50.0], [40.0, 44.0, 42.0]) is ClaimVerdict.REPRODUCED
    assert verdict([50.0, 80.0, 30.0], [40.0, 44.0, 42.0]) is ClaimVerdict.NOT, "a mean of +80 % and no certainty"
    assert verdict([38.0, 41.0, 39.5], [30.0, 33.0, 31.5]) is ClaimVerdict.REPRODUCED
    assert verdict([32.0, 36.0, 40.0], [30.0, 33.0, 31.5]) is ClaimVerdict.PARTLY, (
        "the mean reaches it, its end does not"
    )
    assert verdict([40.0, 44.0, 42.0], [40.0, 44.0, 42.0]) is ClaimVerdict.PARTLY, "no better than ect"
    assert verdict([20.0, 22.0, 21.0], [40.0, 44.0, 42.0]) is ClaimVerdict.NOT


def test_every_claim_is_judged_as_printed_and_as_shipped() -> None:
    claims = {claim.key: claim for claim in ldwp.paper(is_quick=False).claims}
    printed = [claim for claim in claims.values() if not claim.is_beyond]
    assert len(printed) == 12
    assert all(claim.text.startswith("As printed: ") for claim in printed)
    for claim in printed:
        if claim.key == "pretraining":
            continue  # what we ship is not pre-trained
        assert claims[f"{claim.key}_shipped"].text.startswith("As shipped: ")
    results = loads_of([48.0, 52.8, 50.0], [40.0, 44.0, 42.0])
    assert judged(claims["average"], results).verdict is ClaimVerdict.REPRODUCED
    assert judged(claims["average_shipped"], results).verdict is ClaimVerdict.NOT


def test_alike_names_the_margin_over_each_baseline_consolidation_and_the_oracle() -> None:
    results = Results()
    done = {**dict.fromkeys(BASELINES, 8.0), CONSOLIDATE: 10.0, ORACLE: 12.5, LDWP: 10.0}
    for method, throughput in done.items():
        for seed in range(3):
            results.add(("rates", "10", method), seed, TrialOutcome({"throughput": throughput}))
    why = judged(claim_named("similar_shipped"), results).why
    assert all(f"+25.0 ± 0 % vs {method}" in why for method in BASELINES)
    assert "+0.0 ± 0 % vs consolidate, -20.0 ± 0 % vs oracle" in why


def test_what_is_judged_at_one_load_says_so() -> None:
    """Only the gains are means over the loads."""
    made = ldwp.paper(is_quick=False)
    results = Results()
    for experiment in made.experiments:
        names = [metric.name for metric in experiment.metrics]
        for (setting, method), seed in itertools.product(experiment.trials(), range(2)):
            results.add((experiment.key, setting, method), seed, TrialOutcome(dict.fromkeys(names, 1.0)))
    why = {claim.key: judged(claim, results).why for claim in made.claims}
    gains = {"average", "nodes_10", "rate_60", "first_6", "first_60"}
    for key in ("gpu", "gpu_first", "balance", "speedup", "recovery", "similar"):
        for form in (key, f"{key}_shipped"):
            assert "At load 1 alone: of the paper's claims only the five gains" in why[form]
    for key in ("anywhere", "plain", "bound", "learned", "units"):
        assert re.search(r"[Aa]t load 1\b", why[key]), key
    for key in gains:
        assert re.search(r"By load 0\.5: .*, 2: ", why[key])


def test_a_gain_is_the_mean_over_all_loads_and_names_each() -> None:
    results = loads_of([48.0, 52.8, 50.0], [40.0, 44.0, 42.0])
    for method, outcomes in ((m, results.runs["loads", "2", m]) for m in (WRITTEN,)):
        for seed, outcome in outcomes.items():
            results.runs["loads", "2", method][seed] = TrialOutcome(dict.fromkeys(outcome.values, 0.1))
    found = judged(claim_named("average"), results)
    assert found.verdict is ClaimVerdict.NOT
    assert "vs random" in found.ours
    assert "vs ect" in found.ours
    assert "vs pats" in found.ours
    assert all(name in found.why for name in (f"vs {CONSOLIDATE}", f"vs {ORACLE}", "0.5: ", "2: -99"))


def test_loads_are_those_of_the_criterion_and_one_of_them_is_the_figures_own() -> None:
    experiments = {e.key: e for e in ldwp.paper(is_quick=False).experiments}
    for key in ("loads", "loads_first"):
        assert experiments[key].settings == ("0.5", "0.67", "1", "1.5", "2")
    assert {m.name for m in experiments["loads"].metrics} == {
        *(f"rate {rate}" for rate in (10, 20, 30, 40, 50, 60)),
        "nodes 6",
        "nodes 10",
    }


def test_load_one_is_the_load_of_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Load] = []

    def played(load: Load, method: str, seed: int) -> ldwp.Played:
        asked.append(load)
        return ldwp.Played({"throughput": 1.0, "throughput_first": 1.0}, {})

    monkeypatch.setattr(ldwp, "_played", played)
    experiments = {e.key: e for e in ldwp.paper(is_quick=False).experiments}
    experiments["loads"].trial("1", ECT, 0)
    at_one = set(asked)
    assert Load(per_minute=60.0) in at_one
    assert Load(nodes=10) in at_one
    asked.clear()
    experiments["loads"].trial("2", ECT, 0)
    assert {load.scale for load in asked} == {2.0}


def test_nothing_beats_the_bound_at_any_load() -> None:
    trial = next(e for e in ldwp.paper(is_quick=True).experiments if e.key == "loads").trial
    bound, ours = (trial("0.67", method, 0).values for method in ("perfect (bound)", ECT))
    assert bound.keys() == ours.keys()
    assert all(ours[name] <= 1.05 * bound[name] for name in bound)
