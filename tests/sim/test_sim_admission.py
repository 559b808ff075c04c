"""The simulator reads only the jobs that start: every policy starts the same ones for it."""

from collections.abc import Sequence
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
from placewise_core.domain.decision import AdmitPlan, Verdict
from placewise_core.domain.job import Job, JobId, Resources, Shape
from placewise_core.speed.throughput import ThroughputModel
from placewise_core.view.view import ClusterView
from placewise_training.reproduce.elastic.composed import SHORTEST, admission
from placewise_training.reproduce.elastic.trials import JobLog
from placewise_training.sim.discipline import Discipline
from placewise_training.sim.gangs.admission import Admitter
from placewise_training.sim.gangs.engine import SimOptions, Simulation
from placewise_training.sim.gangs.window import Window
from placewise_training.sim.hardware import qos_cluster, uniform_cluster
from placewise_training.sim.jobs import SimJob, with_shape
from placewise_training.sim.jobs import gang as groups
from placewise_training.sim.policies import admission_policy, placement_policy
from placewise_training.sim.truths import make_truth
from placewise_training.sim.workloads import ElasticWorkload, sized

POLICIES = admission_policies(ThroughputModel(bundled("throughput.json")))


def blocked(seed: int, policy: str = "fifo", queues: int = 1, *, is_elastic: bool = True) -> Simulation:
    """Sixty jobs within two hours: the queue's head waits most of the time."""
    truth = make_truth("judge", seed)
    jobs = list(ElasticWorkload(jobs=60, per_hour=30.0).generate(truth, seed))
    if not is_elastic:
        for sim in jobs:
            sim.job = with_shape(sim.job, Shape(1 + sim.number % 3, 1 + sim.number % 4))
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
        admitter: Admitter, queue: str, jobs: list[SimJob], first: int, view: ClusterView, now_s: float
    ) -> object:
        asked.append(now_s)
        return ask(admitter, queue, jobs, first, view, now_s)

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
        admitter: Admitter, queue: str, jobs: list[SimJob], first: int, view: ClusterView, now_s: float
    ) -> object:
        asked.append(queue)
        return ask(admitter, queue, jobs, first, view, now_s)

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


@pytest.mark.parametrize("name", ["proteus", "qos", "tetris-cer"])
def test_no_place_is_sought_once_no_gpu_is_idle_with_the_same_events(
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
        admitter: Admitter, queue: str, jobs: list[SimJob], first: int, view: ClusterView, now_s: float
    ) -> object:
        asked.append(len(jobs))
        return ask(admitter, queue, jobs, first, view, now_s)

    monkeypatch.setattr(Admitter, "_ask", counted)
    runs = []
    for waits_with_view in (True, False):
        asked.clear()
        monkeypatch.setattr(Fifo, "waits_with_view", waits_with_view)
        result = blocked(2, is_elastic=False).run()
        runs.append((result.event_hash, sum(asked)))
    (fast, few), (slow, many) = runs
    assert fast == slow
    assert few < 0.8 * many


def test_fifo_is_asked_while_a_gpu_is_idle_and_then_most_of_its_jobs_find_a_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The queues are asked one after the other: a place that one queue's job has taken is promised to no other."""
    runs = []
    for has_gpu_jobs_in_order in (True, False):
        simulation = blocked(2, queues=4)
        if not has_gpu_jobs_in_order:
            monkeypatch.setattr(Window, "has_gpu_jobs_in_order", False)
        asked: list[int] = []
        admit = Fifo.admit

        def counted(
            fifo: Fifo, jobs: Sequence[Job], view: ClusterView, queue: QueueState, context: AdmitContext
        ) -> AdmitPlan:
            asked.append(int(view.usage.free_gpus.sum()))  # noqa: B023 - called within this turn of the loop
            return admit(fifo, jobs, view, queue, context)  # noqa: B023

        with monkeypatch.context() as patched:
            patched.setattr(Fifo, "admit", counted)
            result = simulation.run()
        runs.append((len(asked), min(asked), result.decisions, result.metrics.avg_jct_s))
    (few, least, few_decisions, jct_s), (many, _, many_decisions, other_jct_s) = runs
    assert few < 0.8 * many
    assert least > 0
    assert few_decisions < many_decisions
    assert jct_s == pytest.approx(other_jct_s, rel=0.05)


def turns(younger_s: float) -> tuple[Admitter, ClusterView, dict[str, list[SimJob]]]:
    """Two queues and two nodes with two idle GPUs on one of them: a gang of both nodes came between two small jobs."""
    others = [running("long", "n0", range(2), single_gpu_s=1e4), running("full", "n1", range(4), single_gpu_s=1e4)]
    jobs = [
        gang("first", 1, queue="a", single_gpu_s=1e3, submit_time_s=1.0),
        gang("gang", 8, queue="b", single_gpu_s=1e6, submit_time_s=2.0),
        gang("younger", 1, queue="a", single_gpu_s=younger_s, submit_time_s=3.0),
    ]
    first, large, younger = (SimJob(job, 1.0, job.submit_time_s, number=i) for i, job in enumerate(jobs))
    admitter = Admitter(admission("fifo"), QueueSettings())
    return admitter, view_of([node("n0"), node("n1")], others), {"a": [first, younger], "b": [large]}


def started(admitter: Admitter, view: ClusterView, queues: dict[str, list[SimJob]], now_s: float) -> list[str]:
    """Starts the jobs admitted on the first node. They leave their queues."""
    found = []
    for sim in admitter.admitted(list(queues.items()), view, now_s, has_gpu_jobs_in_order=True):
        gpu = view.usage.idle_gpus(0)[0]
        view.add_job(running(sim.id, "n0", [gpu], single_gpu_s=sim.job.single_gpu_s))
        found.append(sim)
    for sim in found:
        queues[sim.job.queue].remove(sim)
    return [sim.id for sim in found]


@pytest.mark.parametrize(("younger_s", "names"), [(1e6, ["first"]), (10.0, ["first", "younger"])])
def test_a_job_passes_the_first_of_another_queue_only_if_it_ends_before_that_one_starts(
    younger_s: float, names: list[str]
) -> None:
    admitter, view, queues = turns(younger_s)
    assert started(admitter, view, queues, 4.0) == names
    assert view.heads["b"].job == "gang"


def test_a_head_past_its_bound_keeps_its_nodes_though_no_queue_was_asked_for_long() -> None:
    admitter, view, queues = turns(1e6)
    assert started(admitter, view, queues, 4.0) == ["first"]
    before = view.heads["b"]
    queues["a"][0].job = replace(queues["a"][0].job, single_gpu_s=1.0)
    later_s = before.bound_s + 10.0
    assert later_s > before.expire_s
    assert started(admitter, view, queues, later_s) == []
    assert (view.heads["b"].nodes, view.heads["b"].since_s) == (before.nodes, before.since_s)


def test_jobs_start_by_rank() -> None:
    """Of two that came together and are past their bounds, the first by id is the head, and the other passes it. They
    are asked about together: the job before them is too large for the nodes that are there."""
    view = view_of([node("n0")], [running("long", "n0", range(2), single_gpu_s=1e4)])
    jobs = [gang(name, gpus, queue="a", submit_time_s=1.0) for name, gpus in (("large", 8), ("y", 1), ("x", 1))]
    sims = [SimJob(job, 1.0, 1.0, number=number) for number, job in enumerate(jobs)]
    admitter = Admitter(admission("fifo"), QueueSettings(bound_s=60.0))
    assert started(admitter, view, {"a": sims}, 100.0) == ["x", "y"]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_gang_starts_within_its_bound_beside_endless_jobs_of_other_queues(seed: int) -> None:
    """All jobs declare a tenth of their lengths. The gang is as large as the cluster."""
    truth, bound_s, rng = make_truth("judge", seed), 3600.0, np.random.default_rng(seed)
    sizes = [8 if number == 20 else 1 for number in range(400)]
    jobs = []
    for number, gpus in enumerate(sizes):
        queue = "gang" if gpus == 8 else f"q{rng.integers(2)}"
        single = Resources(cpu_cores=1, gpus=1, memory_gib=1)
        asked = Job(
            JobId(f"job-{number}"),
            model="resnet50",
            groups=groups(gpus, worker_demand=single),
            batch_size=32 * gpus,
            queue=queue,
            submit_time_s=1.0 + 50.0 * number,
        )
        jobs.append(sized(asked, float(rng.uniform(300, 900)), truth, "2080TI", 4, number))
        jobs[-1].job = replace(jobs[-1].job, single_gpu_s=jobs[-1].job.single_gpu_s / 10.0)
    log = JobLog()
    options = SimOptions(queue_settings=QueueSettings(bound_s=bound_s), observers=(log.observe,))
    nodes = uniform_cluster(2, 4, "2080TI")
    policy = placement_policy("tetris")
    Simulation(nodes, jobs, truth, policy, admission=admission_policy("fifo"), options=options, seed=seed).run()
    waited_s = log.starts_s["job-20"] - jobs[20].submit_time_s
    longest_s = max(log.ends_s[name] - start_s for name, start_s in log.starts_s.items())
    assert waited_s <= bound_s + longest_s
    assert max(log.starts_s.values()) - jobs[-1].submit_time_s > bound_s, "more jobs come than can run"


def test_the_shortest_of_the_waiting_jobs_is_the_first_even_if_it_comes_last() -> None:
    """Asked about alone, behind the one that waits, it would have to end before that one can start."""
    view = view_of([node("n0"), node("n1")], [running("other", "n0", range(4), single_gpu_s=1e3)])
    first = SimJob(gang("long", 8, single_gpu_s=1e6, submit_time_s=1.0), samples=1.0, submit_time_s=1.0)
    shorter = SimJob(gang("short", 1, single_gpu_s=1e5, submit_time_s=2.0), samples=1.0, submit_time_s=2.0)
    admitter = Admitter(admission(f"fifo{SHORTEST}"), QueueSettings())
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
        assert list(window.by_queue()) == list(by_queue.items())
    assert len(waiting) > 5
