"""Harmony's experiments: paired runs, the oracle, the case studies, and how claims are judged."""

import numpy as np
import pytest

from placewise_core.place.policy import PlaceContext
from placewise_training.reproduce import harmony, harmony_predictions, harmony_runs
from placewise_training.reproduce.claims import Verdict, judged
from placewise_training.reproduce.design import NeedsBundleError, Outcome
from placewise_training.reproduce.harmony_interference import pair_trial, slowdowns
from placewise_training.reproduce.harmony_oracle import OracleSearch
from placewise_training.reproduce.harmony_predictions import (
    ALL,
    NEIGHBOURS,
    NEW,
    PREDICTORS,
    REWARD_MODEL,
    prediction_trial,
    speed_samples,
)
from placewise_training.reproduce.harmony_runs import (
    CONSOLIDATE,
    HARMONY,
    ORACLE,
    PAPER_BASELINES,
    SEARCH,
    SHORTEST,
    Scenario,
    policy_of,
    run,
    shipped_reward_model,
)
from placewise_training.reproduce.results import Results
from placewise_training.sim.discipline import Discipline
from placewise_training.sim.engine import SimOptions, Simulation
from placewise_training.sim.hardware import harmony_cluster
from placewise_training.sim.truths import make_truth
from placewise_training.sim.workloads import HARMONY_MODELS

SMALL = Scenario(jobs=30)


def claim_named(key: str):  # type: ignore[no-untyped-def]
    return next(claim for claim in harmony.paper(is_quick=True).claims if claim.key == key)


def results_of(jct: dict[str, list[float]], experiment: str = "fig10") -> Results:
    """Equal numbers in every pattern, one per seed."""
    settings = next(e for e in harmony.paper(is_quick=True).experiments if e.key == experiment).settings
    results = Results()
    for setting in settings:
        for method, values in jct.items():
            for seed, value in enumerate(values):
                results.add((experiment, setting, method), seed, Outcome({"jct": value}))
    return results


def test_every_figure_and_table_of_the_evaluation_is_there() -> None:
    sources = {experiment.source for experiment in harmony.paper(is_quick=False).experiments}
    assert {f"Fig. {n}" for n in (10, 11, 12, 13, 14, 15)} | {"Table II"} <= sources


def test_every_method_finishes_the_same_jobs_and_equal_seeds_give_equal_numbers() -> None:
    found = {method: run(SMALL, method, 0) for method in (*PAPER_BASELINES, CONSOLIDATE, SHORTEST, ORACLE)}
    assert all(values["jct"] > 0 for values in found.values())
    assert len({round(values["jct"], 6) for values in found.values()}) > 1
    assert run.__wrapped__(SMALL, "tetris", 0) == found["tetris"]
    assert run(SMALL, "tetris", 1) != found["tetris"]


def test_the_oracle_beats_what_it_searches_among() -> None:
    seeds = range(3)
    oracle = np.mean([run(SMALL, ORACLE, s)["jct"] for s in seeds])
    assert all(oracle < np.mean([run(SMALL, method, s)["jct"] for s in seeds]) for method in PAPER_BASELINES)


def test_the_oracle_changes_nothing_and_takes_its_cheapest_candidate() -> None:
    truth = make_truth("judge", 0)
    jobs = Scenario(jobs=12, per_interval=6).workload().generate(truth, 0)
    oracle = OracleSearch()
    simulation = Simulation(
        harmony_cluster(), jobs, truth, oracle, options=SimOptions(discipline=Discipline(every_s=1e6)), seed=0
    )
    oracle.attach(simulation)
    simulation.run_until(9e5)
    for job in jobs[:4]:
        before = simulation.view.free.copy()
        context = PlaceContext(simulation.now_s, np.random.default_rng(1))
        proposal = oracle.propose(job.job, simulation.view, context)
        assert proposal is not None
        assert np.array_equal(simulation.view.free, before)
        heuristic = policy_of("load-balance").propose(job.job, simulation.view, context)
        assert heuristic is not None
        chosen, other = (simulation.what_if(job, p.assignments)[job.id][1] for p in (proposal, heuristic))
        if not simulation.running:
            assert chosen >= other
        simulation.start(job, proposal.assignments)
    assert len(simulation.running) == 4


def test_the_oracle_needs_a_simulation() -> None:
    truth = make_truth("judge", 0)
    job = SMALL.workload().generate(truth, 0)[0].job
    simulation = Simulation(harmony_cluster(), [], truth, None)
    with pytest.raises(RuntimeError, match="not attached"):
        OracleSearch().propose(job, simulation.view, PlaceContext(0.0, 0))


def test_the_learned_policy_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NeedsBundleError, match="bundle"):
        run(SMALL, HARMONY, 0)
    monkeypatch.setattr(harmony_runs, "shipped_reward_model", lambda: None)
    monkeypatch.setattr(harmony_predictions, "shipped_reward_model", lambda: None)
    with pytest.raises(NeedsBundleError, match="bundle"):
        policy_of(SEARCH)
    with pytest.raises(NeedsBundleError, match="bundle"):
        prediction_trial(ALL, REWARD_MODEL, 0, 30)


def test_the_search_by_the_shipped_reward_model_runs() -> None:
    if shipped_reward_model() is None:
        pytest.skip("the shipped bundle holds no reward model")
    assert run(SMALL, SEARCH, 0)["jct"] > 0


def test_alone_nothing_is_lost_and_pairs_lose_the_same_either_way_round() -> None:
    truth = make_truth("judge", 0)
    for model in HARMONY_MODELS:
        assert slowdowns([model], truth) == [pytest.approx(0.0)]
    assert all(0 <= lost < 1 for lost in slowdowns(("ctc", "ctc"), truth))
    there, back = pair_trial("ctc", "vgg16", 0), pair_trial("vgg16", "ctc", 0)
    assert there.values["level"] == pytest.approx(back.values["level"])


@pytest.mark.parametrize("method", PREDICTORS)
def test_predictions_are_judged_over_all_or_some(method: str) -> None:
    if method == REWARD_MODEL and shipped_reward_model() is None:
        pytest.skip("the shipped bundle holds no reward model")
    for setting in (ALL, NEW, NEIGHBOURS, "ctc"):
        values = prediction_trial(setting, method, 0, 40).values
        assert 0 < values["error"] < 2
        assert 0 <= values["within"] <= 1


def test_a_job_without_neighbours_has_the_speed_of_its_placement_but_for_noise() -> None:
    lonely = [s for s in speed_samples(40, 0) if all(cpu == 0 for cpu, _ in s.use)]
    assert lonely
    assert all(0.7 < s.speed / s.alone < 1.4 for s in lonely)


def test_headroom_is_judged_against_the_worst_of_all_baselines() -> None:
    jct = {method: [10.0, 12.0, 11.0] for method in (*PAPER_BASELINES, CONSOLIDATE)}
    assert judged(claim_named("headroom"), results_of({**jct, ORACLE: [8.0, 9.6, 8.8]})).verdict is Verdict.REPRODUCED
    tight = {**jct, CONSOLIDATE: [9.0, 10.8, 9.9], ORACLE: [8.0, 9.6, 8.8]}
    assert judged(claim_named("headroom"), results_of(tight)).verdict is Verdict.PARTLY
    assert judged(claim_named("headroom"), results_of({**jct, ORACLE: [10.0, 12.0, 11.0]})).verdict is Verdict.NOT


def test_a_claim_about_the_learned_policy_waits_for_its_bundle() -> None:
    results = results_of({method: [10.0] for method in PAPER_BASELINES})
    results.missing["fig10", "uniform, 3 per interval", HARMONY] = "needs a bundle"
    assert judged(claim_named("jct_6"), results).verdict is Verdict.NEEDS_BUNDLE
