"""The simulator reads only the jobs that start: every policy starts the same ones for it."""

from dataclasses import replace

import numpy as np
import pytest
from tests.fakes.place_cases import gang, node, running, view_of
from tests.fakes.proteus_queue import bundled

from placewise_core.admit.greedy import GreedyAdmission
from placewise_core.admit.policies.fifo import Fifo
from placewise_core.admit.policy import AdmitContext
from placewise_core.admit.registry import admission_policies
from placewise_core.domain.cluster import QueueSettings, QueueState
from placewise_core.domain.decision import Verdict
from placewise_core.domain.job import Job, JobId
from placewise_core.speed.throughput import ThroughputModel
from placewise_core.view.view import ClusterView
from placewise_training.reproduce.elastic.composed import SHORTEST, admission
from placewise_training.sim.discipline import Discipline
from placewise_training.sim.gangs.admission import Admitter
from placewise_training.sim.gangs.engine import SimOptions, Simulation
from placewise_training.sim.gangs.window import Window
from placewise_training.sim.hardware import qos_cluster
from placewise_training.sim.jobs import SimJob
from placewise_training.sim.policies import admission_policy, placement_policy
from placewise_training.sim.truths import make_truth
from placewise_training.sim.workloads import ElasticWorkload

POLICIES = admission_policies(ThroughputModel(bundled("throughput.json")))


def blocked(seed: int, policy: str = "fifo", queues: int = 1) -> Simulation:
    """Sixty jobs within two hours: the queue's head waits most of the time."""
    truth = make_truth("judge", seed)
    jobs = list(ElasticWorkload(jobs=60, per_hour=30.0).generate(truth, seed))
    if queues > 1:
        for sim in jobs:
            sim.job = replace(sim.job, queue=f"q{sim.number % queues}")
    options = SimOptions(discipline=Discipline())
    admission = admission_policy(policy)
    return Simulation(
        qos_cluster(), jobs, truth, placement_policy("tetris"), admission=admission, options=options, seed=seed
    )


@pytest.mark.parametrize("name", [*sorted(POLICIES), f"fifo{SHORTEST}", f"proteus{SHORTEST}"])
def test_whoever_reads_only_starts_gets_the_same_starts(name: str) -> None:
    policy = POLICIES[name] if name in POLICIES else admission(name)
    simulation = blocked(1)
    for until_s in range(600, 7200, 1200):
        simulation.run_until(float(until_s))
        jobs = [job.job for job in simulation.waiting.values()]
        answers = []
        for starts_only in (False, True):
            context = AdmitContext(
                simulation.now_s, until_s // 10, QueueSettings(), np.random.default_rng(0), starts_only=starts_only
            )
            plan = policy.admit(jobs, simulation.view, QueueState("q", delay_s=1e6), context)
            starts = [a for a in plan.admissions if a.verdict is Verdict.ADMIT]
            answers.append([(a.job_id, a.gpus, a.nodes, a.gpus_per_node, a.rank) for a in starts])
        assert answers[0] == answers[1]


@pytest.mark.parametrize("name", ["fifo-strict", "single-gpu", "random-gpus"])
def test_a_queue_whose_first_job_waits_is_asked_after_a_release_with_the_same_events(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    ask = Admitter._ask

    def counted(
        admitter: Admitter, queue: str, jobs: list[SimJob], view: ClusterView, now_s: float, needs_idle_gpus: bool
    ) -> object:
        asked.append(now_s)
        return ask(admitter, queue, jobs, view, now_s, needs_idle_gpus)

    monkeypatch.setattr(Admitter, "_ask", counted)
    runs = []
    for stops_in_order in (True, False):
        asked.clear()
        monkeypatch.setattr(GreedyAdmission, "stops_in_order", stops_in_order)
        result = blocked(2, name).run()
        runs.append((result.event_hash, len(asked)))
    (fast, few), (slow, many) = runs
    assert fast == slow
    assert few < 0.8 * many


@pytest.mark.parametrize("name", ["fifo-strict", "single-gpu", "random-gpus"])
def test_queues_are_not_asked_once_the_first_job_has_taken_all_gpus_with_the_same_events(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    ask = Admitter._ask

    def counted(
        admitter: Admitter, queue: str, jobs: list[SimJob], view: ClusterView, now_s: float, needs_idle_gpus: bool
    ) -> object:
        asked.append(queue)
        return ask(admitter, queue, jobs, view, now_s, needs_idle_gpus)

    monkeypatch.setattr(Admitter, "_ask", counted)
    runs = []
    for has_gpu_jobs_in_order in (True, False):
        asked.clear()
        simulation = blocked(2, name, queues=4)
        if not has_gpu_jobs_in_order:
            monkeypatch.setattr(Window, "has_gpu_jobs_in_order", False)
        runs.append((simulation.run().event_hash, len(asked)))
    (fast, few), (slow, many) = runs
    assert fast == slow
    assert few < many


@pytest.mark.parametrize("name", ["fifo", "proteus", "qos", "tetris-cer"])
def test_no_place_is_sought_and_no_job_looked_at_once_no_gpu_is_idle_with_the_same_events(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []
    for has_gpu_jobs_in_order in (True, False):
        simulation = blocked(2, name, queues=4)
        if not has_gpu_jobs_in_order:
            monkeypatch.setattr(Window, "has_gpu_jobs_in_order", False)
        result = simulation.run()
        runs.append((result.event_hash, result.decisions))
    (fast, few), (slow, many) = runs
    assert fast == slow
    assert few < many


def test_a_window_has_gpu_jobs_in_order_while_each_of_its_jobs_needs_an_idle_gpu_and_numbers_ascend() -> None:
    jobs = [SimJob(gang(f"job-{number}", 1), samples=1.0, submit_time_s=0.0, number=number) for number in range(4)]
    jobs[1] = SimJob(gang("half", 1, 0.5), samples=1.0, submit_time_s=0.0, number=1)
    window = Window(2)
    seen = []
    for job in jobs:
        window.append(job)
        seen.append(window.has_gpu_jobs_in_order)
    window.remove(jobs[1])
    assert [*seen, window.has_gpu_jobs_in_order] == [True, False, False, False, True]
    assert not Window.of(2, jobs[2:0:-1]).has_gpu_jobs_in_order
    window.append(SimJob(gang("restarted", 1), samples=1.0, submit_time_s=0.0, number=2))
    assert not window.has_gpu_jobs_in_order


def test_fifo_is_asked_about_new_jobs_alone_while_nothing_changes_with_the_same_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    ask = Admitter._ask

    def counted(
        admitter: Admitter, queue: str, jobs: list[SimJob], view: ClusterView, now_s: float, needs_idle_gpus: bool
    ) -> object:
        asked.append(len(jobs))
        return ask(admitter, queue, jobs, view, now_s, needs_idle_gpus)

    monkeypatch.setattr(Admitter, "_ask", counted)
    runs = []
    for waits_with_view in (True, False):
        asked.clear()
        monkeypatch.setattr(Fifo, "waits_with_view", waits_with_view)
        result = blocked(2).run()
        runs.append((result.event_hash, sum(asked)))
    (fast, few), (slow, many) = runs
    assert fast == slow
    assert few < 0.8 * many


def test_the_shortest_of_the_waiting_jobs_is_the_first_even_if_it_comes_last() -> None:
    """Asked about alone, behind the one that waits, it would have to end before that one can start."""
    view = view_of([node("n0"), node("n1")], [running("other", "n0", range(4), single_gpu_s=1e3)])
    first = SimJob(gang("long", 8, single_gpu_s=1e6, submit_time_s=1.0), samples=1.0, submit_time_s=1.0)
    shorter = SimJob(gang("short", 1, single_gpu_s=1e5, submit_time_s=2.0), samples=1.0, submit_time_s=2.0)
    admitter = Admitter(admission(f"fifo{SHORTEST}"), 0, QueueSettings())
    assert list(admitter.admitted([("", [first])], view, 1.0)) == []
    assert [job.id for job in admitter.admitted([("", [first, shorter])], view, 2.0)] == ["short"]


def test_a_window_holds_the_first_jobs_that_wait_by_queue() -> None:
    """Against the same, worked out again at each step."""
    rng = np.random.default_rng(3)
    window, waiting = Window(5), list[SimJob]()
    for number in range(400):
        if rng.random() < 0.55 or not waiting:
            job = Job(JobId(f"job-{number}"), queue=f"q{rng.integers(3)}")
            waiting.append(SimJob(job, samples=1.0, submit_time_s=0.0))
            window.append(waiting[-1])
        else:
            window.remove(waiting.pop(int(rng.integers(len(waiting)))))
        by_queue: dict[str, list[SimJob]] = {}
        for sim in waiting[:5]:
            by_queue.setdefault(sim.job.queue, []).append(sim)
        assert window.by_queue() == list(by_queue.items())
    assert len(waiting) > 5
