"""Additions of the reproductions to the served policies: splitters, the composed admission, the believed truth, the
log."""

from dataclasses import replace

import numpy as np
import pytest
from tests.fakes.proteus_queue import bundled

from placewise_core.admit.policy import AdmissionPolicy, AdmitContext
from placewise_core.domain.cluster import QueueSettings, QueueState
from placewise_core.domain.decision import Outcome as Decided
from placewise_core.domain.decision import PartitionPlan, Verdict
from placewise_core.domain.divisible import DivisibleTask
from placewise_core.domain.events import ClusterRecords
from placewise_core.domain.job import Job, JobId, Priority
from placewise_core.partition.policy import PartitionContext
from placewise_core.view.view import ClusterView
from placewise_training.reproduce.claims import ClaimVerdict, judged
from placewise_training.reproduce.design import TrialOutcome
from placewise_training.reproduce.elastic import proteus, qos
from placewise_training.reproduce.elastic.believed import BelievedSpeed
from placewise_training.reproduce.elastic.measured_costs import ALPHA_NETWORKS, alpha_figure, computed_millions
from placewise_training.reproduce.elastic.trials import Trialled, run_elastic
from placewise_training.reproduce.heat import experiments as heat
from placewise_training.reproduce.heat.lab import EQUAL, METHODS, ONE_NODE, Lab
from placewise_training.reproduce.heat.splitters import (
    Forced,
    OneAtATime,
    OneNode,
    Patient,
    Reactive,
    TrueShares,
    served_policy,
)
from placewise_training.reproduce.results import Results
from placewise_training.sim.divisible import DivisibleWorkload, EqualSplit, HeatSimulation, Splitter, heat_cluster
from placewise_training.sim.hardware import qos_cluster
from placewise_training.sim.policies import admission_policy
from placewise_training.sim.truths import make_truth
from placewise_training.sim.workloads import PROTEUS_MODELS, ElasticWorkload


def policy(name: str) -> AdmissionPolicy:
    made = admission_policy(name)
    assert made is not None
    return made


def heat_simulation(splitter: Splitter, tasks: int = 30) -> HeatSimulation:
    return HeatSimulation(heat_cluster(), DivisibleWorkload(tasks=tasks).generate(1), splitter, seed=1)


# -- splitters ----------------------------------------------------------------------------------------------------


def test_one_at_a_time_never_starts_a_task_beside_another() -> None:
    simulation = heat_simulation(OneAtATime(EqualSplit()))
    started: list[int] = []
    begin = simulation._start

    def watched(arrived_s: float, task: DivisibleTask, plan: object) -> None:
        started.append(sum(simulation.view.usage.tasks_on(m) for m in range(7)))
        begin(arrived_s, task, plan)  # type: ignore[arg-type]

    simulation._start = watched  # type: ignore[method-assign]
    assert simulation.run().finished == 30
    assert started == [0] * 30


def test_true_shares_end_together() -> None:
    nodes = heat_cluster()
    view = heat_simulation(EqualSplit()).view
    plan = TrueShares(nodes).partition(DivisibleTask("t", 70.0), view, PartitionContext(0.0))
    by_id = {node.spec.id: node for node in nodes}
    ends = {share.scale / by_id[str(share.node)].rate(share.unit) for share in plan.shares}
    assert len(plan.shares) == 2 * len(nodes)
    assert sum(share.scale for share in plan.shares) == pytest.approx(70.0)
    assert max(ends) == pytest.approx(min(ends))


def test_forced_counts_are_one_and_all() -> None:
    view = heat_simulation(EqualSplit()).view
    task = DivisibleTask("t", 20.0, 0.0, overhead_s=4.0)
    counts = [
        len(Forced(served_policy(), is_alone=alone).partition(task, view, PartitionContext(0.0)).shares)
        for alone in (True, False)
    ]
    assert counts == [1, 14]


def test_one_node_works_with_both_of_its_units() -> None:
    view = heat_simulation(EqualSplit()).view
    plan = OneNode(served_policy()).partition(DivisibleTask("t", 20.0), view, PartitionContext(0.0))
    assert [(share.node, share.unit) for share in plan.shares] == [("C1", "gpu0"), ("C1", "cpu")]


def test_the_thermostat_leaves_out_only_what_is_at_its_limit_and_restores_the_view() -> None:
    simulation = heat_simulation(EqualSplit())
    simulation._sample()
    view = simulation.view
    view.nodes.telemetry[7:9, 0] = view.nodes.telemetry[9, 0] + 1.0
    before = view.nodes.telemetry.copy()
    plan = Reactive(served_policy()).partition(DivisibleTask("t", 500.0, 0.0, 1.0), view, PartitionContext(0.0))
    assert {str(share.node) for share in plan.shares} == {"C2", "C3", "C4", "C5", "C6", "C7"}
    np.testing.assert_array_equal(view.nodes.telemetry, before)


def test_a_task_that_never_fits_ends_the_run_with_its_name() -> None:
    class Never:
        def partition(self, task: DivisibleTask, view: ClusterView, context: PartitionContext) -> object:
            return replace(EqualSplit().partition(task, view, context), outcome=Decided.WAIT, shares=())

    with pytest.raises(RuntimeError, match="task d0 of scale"):
        heat_simulation(Patient(Never())).run()  # type: ignore[arg-type]


def test_the_smallest_of_the_waiting_tasks_goes_first() -> None:
    tasks = [(1.0, DivisibleTask(name, scale)) for name, scale in (("a", 100.0), ("b", 90.0), ("c", 10.0))]
    ends: dict[bool, float] = {}
    for is_shortest_first in (False, True):
        simulation = HeatSimulation(
            heat_cluster(), tasks, OneAtATime(EqualSplit()), is_shortest_first=is_shortest_first, seed=1
        )
        ends[is_shortest_first] = simulation.run().avg_completion_s
    assert ends[True] < ends[False]


def test_consolidated_tasks_run_whole_beside_each_other() -> None:
    lab = Lab()
    simulation = HeatSimulation(lab.nodes(), lab.tasks(20, 0), METHODS[ONE_NODE](lab.nodes()), seed=0)
    shares: list[int] = []
    begin = simulation._start

    def watched(arrived_s: float, task: DivisibleTask, plan: PartitionPlan) -> None:
        shares.append(len({share.node for share in plan.shares}))
        begin(arrived_s, task, plan)

    simulation._start = watched  # type: ignore[method-assign]
    assert simulation.run().finished == len(shares) == 23
    assert set(shares) == {1}


# -- admission ----------------------------------------------------------------------------------------------------


def run(admission: AdmissionPolicy, seed: int = 0) -> Trialled:
    truth = make_truth("judge", seed)
    jobs = ElasticWorkload(jobs=30, per_hour=20.0).generate(truth, seed)
    settings = QueueSettings(slot_s=60.0, epsilon_s=360.0)
    return run_elastic(qos_cluster(), jobs, truth, admission, "consolidate", seed, slot_s=60.0, queue_settings=settings)


def test_the_composition_starts_every_job_and_narrower_than_proteus_as_printed() -> None:
    both = run(policy("proteus-qos"))
    alone = run(policy("proteus-paper"))
    assert both.result.metrics.unfinished == alone.result.metrics.unfinished == 0
    assert both.log.mean("gpus") < alone.log.mean("gpus")


def test_the_composition_meets_more_expectations_than_proteus_alone() -> None:
    both, alone = run(policy("proteus-qos")), run(policy("proteus"))
    assert both.result.metrics.qos_rate > alone.result.metrics.qos_rate


def test_the_log_agrees_with_the_metrics_of_the_simulation() -> None:
    made = run(policy("qos"))
    metrics = made.result.metrics
    assert made.log.mean("service") + made.log.mean("queueing") == pytest.approx(metrics.avg_jct_s)
    assert made.log.mean("queueing") == pytest.approx(metrics.avg_queueing_s)
    hours, share = made.log.completions()
    assert share[-1] == 1.0
    assert hours == sorted(hours)
    assert made.decide_s > 0


def test_backlog_is_the_time_average_of_waiting_work() -> None:
    log = run(policy("fifo")).log
    start_s = min(job.submit_time_s for job in log.jobs.values())
    end_s = max(log.ends_s.values())
    moments = np.linspace(start_s, end_s, 4001)
    waiting = [
        sum(j.job.single_gpu_s for n, j in log.jobs.items() if j.submit_time_s <= t < log.starts_s[n]) for t in moments
    ]
    assert log.backlog_s() == pytest.approx(float(np.mean(waiting)), rel=0.02)


def urgent(priority: Priority, name: str, submitted_s: float) -> Job:
    return Job(JobId(name), model="resnet50", single_gpu_s=600.0, submit_time_s=submitted_s, priority=priority)


def test_qos_savable_puts_late_jobs_behind_those_that_can_be_in_time() -> None:
    view = ClusterView(ClusterRecords("q", 0, "sim", nodes=tuple(spec.node for spec in qos_cluster())))
    now_s = 10_000.0
    jobs = [
        urgent(Priority.NORMAL, "late", 1000.0),
        urgent(Priority.NORMAL, "savable", now_s - 60.0),
        urgent(Priority.URGENT, "urgent", now_s - 30.0),
    ]
    context = AdmitContext(now_s, 0, QueueSettings(), 0)
    ranks = {
        name: [a.rank for a in policy(name).admit(jobs, view, QueueState("q"), context).admissions]
        for name in ("qos", "qos-savable")
    }
    assert ranks["qos"] == [1, 3, 2]
    assert ranks["qos-savable"] == [3, 2, 1]


def test_a_job_of_the_believed_truth_takes_what_the_cost_model_says() -> None:
    nodes = qos_cluster()
    truth = make_truth("judge", 0)
    jobs = ElasticWorkload(jobs=1, models=PROTEUS_MODELS, has_classes=False).generate(truth, 0)
    log = run_elastic(nodes, jobs, BelievedSpeed(nodes), policy("single-gpu"), "consolidate", 0).log
    assert log.mean("slowdown") == pytest.approx(1.0)
    wide = run_elastic(nodes, jobs, BelievedSpeed(nodes), policy("fifo"), "consolidate", 0)
    admitted = policy("fifo").admit(
        [jobs[0].job],
        ClusterView(ClusterRecords("q", 0, "sim", nodes=tuple(spec.node for spec in nodes))),
        QueueState("q"),
        AdmitContext(0.0, 0, QueueSettings(), 0),
    )
    assert admitted.admissions[0].verdict is Verdict.ADMIT
    assert wide.log.mean("gpus") == admitted.admissions[0].gpus == 16
    assert wide.log.mean("slowdown") < 1.0


# -- measured costs -----------------------------------------------------------------------------------------------


def test_parameters_by_layers_are_the_published_sizes() -> None:
    published = {"AlexNet": 61.1, "ResNet18": 11.69, "ResNet50": 25.56, "VGG11": 132.86, "VGG16": 138.36}
    for name, millions in published.items():
        assert computed_millions(name) == pytest.approx(millions, rel=0.005)


def test_alpha_is_judged_on_batches_left_out() -> None:
    for label in ALPHA_NETWORKS:
        values, curves = alpha_figure(label)
        assert values["mean_error"] <= values["max_error"] < 0.5
        assert len(curves["measured"][0]) == values["batches"] >= 3
        assert curves["measured"][1] != curves["estimated"][1]


def test_claims_about_qos_are_judged_as_printed_and_as_shipped() -> None:
    claims = {claim.key: claim for claim in qos.paper(is_quick=True).claims}
    results = Results()
    rates = {qos.PRINTED: 0.9, qos.QOS: 0.2, **dict.fromkeys(qos.BASELINES, 0.4)}
    for method, rate in rates.items():
        for seed in range(3):
            values = {"qos_rate": rate, "makespan": 1.0 - rate, "decide_ms": 2000.0 * rate}
            results.add(("density", "20", method), seed, TrialOutcome(values))
            for setting, scale in (("5/35/60", 1.0), ("30/50/20", 1.5 - rate)):
                results.add(("shares", setting, method), seed, TrialOutcome({"qos_rate": scale * rate}))
    for key, printed, shipped in (
        ("qos_rate", ClaimVerdict.REPRODUCED, ClaimVerdict.NOT),
        ("makespan", ClaimVerdict.REPRODUCED, ClaimVerdict.NOT),
        ("shares", ClaimVerdict.REPRODUCED, ClaimVerdict.NOT),
        ("overhead", ClaimVerdict.NOT, ClaimVerdict.REPRODUCED),
    ):
        assert claims[key].text.startswith("As printed: ")
        assert claims[f"{key}_shipped"].is_beyond
        assert judged(claims[key], results).verdict is printed, key
        assert judged(claims[f"{key}_shipped"], results).verdict is shipped, key


def test_claims_about_the_shipped_proteus_are_beyond_the_paper() -> None:
    claims = {claim.key: claim for claim in proteus.paper(is_quick=True).claims}
    for key in ("vs_single", "vs_random", "shrinks"):
        assert (claims[key].text[:12], claims[key].is_beyond) == ("As printed: ", False)
        shipped = claims[f"{key}_shipped"]
        assert (shipped.text[:12], shipped.is_beyond) == ("As shipped: ", True)


def test_both_forms_of_qos_are_in_every_figure() -> None:
    for experiment in qos.paper(is_quick=True).experiments:
        if experiment.key not in ("completions", "model_error"):
            assert {qos.PRINTED, qos.QOS} <= set(experiment.methods)


def test_figure_4_has_the_errors_of_each_form_on_placements_left_out() -> None:
    found = next(e for e in qos.paper(is_quick=True).experiments if e.key == "model_error")
    assert found.source == "Fig. 4"
    profiles = {f"{p['model']}, {p['gpu_model']}": p for p in bundled("throughput.json")["profiles"]}
    assert set(found.settings) == set(profiles)
    for setting, profile in profiles.items():
        for method, form in zip(found.methods, ("qos", "overlap", "knots"), strict=True):
            values = found.trial(setting, method, 0).values
            assert values["mean"] == profile[form]["held_out_mean_error"]
            assert values["median"] == profile[form]["held_out_median_error"]


def test_more_data_a_minute_is_more_tasks_a_minute_of_the_same_run() -> None:
    found = next(e for e in heat.paper(is_quick=True).experiments if e.key == "load")
    few, many = ([time_s for time_s, _ in Lab(per_minute=rate).tasks(20, 0)] for rate in (0.6, 1.2))
    assert (many[-1] - 900.0) == pytest.approx(0.5 * (few[-1] - 900.0))
    over_s = [found.trial(setting, EQUAL, 0).values["over_s"] for setting in ("0.6", "1.2")]
    assert over_s[1] > 2.0 * over_s[0], "the paper: conventional scheduling overheats as more data comes"
