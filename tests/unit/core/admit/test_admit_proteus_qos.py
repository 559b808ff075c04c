"""Proteus and the QoS-aware policy as one: the decision of the first, the order and the shape of the second."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.fakes.proteus_queue import bundled, cluster_of, gpu_nodes, start

from placewise_core.admit.policies.proteus import Proteus
from placewise_core.admit.policies.proteus_qos import ProteusQos, ProteusQosSavable
from placewise_core.admit.policies.qos import QosAware
from placewise_core.admit.policy import AdmissionPolicy, AdmitContext
from placewise_core.domain.cluster import QueueSettings, QueueState
from placewise_core.domain.decision import Admission, AdmitPlan, Verdict
from placewise_core.domain.job import ElasticRange, Job, JobId, Priority
from placewise_core.speed.throughput import ThroughputModel
from placewise_core.view.view import ClusterView

MODEL = ThroughputModel(bundled("throughput.json"))
SETTINGS = QueueSettings(v=0.01, epsilon_s=60.0, tau_s=600.0, slot_s=10.0)
PATIENT = replace(SETTINGS, v=1e9)


def job(name: str, priority: Priority = Priority.NORMAL, elastic: ElasticRange | None = None) -> Job:
    return Job(
        JobId(name),
        model="ResNet-50",
        batch_size=256,
        single_gpu_s=6000.0,
        priority=priority,
        elastic=elastic,
        submit_time_s=900.0,
    )


def ask(
    policy: AdmissionPolicy,
    jobs: Sequence[Job],
    view: ClusterView,
    queue: QueueState,
    slot: int,
    settings: QueueSettings = SETTINGS,
) -> AdmitPlan:
    return policy.admit(jobs, view, queue, AdmitContext(slot * settings.slot_s, slot, settings, 0))


def in_queue(jobs: Sequence[Job], view: ClusterView, slot: int = 100) -> QueueState:
    """The state one slot after the jobs arrived: their work counts, none is admitted."""
    noted = ask(ProteusQos(MODEL), jobs, view, QueueState("q"), slot, PATIENT).queue
    return ask(ProteusQos(MODEL), jobs, view, noted, slot + 1, PATIENT).queue


def shape(admission: Admission) -> tuple[int, int]:
    return admission.nodes, admission.gpus_per_node


def test_the_job_of_least_slack_starts_in_the_shape_of_the_qos_policy() -> None:
    view = cluster_of(gpu_nodes(2, 4))
    jobs = [job("normal"), job("urgent", Priority.URGENT)]
    plan = ask(ProteusQos(MODEL), jobs, view, in_queue(jobs, view), 102)
    assert [a.verdict for a in plan.admissions] == [Verdict.WAIT, Verdict.ADMIT]
    assert [a.rank for a in plan.admissions] == [2, 1]
    wish = ask(QosAware(MODEL), jobs, view, QueueState("q"), 102).admissions[1]
    alone = ask(Proteus(MODEL), jobs[::-1], view, in_queue(jobs[::-1], view), 102).admissions[0]
    assert shape(plan.admissions[1]) == shape(wish) != shape(alone)
    assert plan.admissions[1].gpus == wish.gpus


@pytest.mark.parametrize("policy", [ProteusQos(MODEL), ProteusQosSavable(MODEL)])
def test_asking_again_gives_the_same_shape_in_this_slot_and_later(policy: ProteusQos) -> None:
    view = cluster_of(gpu_nodes(2, 4))
    jobs = [job("a"), job("b")]
    first = ask(policy, jobs, view, in_queue(jobs, view), 102)
    admitted = next(a for a in first.admissions if a.verdict is Verdict.ADMIT)
    again = ask(policy, jobs, view, first.queue, 102)
    assert (again.queue, again.admissions) == (first.queue, first.admissions)
    later = ask(policy, jobs, view, first.queue, 107)
    found = next(a for a in later.admissions if a.job_id == admitted.job_id)
    assert (found.verdict, shape(found)) == (Verdict.ADMIT, shape(admitted))
    assert later.queue.admitted[JobId(admitted.job_id)][:2] == shape(admitted)


def test_what_was_promised_to_another_is_not_promised_twice() -> None:
    view = cluster_of(gpu_nodes(1, 4))
    jobs = [job(name, elastic=ElasticRange(2, 4)) for name in ("a", "b")]
    queue, given = in_queue(jobs, view), dict[str, int]()
    for slot in range(102, 110):
        plan = ask(ProteusQos(MODEL), jobs, view, queue, slot)
        queue = plan.queue
        given = {a.job_id: a.gpus for a in plan.admissions if a.verdict is Verdict.ADMIT}
    assert 0 < sum(given.values()) <= 4


def test_a_job_that_started_keeps_what_it_has() -> None:
    view = cluster_of(gpu_nodes(2, 4))
    jobs = [job("a"), job("b")]
    plan = ask(ProteusQos(MODEL), jobs, view, in_queue(jobs, view), 102)
    admitted = next(a for a in plan.admissions if a.verdict is Verdict.ADMIT)
    start(view, next(j for j in jobs if j.id == admitted.job_id), admitted)
    after = ask(ProteusQos(MODEL), jobs, view, plan.queue, 103)
    found = next(a for a in after.admissions if a.job_id == admitted.job_id)
    assert (found.verdict, shape(found)) == (Verdict.ADMIT, shape(admitted))
