"""Exploration of admission: propensities by enumeration, draws by chi², and the limits that it keeps."""

import itertools
import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from tests.fakes.explored import fit
from tests.fakes.proteus_queue import bundled, cluster_of, gpu_nodes
from tests.fakes.quick.examples import examples

from placewise_core.admit import slot_exploring
from placewise_core.admit.exploring import BOUND, HEAD, PROMISED
from placewise_core.admit.greedy import GreedyAdmission
from placewise_core.admit.needs import elastic_range
from placewise_core.admit.policy import AdmissionPolicy, AdmitContext, AdmitExploration
from placewise_core.admit.pool import Pool
from placewise_core.admit.registry import admission_policies
from placewise_core.admit.shapes import Options
from placewise_core.domain.cluster import (
    Assignment,
    ExplorationGuard,
    HeadReservation,
    QueueSettings,
    QueueState,
    RunningJob,
)
from placewise_core.domain.decision import Admission, AdmitPlan, Reason, Verdict
from placewise_core.domain.events import Event, QueueAdvanced
from placewise_core.domain.job import ElasticRange, Job, JobId, NodeId, Priority, Resources, Role, Shape, TaskGroup
from placewise_core.gang.context import PlaceContext
from placewise_core.policies.consolidate import Consolidate
from placewise_core.speed.throughput import ThroughputModel
from placewise_core.view.heads import barred, is_in_force
from placewise_core.view.view import ClusterView

POLICIES = admission_policies(ThroughputModel(bundled("throughput.json")))
EXPLORED = [name for name, policy in POLICIES.items() if isinstance(policy, GreedyAdmission) and policy.is_explored]
BY_SLOT = [name for name, policy in POLICIES.items() if not isinstance(policy, GreedyAdmission)]  # one decision a slot
RATE, SLOT_S, NOW_S, BOUND_S = 0.3, 10.0, 100_000.0, 1000.0
DRAWS = int(os.environ.get("PLACEWISE_TEST_DRAWS", str(examples(1500))))
NO_GUARD = ExplorationGuard()
Answer = tuple[int, int] | None


def elastic(name: str, least: int, most: int, **more: object) -> Job:
    fields = {"submit_time_s": NOW_S, "single_gpu_s": 600.0, **more}
    return Job(JobId(name), model="ResNet-18", batch_size=512, elastic=ElasticRange(least, most), **fields)  # type: ignore[arg-type]


def rigid(name: str, workers: int, told_s: float = 100.0, **more: object) -> Job:
    single_s = told_s * (1.0 + 0.5 * (workers - 1))
    fields = {"submit_time_s": NOW_S, "single_gpu_s": single_s, **more}
    groups = (TaskGroup(Role.WORKER, workers, Resources(gpus=1.0)),)
    return Job(JobId(name), model="ResNet-18", batch_size=512, groups=groups, **fields)  # type: ignore[arg-type]


def uneven() -> ClusterView:
    """Four nodes with one to four free GPUs."""
    view = cluster_of(gpu_nodes(4, 4))
    for m in range(3):
        held = rigid(f"runs{m}", 3 - m, 400.0)
        tasks = [
            Assignment(f"worker-{i}", Role.WORKER, NodeId(f"n{m}"), (i,), Resources(gpus=1.0)) for i in range(3 - m)
        ]
        view.add_job(RunningJob(held, tuple(tasks), start_time_s=NOW_S))
    return view


def asking(
    rate: float = RATE,
    now_s: float = NOW_S,
    guard: ExplorationGuard = NO_GUARD,
    randomness: np.random.Generator | None = None,
    bound_s: float = BOUND_S,
) -> AdmitContext:
    exploration = AdmitExploration(rate, guard, is_seeded=randomness is not None)
    settings = QueueSettings(bound_s=bound_s, slot_s=SLOT_S)
    return AdmitContext(now_s, int(now_s / SLOT_S), settings, randomness or 0, exploration=exploration)


def answer(given: Admission) -> Answer:
    return None if given.verdict is Verdict.WAIT else (given.nodes, given.gpus_per_node)


class FixedNumbers(np.random.Generator):
    """Gives these four numbers."""

    def __init__(self, *numbers: float) -> None:
        super().__init__(np.random.PCG64(0))
        self._numbers = np.array(numbers)

    def random(self, size: int) -> np.ndarray:  # type: ignore[override]
        assert size == len(self._numbers)
        return self._numbers


def grid(numbers: int = 12, shapes: int = 6) -> Iterator[tuple[float, FixedNumbers]]:
    """Every draw of one job, with its probability: as many numbers of GPUs, or a divisor of it, and shapes of each
    number. These serve for one to four numbers and one to three shapes."""
    yield 1.0 - RATE, FixedNumbers(1.0 - 1e-9, 0.0, 0.0, 0.0)
    middles = ([(k + 0.5) / cells for k in range(cells)] for cells in (numbers, shapes))
    for coin, count, shape in itertools.product((0.25, 0.75), *middles):
        yield RATE / (2 * numbers * shapes), FixedNumbers(0.0, coin, count, shape)


def grid_of(options: Options) -> Iterator[tuple[float, FixedNumbers]]:
    """The least grid with every draw among these shapes. Draws among others do not fit its cells."""
    by_number = Counter(options.gpus.tolist())
    return grid(len(by_number), math.lcm(*by_number.values()))


JOBS = {
    **{f"elastic to {most}": elastic("job", 1, most) for most in range(1, 5)},
    **{f"gang of {workers}": rigid("job", workers) for workers in range(1, 5)},
    "of two or three": elastic("job", 2, 3, priority=Priority.URGENT),
    "of one shape": Job(JobId("job"), model="ResNet-18", shape=Shape(2, 2), submit_time_s=NOW_S, single_gpu_s=600.0),
}
GUARDS = {
    "none": NO_GUARD,
    "of larger jobs": ExplorationGuard(max_gpus=2.0),
    "of narrow choices": ExplorationGuard(min_nodes=5),
    "of urgent jobs": ExplorationGuard(is_urgent_spared=True),
}


CASES = [
    *itertools.product(EXPLORED, JOBS, ["none"]),
    *itertools.product(["qos", "fifo-strict"], ["elastic to 3", "gang of 3", "of two or three"], GUARDS),
]


@pytest.mark.parametrize(("name", "kind", "guard"), CASES)
def test_each_propensity_is_the_enumerated_one(name: str, kind: str, guard: str) -> None:
    view, policy, job = uneven(), POLICIES[name], JOBS[kind]
    (own,) = policy.admit([job], view, QueueState("q"), asking(rate=0.0)).admissions
    shapes = Pool.free(view, NOW_S).options(job)
    given: dict[Answer, float] = {}
    stated: dict[Answer, float] = {}
    for probability, numbers in grid_of(shapes):
        plan = policy.admit([job], view, QueueState("q"), asking(guard=GUARDS[guard], randomness=numbers))
        (one,) = plan.admissions
        assert one.draw is not None
        given[answer(one)] = given.get(answer(one), 0.0) + probability
        assert stated.setdefault(answer(one), one.draw.propensity) == one.draw.propensity
        assert one.draw.own_propensity == (answer(one) == answer(own))
        if one.draw.rate == 0.0:
            assert one.draw.guard
            assert answer(one) == answer(own)
            break  # nothing is drawn
    else:
        assert given == pytest.approx(stated, abs=1e-9)
        is_shaped = {(int(d), int(g)) for d, g in zip(shapes.nodes, shapes.gpus_per_node, strict=True)}
        assert stated.keys() == {None, *is_shaped}
    assert sum(stated.values()) == pytest.approx(1.0, abs=1e-9)


def whole(plan: AdmitPlan) -> tuple[Answer, ...]:
    return tuple(answer(given) for given in plan.admissions)


@pytest.mark.parametrize("name", ["fifo", "qos", "tetris-cer"])
def test_draws_of_whole_requests_fit_their_propensities(name: str) -> None:
    """Three jobs that want the same ten GPUs, in as many slots as there are draws."""
    view, policy = uneven(), POLICIES[name]
    jobs = [elastic("a", 1, 2), rigid("b", 4), elastic("c", 2, 4)]
    counted: Counter[tuple[Answer, ...]] = Counter()
    stated: dict[tuple[Answer, ...], float] = {}
    for slot in range(DRAWS):
        now_s = NOW_S + slot * SLOT_S
        asked = [replace(job, submit_time_s=now_s) for job in jobs]
        plan = policy.admit(asked, view, QueueState("q"), asking(now_s=now_s))
        draws = [given.draw for given in plan.admissions]
        propensity = float(np.prod([draw.propensity for draw in draws if draw is not None]))
        counted[whole(plan)] += 1
        assert stated.setdefault(whole(plan), propensity) == pytest.approx(propensity, abs=1e-12)
    assert 0.9 < sum(stated.values()) <= 1.0 + 1e-9
    unseen = 1.0 - sum(stated.values())
    assert fit(counted, {**stated, (): max(unseen, 0.0)}, DRAWS) > 1e-4


@pytest.mark.parametrize("name", EXPLORED)
def test_a_host_that_polls_within_the_slot_draws_once_on_every_replica(name: str) -> None:
    policy, jobs = POLICIES[name], [elastic("a", 1, 4), rigid("b", 2), elastic("c", 1, 3)]
    seen = set()
    for slot in range(examples(64)):
        now_s = NOW_S + slot * SLOT_S
        queue, view, found = QueueState("q"), uneven(), set()
        for after_s in (0.0, 3.0, 9.9):
            plan = policy.admit(jobs, uneven(), queue, asking(0.5, now_s + after_s))
            found.add(tuple((answer(given), given.draw) for given in plan.admissions))
            queue = replace(plan.queue, admitted={"a": (1, 1, int(now_s / SLOT_S))})  # as the store has it by now
            view.apply(Event(view.version + 1, view.epoch, QueueAdvanced(replace(queue, seq=1))))
        (only,) = found
        seen.add(only)
    assert len(seen) > 4


def test_another_epoch_draws_otherwise() -> None:
    first, second = uneven(), uneven()
    second.epoch = "another"
    draws = [
        [
            POLICIES["fifo"].admit([elastic("a", 1, 4)], view, QueueState("q"), asking(now_s=NOW_S + i * SLOT_S))
            for i in range(20)
        ]
        for view in (first, second)
    ]
    assert [whole(plan) for plan in draws[0]] != [whole(plan) for plan in draws[1]]


def test_a_seeded_request_repeats_its_draws() -> None:
    jobs = [elastic("a", 1, 4), elastic("b", 1, 4)]
    plans = [
        POLICIES["tetris-cer"].admit(jobs, uneven(), QueueState("q"), asking(1.0, randomness=np.random.default_rng(4)))
        for _ in range(2)
    ]
    assert plans[0] == plans[1]
    assert [given.draw.seed for given in plans[0].admissions if given.draw] == [None, None]


class World:
    """A cluster of two queues, whose jobs come, are admitted, placed as the service does, and end; seeded."""

    def __init__(self, name: str, seed: int, rate: float) -> None:
        self.policy, self.rate = POLICIES[name], rate
        self.rng = np.random.default_rng(seed)
        self.view = cluster_of(gpu_nodes(3, 4))
        self.jobs: dict[str, list[Job]] = {"q": [], "other": []}
        self.ends: dict[JobId, float] = {}
        self.count, self.now_s = 0, NOW_S

    def come(self, queue: str) -> None:
        while len(self.jobs[queue]) < 4:
            name, told_s = f"{queue}{self.count}", float(self.rng.uniform(20.0, 400.0))
            self.count += 1
            if self.rng.random() < 0.5:
                job = rigid(name, int(self.rng.integers(1, 9)), told_s, submit_time_s=self.now_s)
            else:
                least = int(self.rng.integers(1, 4))
                most = least + int(self.rng.integers(0, 5))
                job = elastic(name, least, most, submit_time_s=self.now_s, single_gpu_s=told_s)
            self.jobs[queue].append(job)

    def ask(self, queue: str) -> tuple[list[Job], QueueState, AdmitPlan]:
        jobs, before = list(self.jobs[queue]), self.view.queues.get(queue) or QueueState(queue)
        context = asking(self.rate, self.now_s)
        return jobs, before, self.policy_of(queue).admit(jobs, self.view, before, context)

    def policy_of(self, queue: str) -> AdmissionPolicy:
        return self.policy if queue == "q" else POLICIES["fifo"]  # whose head binds every policy

    def tell(self, queue: QueueState) -> None:
        event = QueueAdvanced(replace(queue, seq=queue.seq + 1))
        self.view.apply(Event(self.view.version + 1, self.view.epoch, event))

    def place(self, queue: str, jobs: list[Job], plan: AdmitPlan) -> None:
        for given in sorted(plan.admissions, key=lambda each: each.rank):
            job = next(each for each in jobs if each.id == given.job_id)
            if given.verdict is Verdict.WAIT or self.rng.random() < 0.3:  # some hosts are slow to place
                continue
            gang = job
            if not job.is_rigid:
                gang = replace(
                    job,
                    elastic=None,
                    groups=(TaskGroup(Role.WORKER, given.nodes, Resources(gpus=float(given.gpus_per_node))),),
                )
            mask = barred(self.view, gang, gang.gpus, self.now_s)
            proposal = Consolidate().propose(gang, self.view, PlaceContext(self.now_s, 0, barred=mask))
            if proposal is not None:
                self.view.add_job(RunningJob(gang, proposal.assignments, start_time_s=self.now_s))
                self.ends[job.id] = self.now_s + float(self.rng.uniform(20.0, 400.0))
                self.jobs[queue].remove(job)

    def end(self) -> None:
        for name in [name for name, end_s in self.ends.items() if end_s <= self.now_s]:
            del self.ends[name]
            self.view.remove_job(name)


def check_limits(job: Job, given: Admission) -> None:
    if job.is_rigid:
        assert given.gpus == job.gpus
    else:
        limits = elastic_range(job)
        assert limits.min_gpus <= given.gpus <= limits.max_gpus
        assert given.gpus == given.nodes * given.gpus_per_node


def beside_heads(world: World, queue: str, before: QueueState, job: Job, pool: Pool) -> Pool:
    """The pool without the nodes that heads keep from the job: those of other queues (from a head only older ones do),
    and its own queue's, if this request does not find that again."""
    heads = {name: head for name, head in world.view.heads.items() if name != queue}
    asked = {each.id for each in world.jobs[queue]}
    if before.head is not None and (before.head.job not in asked or before.head.job == job.id):
        heads[queue] = before.head
    known, world.view.heads = world.view.heads, heads
    mask = barred(world.view, job, job.gpus if job.is_rigid else elastic_range(job).min_gpus, world.now_s)
    world.view.heads = known
    return pool if mask is None else pool.without(mask)


def check_nodes_of_heads(world: World, queue: str, before: QueueState, job: Job, given: Admission) -> None:
    """Its shape fits beside the nodes that heads keep from it."""
    shapes = beside_heads(world, queue, before, job, Pool.free(world.view, world.now_s)).options(job)
    open_to = {(int(d), int(g)) for d, g in zip(shapes.nodes, shapes.gpus_per_node, strict=True)}
    assert answer(given) in open_to or (job.is_rigid and open_to)


HEEDS_HEADS = {"fifo", "qos", "qos-savable"}


@pytest.mark.parametrize("seed", range(examples(6)))
@pytest.mark.parametrize("name", EXPLORED)
def test_exploring_breaks_no_limit_no_bound_and_no_reservation_of_a_head(name: str, seed: int) -> None:
    world, kinds = World(name, seed, rate=0.7), Counter[str]()
    for _ in range(60):
        for queue in ("q", "other"):
            world.come(queue)
            jobs, before, plan = world.ask(queue)
            pool, is_backfilling = Pool.free(world.view, world.now_s), world.policy_of(queue).reads_progress
            in_force = [head.job for head in world.view.heads.values() if is_in_force(head, world.view, world.now_s)]
            for job, given in sorted(zip(jobs, plan.admissions, strict=True), key=lambda each: each[1].rank):
                is_held_back = any(why.reason is Reason.EXPLORATION for why in given.blockers)
                assert (given.verdict, is_held_back) != (Verdict.ADMIT, True)
                if is_held_back:
                    kinds["held back"] += 1
                    assert job.id not in in_force
                    assert job.submit_time_s + BOUND_S >= (int(world.now_s / SLOT_S) + 2) * SLOT_S
                if given.verdict is Verdict.ADMIT:
                    check_limits(job, given)
                    left = beside_heads(world, queue, before, job, pool) if is_backfilling else pool
                    shapes = left.options(job)
                    fits = (shapes.nodes == given.nodes) & (shapes.gpus_per_node == given.gpus_per_node)
                    assert len(shapes) if job.is_rigid else fits.any(), "the shapes of one answer fit side by side"
                    pool.apply(left.takes(job, shapes, 0 if job.is_rigid else int(fits.argmax())))
                    if given.draw is not None and given.draw.explorer:
                        kinds["explored"] += 1
                        check_nodes_of_heads(world, queue, before, job, given)
                    elif name in HEEDS_HEADS or queue == "other":
                        check_nodes_of_heads(world, queue, before, job, given)
                if given.draw is not None:
                    kinds[given.draw.guard] += 1
                    assert 0.0 < given.draw.propensity <= 1.0
            world.tell(plan.queue)
            world.place(queue, jobs, plan)
        world.now_s += float(world.rng.uniform(2.0, 15.0))
        world.end()
    assert kinds["held back"]
    assert kinds["explored"]
    assert not kinds.keys() - {"", "held back", "explored", HEAD, BOUND, PROMISED}


def test_the_head_is_not_held_back_and_nor_is_a_job_near_its_bound() -> None:
    """At rate 1: of the fifty slots in which each may start, none is left out."""
    for slot in range(50):
        now_s = NOW_S + slot * SLOT_S
        view, gang = uneven(), rigid("gang", 10, submit_time_s=now_s)
        near = rigid("near", 4, submit_time_s=now_s - BOUND_S + SLOT_S)
        (given,) = POLICIES["fifo"].admit([near], view, QueueState("q"), asking(1.0, now_s)).admissions
        assert (given.verdict, given.draw and given.draw.guard) == (Verdict.ADMIT, BOUND)
        taken = RunningJob(
            rigid("x", 1), (Assignment("worker-0", Role.WORKER, NodeId("n3"), (0,), Resources(gpus=1.0)),)
        )
        view.add_job(taken)
        plan = POLICIES["fifo"].admit([gang], view, QueueState("q"), asking(1.0, now_s))
        assert plan.queue.head is not None
        view.apply(Event(view.version + 1, view.epoch, QueueAdvanced(replace(plan.queue, seq=1))))
        view.remove_job(taken.id)
        (given,) = POLICIES["fifo"].admit([gang], view, view.queues["q"], asking(1.0, now_s)).admissions
        assert (given.verdict, given.draw and given.draw.guard) == (Verdict.ADMIT, HEAD)


def test_a_shape_admitted_in_an_earlier_slot_is_the_policys() -> None:
    job, slot = elastic("a", 1, 4), int(NOW_S / SLOT_S)
    own = POLICIES["qos"].admit([job], uneven(), QueueState("q"), asking(0.0)).admissions[0]
    for before in range(20):
        queue = QueueState("q", admitted={"a": (1, 1, slot - 1 - before)})
        (given,) = POLICIES["qos"].admit([job], uneven(), queue, asking(1.0)).admissions
        assert answer(given) == answer(own)
        assert given.draw is not None
        assert (given.draw.guard, given.draw.propensity) == (PROMISED, 1.0)


def test_others_are_answered_as_if_a_job_held_back_started() -> None:
    jobs = [rigid("a", 4), rigid("b", 4), rigid("c", 4)]
    own = POLICIES["fifo"].admit(jobs, uneven(), QueueState("q"), asking(0.0))
    assert [given.verdict for given in own.admissions] == [Verdict.ADMIT, Verdict.ADMIT, Verdict.WAIT]
    found = set()
    for slot in range(30):
        now_s = NOW_S + slot * SLOT_S
        plan = POLICIES["fifo"].admit(jobs, uneven(), QueueState("q"), asking(1.0, now_s))
        found.add(tuple(given.verdict for given in plan.admissions))
        assert plan.admissions[2].verdict is Verdict.WAIT
        assert plan.queue.head is not None
        assert plan.queue.head.job == "c"
    assert len(found) == 4


def test_most_policies_are_explored() -> None:
    assert {"qos", "qos-savable", "qos-paper", "fifo", "fifo-strict", "tetris-cer", "single-gpu"} <= set(EXPLORED)
    assert "proteus-paper" in BY_SLOT


@pytest.mark.parametrize("name", ["capacity", "random-gpus"])
def test_policies_whose_answers_are_limits_or_draws_are_left_alone(name: str) -> None:
    jobs = [elastic(f"j{i}", 1, 4, single_gpu_s=7200.0) for i in range(6)]
    queue = QueueState("q")
    for slot in range(20):
        context = asking(1.0, NOW_S + slot * SLOT_S)
        plan = POLICIES[name].admit(jobs, uneven(), queue, context)
        assert plan == POLICIES[name].admit(jobs, uneven(), queue, replace(context, exploration=AdmitExploration()))
        queue = plan.queue
    assert any(given.verdict is Verdict.ADMIT for given in plan.admissions)


def queue_of_next_slot(name: str, jobs: Sequence[Job], view: ClusterView) -> QueueState:
    """The queue after the slot in which the jobs arrived."""
    return POLICIES[name].admit(jobs, view, QueueState("q"), asking(0.0, NOW_S - SLOT_S)).queue


@pytest.mark.parametrize("kind", ["elastic to 3", "gang of 3", "of one shape", "of two or three"])
@pytest.mark.parametrize("v", [1.0, 1e6], ids=["starts", "waits"])
@pytest.mark.parametrize("name", BY_SLOT)
def test_the_decision_of_a_slot_has_the_enumerated_propensity(name: str, v: float, kind: str) -> None:
    view, policy = uneven(), POLICIES[name]
    jobs = [replace(JOBS[kind], single_gpu_s=7200.0)]

    def ask(queue: QueueState, rate: float, after_s: float, numbers: FixedNumbers | None) -> AdmitPlan:
        context = asking(rate, NOW_S + after_s, randomness=numbers)
        context.settings = replace(context.settings, v=v)
        return slot_exploring.admit(policy, jobs, view, queue, context)

    queue = queue_of_next_slot(name, jobs, view)
    own = ask(queue, 0.0, 0.0, None)
    shapes = Pool.free(view, NOW_S).options(jobs[0])
    given: dict[Answer, float] = {}
    stated: dict[Answer, float] = {}
    for probability, numbers in grid_of(shapes):
        plan = ask(queue, RATE, 0.0, numbers)
        (one,) = plan.admissions
        assert one.draw is not None
        given[answer(one)] = given.get(answer(one), 0.0) + probability
        assert stated.setdefault(answer(one), one.draw.propensity) == one.draw.propensity
        assert one.draw.own_propensity == (answer(one) == answer(own.admissions[0]))
        again = ask(plan.queue, RATE, 5.0, FixedNumbers(0.0, 0.0, 0.0, 0.0))
        assert again.queue is plan.queue, "the slot's decision was made"
        assert answer(again.admissions[0]) == answer(one)
        assert again.admissions[0].draw is None
        assert (plan.queue.backlog_s, plan.queue.delay_s) == (own.queue.backlog_s, own.queue.delay_s)
    assert given == pytest.approx(stated, abs=1e-9)
    assert sum(stated.values()) == pytest.approx(1.0, abs=1e-9)
    assert stated.keys() == {None, *zip(shapes.nodes.tolist(), shapes.gpus_per_node.tolist(), strict=True)}


@pytest.mark.parametrize("name", BY_SLOT)
def test_a_job_held_back_is_decided_about_again_in_the_next_slot(name: str) -> None:
    """V of almost nothing and a backlog of two jobs: the policy itself would let the first start at once."""
    view, jobs = uneven(), [rigid("a", 2, 7200.0), rigid("b", 2, 7200.0)]
    queue, held_back = queue_of_next_slot(name, jobs, view), 0
    for slot in range(60):
        context = asking(1.0, NOW_S + slot * SLOT_S)
        context.settings = replace(context.settings, v=1e-6)
        plan = slot_exploring.admit(POLICIES[name], jobs, view, queue, context)
        drawn = [given for given in plan.admissions if given.draw is not None]
        if all(given.verdict is Verdict.ADMIT for given in plan.admissions):
            break
        for given in drawn:
            if given.verdict is Verdict.WAIT:
                assert given.blockers[0].reason in (Reason.EXPLORATION, Reason.DRIFT_PLUS_PENALTY)
                assert given.job_id in plan.queue.waiting
                held_back += given.blockers[0].reason is Reason.EXPLORATION
        queue = plan.queue
    assert {given.verdict for given in plan.admissions} == {Verdict.ADMIT}
    assert held_back


@pytest.mark.parametrize("name", BY_SLOT)
def test_a_slots_decision_takes_no_nodes_promised_or_kept_for_a_head(name: str) -> None:
    """The head of another queue keeps the two nodes with most GPUs from long jobs, and another job was promised one."""
    view = uneven()
    head = HeadReservation("head", ("n2", "n3"), NOW_S + 50.0, NOW_S - 100.0, NOW_S + BOUND_S, NOW_S + 600.0)
    view.apply(Event(view.version + 1, view.epoch, QueueAdvanced(QueueState("other", seq=1, head=head))))
    jobs = [elastic("a", 1, 8, single_gpu_s=7200.0), elastic("b", 1, 1, single_gpu_s=7200.0)]
    slot = int(NOW_S / SLOT_S)
    queue = replace(queue_of_next_slot(name, jobs, view), admitted={"b": (1, 1, slot - 1)})
    found = set()
    for _, numbers in grid():
        context = asking(RATE, NOW_S, randomness=numbers)
        one, two = slot_exploring.admit(POLICIES[name], jobs, view, queue, context).admissions
        assert (two.nodes, two.gpus_per_node) == (1, 1)
        if one.draw is not None and one.draw.explorer and one.verdict is Verdict.ADMIT:
            found.add(answer(one))
    assert found
    assert found <= {(1, 1), (1, 2), (2, 1)}, "of n0 with one free GPU and n1 with two"
