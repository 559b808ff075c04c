"""`qos-paper` and `proteus-paper`: the decisions as their papers print them, and from the papers' inputs alone."""

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
import pytest
from tests.fakes.proteus_queue import bundled, cluster_of, gpu_nodes

from placewise_core.admit.policy import AdmitContext
from placewise_core.admit.registry import admission_policies
from placewise_core.domain.cluster import Assignment, NodeTelemetry, QueueSettings, QueueState, RunningJob
from placewise_core.domain.decision import Admission, AdmitPlan, Verdict
from placewise_core.domain.job import ElasticRange, Job, JobId, Priority, Resources, Role, Subtask
from placewise_core.speed.params import PARAMS_MILLIONS
from placewise_core.speed.throughput import ThroughputModel
from placewise_core.view.view import ClusterView

MODEL = ThroughputModel(bundled("throughput.json"))
POLICIES = admission_policies(MODEL)
NOW_S = 100_000.0
SETTINGS = QueueSettings(v=0.01, epsilon_s=60.0, tau_s=600.0, slot_s=10.0)


def job(name: str, model: str = "ResNet-50", **more: object) -> Job:
    given = {"iterations": 20_000.0, "elastic": ElasticRange(1, 16), "submit_time_s": NOW_S, **more}
    return Job(JobId(name), model=model, batch_size=256, **given)  # type: ignore[arg-type]


def asked(
    policy: str, jobs: Sequence[Job], view: ClusterView, queue: QueueState | None = None, now_s: float = NOW_S
) -> AdmitPlan:
    context = AdmitContext(now_s, int(now_s / 10), SETTINGS, np.random.default_rng(0), is_explaining=True)
    return POLICIES[policy].admit(jobs, view, queue or QueueState("q"), context)


def ask(policy: str, jobs: Sequence[Job], view: ClusterView) -> dict[str, Admission]:
    return {a.job_id: a for a in asked(policy, jobs, view).admissions}


def occupied(view: ClusterView, m: int, gpus: int) -> ClusterView:
    held = Assignment("worker-0", Role.WORKER, view.nodes.records[m].id, tuple(range(gpus)), Resources(gpus=gpus))
    view.add_job(RunningJob(Job(JobId(f"busy{m}"), model="x"), (held,)))
    return view


# -- qos-paper --------------------------------------------------------------------------------------------------------


def test_a_job_waits_for_its_own_shape_and_everyone_behind_it_waits() -> None:
    """Section 4.2: s* comes from all shapes of the platform, free or not, and the first that does not fit ends it."""
    empty = cluster_of(gpu_nodes(2, 4))
    best = ask("qos-paper", [job("a", priority=Priority.PRIOR)], empty)["a"]
    assert best.gpus > 1
    full = occupied(occupied(cluster_of(gpu_nodes(2, 4)), 0, 4), 1, 4 - best.gpus + 1)
    answers = ask("qos-paper", [job("a", priority=Priority.PRIOR), job("b", elastic=ElasticRange(1, 1))], full)
    assert [answers[name].verdict for name in "ab"] == [Verdict.WAIT, Verdict.WAIT]
    assert (answers["a"].rank, answers["b"].rank) == (1, 2)


def test_what_starts_is_the_shape_of_highest_cer_in_time_by_the_quadratic() -> None:
    view = cluster_of(gpu_nodes(4, 4))
    one = job("a", priority=Priority.PRIOR)
    started = ask("qos-paper", [one], view)["a"]
    quadratic = MODEL.in_form("qos")
    match = quadratic.match(one, "T4")
    single_s = quadratic.single_gpu_s(one, match, 600.0)
    cer, found = {}, {}
    for d in range(1, 5):
        for g in range(1, 5):
            latency = float(quadratic.latency_s(one, match, d, g, 600.0))
            if latency <= single_s:  # (15): Prior is expected after once the time on one GPU
                cer[d, g] = float(quadratic.speedup(one, match, d, g)) / (0.5 * d * g / 16 + 0.5 * d / 4)
                found[d, g] = latency
    best = max(cer, key=lambda shape: cer[shape])
    assert (started.nodes, started.gpus_per_node) == best
    assert started.expected_finish_time_s == pytest.approx(NOW_S + found[best])
    assert started.slack_s == pytest.approx(NOW_S + single_s - started.expected_finish_time_s)


def test_an_urgent_job_takes_the_highest_cer_of_all() -> None:
    answers = ask("qos-paper", [job("n"), job("u", priority=Priority.URGENT)], cluster_of(gpu_nodes(4, 4)))
    assert (answers["u"].rank, answers["u"].verdict) == (1, Verdict.ADMIT)
    assert answers["u"].slack_s < 0


def test_shape_and_slack_are_found_anew_after_a_completion() -> None:
    """The job waits while the platform is full. When it is asked about again only larger shapes are in time."""
    one = job("a", priority=Priority.PRIOR)
    full = occupied(occupied(cluster_of(gpu_nodes(2, 4)), 0, 4), 1, 4)
    before = asked("qos-paper", [one], full).admissions[0]
    assert before.verdict is Verdict.WAIT
    for name in ("busy0", "busy1"):
        full.remove_job(JobId(name))
    at_once = asked("qos-paper", [one], full).admissions[0]
    anew = asked("qos-paper", [one], full, now_s=NOW_S + at_once.slack_s + 1.0).admissions[0]
    assert (at_once.verdict, anew.verdict) == (Verdict.ADMIT, Verdict.ADMIT)
    assert anew.gpus > at_once.gpus
    due_s = at_once.slack_s + at_once.expected_finish_time_s
    assert anew.slack_s == pytest.approx(due_s - anew.expected_finish_time_s)
    assert anew.slack_s > 0


# -- proteus-paper ----------------------------------------------------------------------------------------------------


def test_the_cost_is_that_of_a_fixed_batch_per_gpu() -> None:
    """Cost(n) = Cost(1)/n and Comm(n) = (m/(n·b))·e·params/BW, one bandwidth; S(n) by (14)."""
    view, one = cluster_of(gpu_nodes(1, 8)), job("a", elastic=ElasticRange(1, 8))
    first = asked("proteus-paper", [one], view)
    plan = asked("proteus-paper", [one], view, first.queue, NOW_S + 10.0)
    terms = {t.gpus: t for t in plan.admissions[0].drift_plus_penalty}
    assert set(terms) == set(range(9))
    assert terms[0].value == 0.0
    match = MODEL.match(one, "T4")
    single_s = MODEL.single_gpu_s(one, match, SETTINGS.tau_s)
    steps = single_s / MODEL.step_s(match, 256.0)
    bytes_per_step = PARAMS_MILLIONS["resnet50"] * 1e6 * 4
    for n in range(1, 9):
        comm_s = steps / n * bytes_per_step / (100e9 / 8) if n > 1 else 0.0
        assert terms[n].cost_s == pytest.approx(single_s / n + comm_s)
        c, q, z = single_s / 600.0, plan.queue.backlog_s / 600.0, plan.queue.delay_s / 600.0
        assert terms[n].value == pytest.approx(0.01 * terms[n].cost_s / 600.0 + c * c - c * (q + z))


def test_a_lone_job_waits_beside_idle_gpus_until_z_has_grown() -> None:
    """No work conservation: for the last job c² and cQ cancel, so that Z alone can start it."""
    view, one = cluster_of(gpu_nodes(2, 4)), job("a")
    plan = asked("proteus-paper", [one], view)
    verdicts = []
    for slot in range(1, 400):
        plan = asked("proteus-paper", [one], view, plan.queue, NOW_S + 10.0 * slot)
        verdicts.append(plan.admissions[0].verdict)
        if verdicts[-1] is Verdict.ADMIT:
            break
    assert verdicts[0] is Verdict.WAIT
    assert verdicts[-1] is Verdict.ADMIT


# -- inputs -----------------------------------------------------------------------------------------------------------

# A paper's method reads of a job: type, batch, work, and the shapes that its user allows. The first also when
# it came and its class, by (9); the second its number of parameters, by (5), which the first asks of no known type.
READS = {
    "qos-paper": {
        "id", "model", "architecture", "groups", "total_epochs", "batch_size", "dataset_size", "iterations",
        "single_gpu_s", "gpu_sharing", "elastic", "shape", "priority", "submit_time_s",
        "keep_together", "exclusive_network",  # by which shapes fit
    },
    "proteus-paper": {
        "id", "model", "architecture", "groups", "total_epochs", "batch_size", "dataset_size", "iterations",
        "single_gpu_s", "gpu_sharing", "elastic", "shape", "params_millions",
        "keep_together", "exclusive_network",
    },
}  # fmt: skip
OTHERWISE = {
    "params_millions": 400.0,
    "priority": Priority.URGENT,
    "queue": "other",
    "submit_time_s": 5.0,
    "subtasks": (Subtask("s", "k"),),
    "attained_gpu_s": 5e4,
    "user": "somebody",
}


@pytest.mark.parametrize("policy", READS)
def test_nothing_is_read_of_a_job_but_the_papers_inputs(policy: str) -> None:
    """A field of Job that is new has to be put on one of the two lists."""
    view = cluster_of(gpu_nodes(2, 4))
    plan = asked(policy, [job("a"), job("b", model="VGG16")], view)
    left = {field.name for field in fields(Job)} - READS[policy]
    assert left <= OTHERWISE.keys(), f"does {policy} read {left - OTHERWISE.keys()}?"
    for name in left:
        other = replace(job("a"), **{name: OTHERWISE[name]})
        assert asked(policy, [other, job("b", model="VGG16")], view) == plan, name


@pytest.mark.parametrize("policy", READS)
def test_nothing_is_read_of_a_node_but_its_gpus_and_network(policy: str) -> None:
    nodes = gpu_nodes(2, 4)
    busy = {f.name: 0.5 for f in fields(NodeTelemetry) if f.name.endswith("_util")}
    warm = {f.name: 40.0 for f in fields(NodeTelemetry) if f.name.endswith("_celsius")}
    reported = tuple(
        replace(
            n, telemetry=NodeTelemetry(**{**busy, **warm, "limit_celsius": 90.0, "observe_time_s": NOW_S}), rack="r"
        )
        for n in nodes
    )
    jobs = [job("a"), job("b", model="VGG16")]
    assert asked(policy, jobs, cluster_of(reported)) == asked(policy, jobs, cluster_of(nodes))
