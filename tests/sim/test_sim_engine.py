"""Invariants of the simulator: determinism, conservation, faults, impossible jobs, bad input."""

from dataclasses import replace

import numpy as np
import pytest

from placewise_core.domain.job import ElasticRange, Job, JobId, Resources
from placewise_core.policies.registry import placement_policies
from placewise_training.sim.discipline import Discipline
from placewise_training.sim.faults import Fault, FaultKind, added
from placewise_training.sim.gangs.engine import LiveJob, SimOptions, SimResult, Simulation
from placewise_training.sim.gangs.oracle import Oracle
from placewise_training.sim.gangs.what_if import what_if
from placewise_training.sim.hardware import harmony_cluster, make_node, qos_cluster, uniform_cluster
from placewise_training.sim.jobs import SimJob, gang
from placewise_training.sim.policies import admission_policy, placement_policy
from placewise_training.sim.truths import make_truth
from placewise_training.sim.workloads import ElasticWorkload, HarmonyWorkload, proteus_workload

INTERVALS = Discipline(every_s=1200.0)


def harmony(policy: str = "load-balance", seed: int = 0, jobs: int = 60, **options: object) -> SimResult:
    truth = make_truth("judge", seed)
    workload = HarmonyWorkload(jobs=jobs).generate(truth, seed)
    chosen = SimOptions(discipline=INTERVALS, **options)  # type: ignore[arg-type]
    return Simulation(harmony_cluster(), workload, truth, placement_policy(policy), options=chosen, seed=seed).run()


def test_equal_seeds_equal_hashes_and_other_seeds_other_ones() -> None:
    assert harmony(seed=3).event_hash == harmony(seed=3).event_hash
    assert harmony(seed=3).event_hash != harmony(seed=4).event_hash
    assert harmony("random", seed=3).event_hash == harmony("random", seed=3).event_hash


@pytest.mark.parametrize("policy", sorted(placement_policies()))
def test_every_policy_finishes_every_job(policy: str) -> None:
    metrics = harmony(policy).metrics
    assert (metrics.finished, metrics.unfinished) == (60, 0)
    assert all(np.isfinite(value) for value in metrics.as_dict().values())


class Auditor:
    """Checks at every start and finish that nothing is held twice and that work and speeds add up."""

    def __init__(self) -> None:
        self.simulation: Simulation | None = None
        self.finished: dict[str, float] = {}
        self.checks = 0

    def __call__(self, now_s: float, what: str, job: SimJob, places: tuple[str, ...]) -> None:
        if what == "finish":
            self.finished[job.id] = job.samples
        assert self.simulation is not None
        self.checks += 1
        view = self.simulation.view
        assert (view.usage.free >= 0).all()
        assert (view.usage.free <= view.nodes.capacity).all()
        for load in self.simulation.nodes.values():
            assert len(set(load.gpu_jobs)) <= len(load.spec.node.gpus)
            assert all(len(ids) == 1 for ids in load.gpu_jobs.values())


def test_no_gpu_is_handed_out_twice_and_everything_comes_back() -> None:
    truth = make_truth("train", 1)
    auditor = Auditor()
    jobs = HarmonyWorkload(jobs=80).generate(truth, 1)
    options = SimOptions(discipline=INTERVALS, observers=(auditor,))
    auditor.simulation = Simulation(harmony_cluster(), jobs, truth, placement_policy("tetris"), options=options)
    auditor.simulation.run()
    assert auditor.checks == 160
    np.testing.assert_array_equal(auditor.simulation.view.usage.free, auditor.simulation.view.nodes.capacity)
    assert not auditor.simulation.running
    assert all(not load.parts and not load.gpu_jobs for load in auditor.simulation.nodes.values())


def test_work_done_is_work_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The integral of speed over time of each job equals its samples, though speeds change all the time."""
    truth = make_truth("judge", 2)
    done: dict[str, float] = {}
    changes: dict[str, int] = {}
    settle = LiveJob.settle

    def counted(live: LiveJob, now_s: float) -> None:
        done[live.sim.id] = done.get(live.sim.id, 0.0) + live.rate * (now_s - live.settled_s)
        changes[live.sim.id] = changes.get(live.sim.id, 0) + 1
        settle(live, now_s)

    monkeypatch.setattr(LiveJob, "settle", counted)
    jobs = HarmonyWorkload(jobs=60).generate(truth, 2)
    Simulation(harmony_cluster(), jobs, truth, placement_policy("bin-packing")).run()
    assert max(changes.values()) > 3
    for job in jobs:
        assert done[job.id] == pytest.approx(job.samples, rel=1e-9)


def test_a_free_gpu_is_never_left_idle_while_a_job_waits_for_one() -> None:
    truth = make_truth("train", 0)
    groups = gang(1, worker_demand=Resources(cpu_cores=1, gpus=1))
    jobs = [SimJob(Job(JobId(f"j{i}"), model="lstm", groups=groups), 1e6, float(i), number=i) for i in range(40)]
    simulation = Simulation(uniform_cluster(2, 4), jobs, truth, placement_policy("load-balance"))
    for second in range(0, 2000, 7):
        simulation.run_until(float(second))
        assert not simulation.waiting or not simulation.view.usage.free_gpus.any()


@pytest.mark.parametrize("admit", ["proteus", "qos", "fifo", "capacity", "single-gpu"])
def test_admission_policies_give_shapes_and_everything_finishes(admit: str) -> None:
    truth = make_truth("judge", 0)
    jobs = ElasticWorkload(jobs=40, most_gpus=8).generate(truth, 0)
    sizes: set[int] = set()

    def note(now_s: float, what: str, job: SimJob, places: tuple[str, ...]) -> None:
        if what == "start":
            sizes.add(job.job.task_count)

    discipline = Discipline(every_s=10.0 if admit == "proteus" else 0.0)
    options = SimOptions(discipline=discipline, observers=(note,))
    consolidate, admission = placement_policy("consolidate"), admission_policy(admit)
    result = Simulation(qos_cluster(), jobs, truth, consolidate, admission=admission, options=options).run()
    assert result.metrics.finished == 40
    assert sizes == {1} if admit == "single-gpu" else max(sizes) > 1


def test_a_failed_node_restarts_its_jobs_from_the_beginning_and_takes_no_more() -> None:
    truth = make_truth("train", 0, noisy=False)
    groups = gang(1, worker_demand=Resources(cpu_cores=1, gpus=1))
    job = SimJob(Job(JobId("j"), model="lstm", groups=groups), 1.0, 0.0)
    job.samples = truth.alone_rate(job, "V100", 1) * 100.0
    nodes = uniform_cluster(2, 1)
    ends: list[tuple[float, str, tuple[str, ...]]] = []

    def run(keeps_progress: bool) -> float:
        ends.clear()
        faults = (Fault(60.0, FaultKind.DOWN, "node0000", keeps_progress=keeps_progress),)
        options = SimOptions(faults=faults, observers=(lambda t, w, j, p: ends.append((t, w, p)),))
        Simulation(nodes, [replace(job)], truth, placement_policy("load-balance"), options=options).run()
        assert [what for _, what, _ in ends] == ["start", "restart", "start", "finish"]
        assert ends[-1][2] == ("node0001",)
        return ends[-1][0]

    assert run(keeps_progress=False) == pytest.approx(160.0)
    assert run(keeps_progress=True) == pytest.approx(100.0)


def test_drained_nodes_finish_what_they_run_and_added_nodes_take_jobs() -> None:
    truth = make_truth("train", 0, noisy=False)
    groups = gang(1, worker_demand=Resources(cpu_cores=1, gpus=1))
    jobs = [SimJob(Job(JobId(f"j{i}"), model="lstm", groups=groups), 1e7, 10.0 * i, number=i) for i in range(3)]
    events: list[tuple[str, str, tuple[str, ...]]] = []
    new = make_node("late", cpu_cores=8, gpus=2, memory_gib=64, network_gbps=10)
    faults = (Fault(5.0, FaultKind.DRAIN, "node0000"), added(15.0, new))
    options = SimOptions(faults=faults, observers=(lambda t, w, j, p: events.append((j.id, w, p)),))
    result = Simulation(uniform_cluster(1, 2), jobs, truth, placement_policy("load-balance"), options=options).run()
    assert ("j0", "finish", ("node0000",)) in events
    assert ("j1", "start", ("late",)) in events
    assert ("j2", "start", ("late",)) in events
    assert result.metrics.restarts == 0


def test_removal_restarts_jobs_and_the_run_goes_on() -> None:
    faults = (Fault(3000.0, FaultKind.REMOVE, "server0"), Fault(9000.0, FaultKind.DOWN, "server1"))
    faults = (*faults, Fault(20_000.0, FaultKind.UP, "server1"))
    result = harmony(faults=faults)
    assert result.metrics.restarts > 0
    assert result.metrics.finished == 60
    assert result.event_hash == harmony(faults=faults).event_hash


def test_impossible_jobs_are_reported_by_name() -> None:
    truth = make_truth("train", 0)
    groups = gang(3, worker_demand=Resources(cpu_cores=1, gpus=1))
    too_large = SimJob(Job(JobId("large"), model="lstm", groups=groups), 1e4, 0.0)
    elastic = Job(JobId("elastic"), model="lstm", groups=groups[:1], elastic=ElasticRange(9, 16))
    jobs = [too_large, SimJob(elastic, 1e4, 1.0, number=1)]
    result = Simulation(uniform_cluster(1, 2), jobs, truth, placement_policy("load-balance")).run()
    assert result.impossible == ("large", "elastic")
    assert (result.metrics.impossible, result.metrics.unfinished, result.metrics.finished) == (2, 0, 0)


def test_a_stopped_run_is_marked_partial(monkeypatch: pytest.MonkeyPatch) -> None:
    truth = make_truth("train", 0)
    jobs = HarmonyWorkload(jobs=30).generate(truth, 0)
    policy = placement_policy("load-balance")
    simulation = Simulation(harmony_cluster(), jobs, truth, policy, options=SimOptions(discipline=INTERVALS))
    finished = []

    def interrupt(done: int, now_s: float) -> None:
        finished.append(done)
        raise KeyboardInterrupt

    result = simulation.run(progress=interrupt) if simulation.events else None
    if not finished:  # fewer events than the first progress report: stop it by time instead
        simulation = Simulation(harmony_cluster(), jobs, truth, policy, options=SimOptions(discipline=INTERVALS))
        result = simulation.run(until_s=20_000.0)
    assert result is not None
    assert result.is_partial
    assert 0 < result.metrics.finished < 30


def test_heat_keeps_jobs_off_hot_nodes() -> None:
    truth = make_truth("train", 0)
    jobs = HarmonyWorkload(jobs=30).generate(truth, 0)
    options = SimOptions(discipline=INTERVALS, telemetry_every_s=60.0)
    simulation = Simulation(harmony_cluster(), jobs, truth, placement_policy("load-balance"), options=options)
    metrics = simulation.run().metrics
    assert metrics.finished == 30
    assert 30 < metrics.peak_celsius < 85
    assert metrics.spread_celsius > 0


def test_jobs_out_of_order_are_refused() -> None:
    truth = make_truth("train", 0)
    jobs = HarmonyWorkload(jobs=5).generate(truth, 0)[::-1]
    with pytest.raises(ValueError, match="in order of arrival"):
        Simulation(harmony_cluster(), jobs, truth, placement_policy("load-balance")).run()


def test_four_task_environments_of_proteus() -> None:
    truth = make_truth("train", 0)
    spans = {}
    for data in ("small", "large"):
        for arrivals in ("dispersed", "concentrated"):
            jobs = proteus_workload(data, arrivals).generate(truth, 0)
            spans[data, arrivals] = jobs[-1].submit_time_s
            median = float(np.median([job.ideal_s for job in jobs]))
            assert (median > 3600) == (data == "large")
    assert spans["small", "concentrated"] < 0.2 * spans["small", "dispersed"]


def test_what_if_changes_nothing_and_is_right() -> None:
    truth = make_truth("judge", 0)
    jobs = HarmonyWorkload(jobs=6).generate(truth, 0)
    policy = placement_policy("load-balance")
    simulation = Simulation(harmony_cluster(), jobs, truth, None)
    simulation.run_until(jobs[-1].submit_time_s)
    for job in list(simulation.waiting.values())[:5]:
        proposal = policy.propose(job.job, simulation.view, simulation.context)
        assert proposal is not None
        rates = {name: live.rate for name, live in simulation.running.items()}
        reported = what_if(simulation, job, proposal.assignments)
        assert {name: live.rate for name, live in simulation.running.items()} == rates
        simulation.start(job, proposal.assignments)
        simulation.refresh()
        for name, (before, after) in reported.items():
            assert before == rates.get(name, 0.0)
            assert simulation.running[name].rate == after


def test_the_oracle_is_at_least_as_good_as_the_heuristics_it_starts_from() -> None:
    def mean_jct(policy: str) -> float:
        found = []
        for seed in range(3):
            truth = make_truth("judge", seed)
            jobs = HarmonyWorkload(jobs=40).generate(truth, seed)
            options = SimOptions(discipline=INTERVALS)
            simulation = Simulation(harmony_cluster(), jobs, truth, None, options=options, seed=seed)
            simulation.policy = Oracle(simulation, 40) if policy == "oracle" else placement_policy(policy)
            found.append(simulation.run().metrics.avg_jct_s)
        return float(np.mean(found))

    oracle = mean_jct("oracle")
    assert oracle < 1.02 * min(mean_jct(name) for name in ("load-balance", "tetris", "consolidate"))
