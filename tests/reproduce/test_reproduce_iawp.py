"""IAWP's experiments on one server: methods, knowledge of subtasks, and how claims are judged."""

import itertools
from pathlib import Path

import pytest

from placewise_core.domain.job import Subtask
from placewise_core.subtasks.metrics import METRICS, SPEEDUP
from placewise_training.reproduce.claims import ClaimVerdict, Judgement, judged
from placewise_training.reproduce.design import Experiment, NeedsBundleError, TrialOutcome
from placewise_training.reproduce.iawp import claims as iawp_claims
from placewise_training.reproduce.iawp import experiments as iawp
from placewise_training.reproduce.iawp import metrics as iawp_metrics
from placewise_training.reproduce.iawp.claims import (
    COMPLETED,
    DAMAGED,
    IAWP,
    NO_METRICS,
    SPEEDUPS_ONLY,
    TWO_METRICS,
    WRITTEN,
    WRITTEN_NCF,
)
from placewise_training.reproduce.ldwp.runs import BASELINES, KINDS, ORACLE, kind, profiled, saturating
from placewise_training.reproduce.results import Results
from placewise_training.sim.pipelines.applications import subtask_truths
from placewise_training.sim.policies import opened


def experiment(key: str) -> Experiment:
    return next(e for e in iawp.paper(is_quick=True).experiments if e.key == key)


def test_the_four_kinds_of_server_are_those_of_table_4() -> None:
    found = {(len(kind(name)[0].node.gpus), kind(name)[0].node.capacity.memory_gib) for name in KINDS}
    assert found == {(2, 32), (4, 32), (4, 16), (2, 8)}
    for name in KINDS:
        count, model = name.split(" × ")
        assert (len(kind(name)[0].node.gpus), kind(name)[0].gpu_model) == (int(count), model)


def test_metrics_are_taken_from_requests_and_nothing_else() -> None:
    tasks = saturating("mixed", 5, 0)
    stripped = profiled(tasks, lambda name: name == SPEEDUP)
    for before, after in zip(tasks, stripped, strict=True):
        assert (before.size, before.submit_time_s) == (after.size, after.submit_time_s)
        for subtask, left in zip(before.job.subtasks, after.job.subtasks, strict=True):
            assert set(left.profile) == set(subtask.profile) & {SPEEDUP}
            assert (left.kind, left.after, left.has_gpu_version) == (
                subtask.kind,
                subtask.after,
                subtask.has_gpu_version,
            )


def test_another_sites_metrics_differ_but_the_tasks_do_not() -> None:
    here, there = saturating("mixed", 5, 0), saturating("mixed", 5, 0, "train")
    assert [(t.application, t.size, t.submit_time_s) for t in here] == [
        (t.application, t.size, t.submit_time_s) for t in there
    ]
    assert here[0].job.subtasks[0].profile != there[0].job.subtasks[0].profile


def test_on_a_saturated_server_algorithm_2_beats_random() -> None:
    kinds = experiment("kinds")
    outcomes = {method: kinds.trial("4 × K80", method, 0).values for method in (*BASELINES, IAWP)}
    assert outcomes["random"]["speedup"] == 1.0
    assert outcomes[IAWP]["speedup"] > 1.5
    assert outcomes[IAWP]["sm"] / outcomes[IAWP]["gpu"] > outcomes["ect"]["sm"] / outcomes["ect"]["gpu"]  # it shares
    for values in outcomes.values():
        assert all(0 <= values[name] <= 1 for name in ("gpu", "sm", "cpu"))


def test_the_oracle_of_units_is_above_every_baseline_and_takes_part_wherever_methods_are_compared() -> None:
    for key in ("kinds", "use", "applications", "speedup"):
        assert ORACLE in experiment(key).methods
    kinds = experiment("kinds")
    done = {method: kinds.trial("2 × K80", method, 0).values["throughput"] for method in (*BASELINES, ORACLE)}
    assert all(done[ORACLE] > done[method] for method in BASELINES)


def test_speedups_stand_beside_ect_consolidation_and_the_oracle() -> None:
    claims = {claim.key: claim for claim in iawp.paper(is_quick=True).claims}
    results = Results()
    for method, speedup in {"random": 1.0, "ect": 2.0, "pats": 1.5, "consolidate": 1.8, ORACLE: 2.5, IAWP: 2.0}.items():
        for size, seed in itertools.product(("10", "400"), range(3)):
            results.add(("speedup", size, method), seed, TrialOutcome({"speedup": speedup}))
    for key in ("speedup_shipped", "size_shipped"):
        why = judged(claims[key], results).why
        assert "At 400 MB ect 2 ± 0 ×, pats 1.5 ± 0 ×, consolidate 1.8 ± 0 ×, oracle 2.5 ± 0 ×; " in why
        assert (
            "iawp is +100.0 ± 0 % vs random, +0.0 ± 0 % vs ect, +33.3 ± 0 % vs pats, +11.1 ± 0 % vs consolidate" in why
        )
        assert "-20.0 ± 0 % vs oracle" in why


@pytest.mark.parametrize("method", [SPEEDUPS_ONLY, TWO_METRICS, NO_METRICS, DAMAGED, COMPLETED])
def test_holes_in_the_matrix_stop_nothing(method: str) -> None:
    assert experiment("metrics").trial("2 × K80", method, 0).values["throughput"] > 0


def test_the_completion_of_metrics_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iawp_metrics, "shipped", lambda: opened(tmp_path))
    with pytest.raises(NeedsBundleError, match="bundle"):
        iawp_metrics.by_completion.__wrapped__()


def test_the_papers_ncf_fills_every_metric_of_every_kind() -> None:
    metrics = iawp_metrics.by_ncf.__wrapped__(("sm", "dram"), steps=5)
    truths = {name: truth for name, truth in subtask_truths("judge").items() if truth.has_gpu_version}
    for name, truth in truths.items():
        row = metrics.of(Subtask(name, name, has_gpu_version=True))
        assert set(row) == set(METRICS)
        assert row["sm"] == pytest.approx(truth.profile()["sm"])
    assert metrics.of(Subtask("x", "stitching")) == {}


def test_as_the_paper_runs_it_two_random_metrics_of_each_kind_are_profiled_and_nothing_else() -> None:
    """Algorithm 2 on them, not the service's policy; the drawn metrics are other ones for another seed."""
    metrics = [iawp_metrics.by_random_ncf.__wrapped__(seed, steps=5) for seed in (0, 1)]
    truths = {name: truth.profile() for name, truth in subtask_truths("judge").items() if truth.has_gpu_version}
    drawn = []
    for found in metrics:
        rows = {name: found.of(Subtask(name, name, has_gpu_version=True)) for name in truths}
        assert all(set(row) == set(METRICS) for row in rows.values())
        near = {
            name: {metric for metric in METRICS if row[metric] == pytest.approx(truths[name][metric], rel=0.35)}
            for name, row in rows.items()
        }
        assert all(len(metrics) >= 2 for metrics in near.values())
        drawn.append(rows)
    assert drawn[0] != drawn[1]
    assert experiment("metrics").trial("2 × K80", WRITTEN_NCF, 0).values["throughput"] > 0


def test_two_metrics_are_judged_as_printed_and_as_shipped() -> None:
    """Each against full metrics under the same policy."""
    claims = {claim.key: claim for claim in iawp.paper(is_quick=True).claims}
    results = Results()
    for method, throughput in ((WRITTEN, 1.0), (WRITTEN_NCF, 0.99), (IAWP, 2.0), (COMPLETED, 1.0)):
        for setting in ("2 × K80", "4 × K80"):
            for seed in range(3):
                results.add(("metrics", setting, method), seed, TrialOutcome({"throughput": throughput}))
    assert judged(claims["two_metrics"], results).verdict is ClaimVerdict.REPRODUCED
    assert claims["two_metrics"].text.startswith("As printed: ")
    assert judged(claims["two_metrics_shipped"], results).verdict is ClaimVerdict.NOT
    assert claims["two_metrics_shipped"].is_beyond


def test_sharing_is_judged_on_eight_against_one() -> None:
    claim = next(c for c in iawp.paper(is_quick=True).claims if c.key == "sharing")

    def verdict(wide: list[float]) -> ClaimVerdict:
        results = Results()
        for setting, values in (("1", [10.0, 11.0, 12.0]), ("8", wide)):
            for method in (IAWP, WRITTEN):
                for seed, value in enumerate(values):
                    results.add(("width", setting, method), seed, TrialOutcome({"throughput": value}))
        return judged(claim, results).verdict

    assert verdict([12.0, 13.2, 14.4]) is ClaimVerdict.REPRODUCED
    assert verdict([10.0, 11.0, 12.0]) is ClaimVerdict.NOT


def test_profiling_is_judged_on_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    claim = next(c for c in iawp.paper(is_quick=True).claims if c.key == "profiling")

    def right(*pairs: tuple[float, float]) -> Judgement:
        monkeypatch.setattr(iawp_claims, "short_profiles", lambda: {("loop", "cpu"): pairs})
        return judged(claim, Results())

    assert right((0.95, 1.0), (1.05, 1.0)).verdict is ClaimVerdict.PARTLY  # 95 %, but not of the paper's counters
    assert right((0.5, 1.0), (1.0, 1.0)).verdict is ClaimVerdict.NOT
    assert right((0.5, 1.0), (1.0, 1.0)).ours.startswith("75.0 %")


def test_a_busy_gpu_counts_only_above_each_baseline() -> None:
    """More multiprocessors in use is another claim."""
    results = Results()
    for seed in range(3):
        for method in (iawp_claims.IAWP, *BASELINES, iawp_claims.OMITTED[0]):
            is_ours = method == iawp_claims.IAWP
            results.add(("use", "2 × K80", method), seed, TrialOutcome({"gpu": 1.0, "sm": 1.0 if is_ours else 0.5}))
            results.add(("kinds", "2 × K80", method), seed, TrialOutcome({"throughput": 2.0 if is_ours else 1.0}))
    assert iawp_claims._gpu(iawp_claims.IAWP)(results).verdict is ClaimVerdict.NOT


def test_claims_of_speed_are_judged_as_printed_and_as_shipped() -> None:
    claims = {claim.key: claim for claim in iawp.paper(is_quick=True).claims}
    results = Results()
    for method, throughput in ((iawp_claims.IAWP, 2.0), (iawp_claims.WRITTEN, 0.5), (iawp_claims.OMITTED[0], 1.0)):
        for size, speedup in (("10", 6.0), ("400", 9.0)):
            for seed in range(3):
                results.add(("speedup", size, method), seed, TrialOutcome({"speedup": throughput * speedup}))
    assert judged(claims["speedup"], results).verdict is ClaimVerdict.PARTLY
    assert judged(claims["speedup_shipped"], results).verdict is ClaimVerdict.REPRODUCED
    assert claims["pretraining"].text.startswith("As printed: ")
    for key in ("gpu", "speedup", "size"):
        assert claims[key].text.startswith("As printed: ")
        assert claims[f"{key}_shipped"].is_beyond


def test_figure_4_is_the_loss_over_iterations_with_pretraining_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    found = next(e for e in iawp.paper(is_quick=True).experiments if e.key == "convergence")
    assert (found.source, found.methods) == ("Fig. 4", ("with pre-training", "without pre-training"))
    method = found.methods[1]
    iterations, losses = found.trial("3000 tasks", method, 0).curves[method]
    assert list(iterations) == list(range(len(losses)))
    assert losses[-1] < 0.1 * losses[0]
    asked: list[bool] = []

    def reported(seed: int, *, is_pretrained: bool) -> list[float]:
        asked.append(is_pretrained)
        return [float(i) for i in range(300)]

    monkeypatch.setattr(iawp, "ncf_losses", reported)
    assert [found.trial("3000 tasks", m, 0).values["loss"] for m in found.methods] == [100.0, 100.0]
    assert asked == [True, False]
