"""EASY backfill: who may pass the head of a queue, for how long, and on which nodes."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.backfill import BOUND_S, NOW_S, POLICIES, admitted, ask, busy, job, start, tell
from tests.fakes.proteus_queue import cluster_of, gpu_nodes
from tests.fakes.quick.examples import examples

from placewise_core.admit.policies import lyapunov
from placewise_core.admit.policy import AdmitContext, AdmitExploration
from placewise_core.domain.cluster import HeadReservation, QueueSettings, QueueState
from placewise_core.domain.decision import Outcome, Reason
from placewise_core.domain.events import Event, JobsEnded
from placewise_core.domain.job import Job, JobId, Priority, Resources, Role, TaskGroup
from placewise_core.gang import why
from placewise_core.gang.context import PlaceContext
from placewise_core.view.heads import barred


def test_a_job_that_ends_before_the_head_starts_may_pass_it() -> None:
    view = busy()
    plan = ask([job("gang", 4, tasks=2), job("short", 4, 400.0), job("long", 1, 600.0)], view, QueueState("q"))
    assert admitted(plan) == {"short"}
    assert plan.queue.head is not None
    assert (plan.queue.head.job, plan.queue.head.start_s) == ("gang", NOW_S + 500.0)
    assert len(plan.queue.head.nodes) == 2


def test_a_job_of_unknown_length_may_not_take_the_heads_nodes() -> None:
    plan = ask([job("gang", 4, tasks=2), job("untold", 1, 0.0)], busy(), QueueState("q"))
    assert admitted(plan) == set()
    assert plan.admissions[1].blockers[0].reason is Reason.BEHIND_IN_QUEUE


def test_the_blockers_of_a_job_behind_the_head_leave_a_full_node_of_the_head_out() -> None:
    """Its cores are of no use to the job."""
    view = cluster_of(gpu_nodes(2, 4))
    assert start(view, job("runs", 4, 500.0), NOW_S)
    assert start(view, job("runs long", 2, 10_000.0), NOW_S)
    demand = Resources(gpus=1.0, cpu_cores=12.0)  # of 32 on each node
    waits = replace(job("waits", 1, 0.0), groups=(TaskGroup(Role.WORKER, 3, demand),))
    plan = ask([job("wide", 4), waits], view, QueueState("q"))
    assert plan.queue.head is not None
    assert plan.queue.head.nodes == ("n0",)
    found = {blocker.reason: blocker.shortfall for blocker in plan.admissions[1].blockers}
    assert (found[Reason.INSUFFICIENT_GPU], found[Reason.INSUFFICIENT_CPU]) == (1.0, 4.0)


def test_a_job_may_take_nodes_that_the_head_does_not_need() -> None:
    view = busy()
    assert start(view, job("other", 4, 10_000.0), NOW_S)  # fills the second node
    plan = ask([job("wide", 4), job("long", 1, 90_000.0)], view, QueueState("q"))
    assert admitted(plan) == set()  # the head waits for the first node, whose two GPUs would fit the long job
    roomy = cluster_of(gpu_nodes(3, 4))
    for name in ("a", "b"):
        assert start(roomy, job(name, 3, 500.0), NOW_S)
    assert start(roomy, job("c", 2, 50_000.0), NOW_S)
    plan = ask([job("wide", 4), job("long", 2, 90_000.0)], roomy, QueueState("q"))
    assert admitted(plan) == {"long"}
    assert start(roomy, job("long", 2, 90_000.0), NOW_S)
    head = roomy.heads["q"]
    assert not {a.node for a in roomy.jobs[JobId("long")].assignments} & set(head.nodes)


def test_the_head_stays_while_other_jobs_are_asked_about() -> None:
    view = busy()
    ask([job("gang", 4, tasks=2)], view, QueueState("q"))
    plan = ask([job("long", 1, 600.0)], view, view.queues["q"])
    assert admitted(plan) == set()
    assert view.heads["q"].job == "gang"
    plan = ask([job("short", 1, 50.0)], view, view.queues["q"])
    assert admitted(plan) == {"short"}


def test_a_head_binds_other_queues_and_a_direct_place() -> None:
    view = busy()
    ask([job("gang", 4, tasks=2)], view, QueueState("q"))
    assert admitted(ask([job("long", 1, 600.0)], view, QueueState("other"))) == set()
    direct = job("direct", 1, 600.0)
    assert not start(view, direct, NOW_S)
    context = PlaceContext(NOW_S, 0, barred=barred(view, direct, 1.0, NOW_S))
    outcome, blockers = why.explain(direct, view, context)
    assert outcome is Outcome.WAIT
    assert blockers[0].reason is Reason.BEHIND_IN_QUEUE
    assert start(view, job("brief", 1, 50.0), NOW_S)


def test_a_job_is_kept_from_the_nodes_of_heads_that_hold_against_it_alone() -> None:
    """Whatever was looked at for a job before it, which more heads hold against."""
    view = cluster_of(gpu_nodes(3, 4))
    nodes = [node.id for node in view.nodes.records]
    for queue, waits_s, starts_s, on in (("x", 50.0, 200.0, nodes[0]), ("y", 10.0, 1000.0, nodes[1])):
        head = HeadReservation(queue, (on,), NOW_S + starts_s, NOW_S - waits_s, NOW_S + 5000.0, NOW_S + 600.0)
        tell(view, QueueState(queue, head=head, seq=1))
    longest = replace(job("longest", 4, 5000.0, tasks=2), submit_time_s=NOW_S - 20.0)
    plan = ask([longest, job("shorter", 4, 500.0, tasks=2)], view, QueueState("q"))
    assert admitted(plan) == {"shorter"}, "it ends before y starts"


def test_a_younger_head_of_another_queue_bars_no_older_one() -> None:
    """Both were promised all nodes, and these are idle now, before the time that was promised."""
    view, gang = cluster_of(gpu_nodes(2, 4)), job("gang", 4, 5000.0, tasks=2)
    nodes = tuple(node.id for node in view.nodes.records)
    for queue, waits_s, name in (("q", 50.0, "gang"), ("other", 10.0, "younger")):
        head = HeadReservation(name, nodes, NOW_S + waits_s, NOW_S - waits_s, NOW_S + 5000.0, NOW_S + 600.0)
        tell(view, QueueState(queue, head=head, seq=1))
    younger = job("younger", 4, 5000.0, tasks=2)
    assert admitted(ask([younger], view.fork(), view.queues["other"])) == set()
    assert admitted(ask([gang], view, view.queues["q"])) == {"gang"}
    assert start(view, gang, NOW_S)


def test_the_head_itself_is_not_kept_from_its_nodes() -> None:
    view, gang = busy(), job("gang", 4, tasks=2)
    ask([gang], view, QueueState("q"))
    view.remove_job(JobId("runs"))
    plan = ask([gang], view, view.queues["q"], NOW_S + 500.0)
    assert admitted(plan) == {"gang"}
    assert start(view, gang, NOW_S + 500.0)


def test_a_head_that_nobody_asks_about_any_more_is_forgotten() -> None:
    view = busy(100_000.0)
    ask([job("gang", 4, tasks=2)], view, QueueState("q"))
    later_s = NOW_S + 601.0
    assert admitted(ask([job("long", 1, 200_000.0)], view, view.queues["q"], later_s)) == {"long"}
    assert "q" not in view.heads


def test_past_its_bound_nobody_passes_the_head() -> None:
    view = busy(100_000.0)
    ask([job("gang", 4, tasks=2)], view, QueueState("q"))
    head = view.heads["q"]
    tell(view, replace(view.queues["q"], seq=2, head=replace(head, expire_s=NOW_S + 2 * BOUND_S)))
    brief = replace(job("brief", 1, 1.0), submit_time_s=NOW_S + 1.0)
    assert admitted(ask([brief], view, view.queues["q"], NOW_S + BOUND_S - 1.0)) == {"brief"}
    assert admitted(ask([brief], view, view.queues["q"], NOW_S + BOUND_S)) == set()


def test_strict_order_is_kept_by_its_own_name() -> None:
    context = AdmitContext(NOW_S, 0, QueueSettings(), np.random.default_rng(0))
    queue = QueueState("q")
    jobs = [job("gang", 4, tasks=2), job("short", 1, 1.0)]
    plan = POLICIES["fifo-strict"].admit(jobs, busy(), queue, context)
    assert admitted(plan) == set()
    assert plan.queue is queue


BACKFILLING = ["fifo", "proteus", "proteus-qos", "proteus-qos-savable", "qos", "qos-savable"]


@given(
    policy=st.sampled_from(BACKFILLING),
    told_s=st.floats(10.0, 200.0),
    under=st.floats(1.0, 10.0),
    behind=st.booleans(),
    starts_only=st.booleans(),
    rate=st.sampled_from([0.0, 0.3, 1.0]),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=examples(40), deadline=None)
def test_a_gang_as_large_as_the_cluster_starts_within_its_bound(
    policy: str, told_s: float, under: float, behind: bool, starts_only: bool, rate: float, seed: int
) -> None:
    """One-GPU jobs come without end, behind the gang or ahead of it in the host's order, and take up to ten times as
    long as they declared; two replicas answer by turns, and explore."""
    rng = np.random.default_rng(seed)
    world, gang = TwoReplicas(policy, rate), job("gang", 2, 100.0, tasks=2)
    stream, step_s = (job(f"j{i}", 1, told_s) for i in itertools.count()), 20.0
    ends: dict[str, float] = {}
    waiting = list(itertools.islice(stream, 6))
    now_s, longest_s = NOW_S, told_s * under
    while now_s <= NOW_S + BOUND_S + longest_s + step_s:
        for name in [name for name, end_s in ends.items() if end_s <= now_s]:
            del ends[name]
            world.end(name)
        waiting += [replace(new, submit_time_s=now_s) for new in itertools.islice(stream, 6 - len(waiting))]
        for started in world.start(int(rng.integers(2)), waiting, gang, behind, starts_only, now_s):
            if started is gang:
                return
            ends[started.id] = now_s + longest_s
            waiting.remove(started)
        now_s += step_s
    raise AssertionError(f"the gang still waits after {now_s - NOW_S:.0f} s")


class TwoReplicas:
    """Two views of one cluster of two nodes with two GPUs each, and the queue as the store has it."""

    def __init__(self, policy: str, rate: float) -> None:
        self.policy, self.exploration = POLICIES[policy], AdmitExploration(rate)
        self.views = [cluster_of(gpu_nodes(2, 2)), cluster_of(gpu_nodes(2, 2))]
        self.queue = QueueState("q")

    def end(self, name: str) -> None:
        for view in self.views:
            view.remove_job(JobId(name))

    def start(
        self, replica: int, waiting: list[Job], gang: Job, behind: bool, starts_only: bool, now_s: float
    ) -> list[Job]:
        """The jobs that this replica admits and places, one after the other."""
        view, other = self.views[replica], self.views[1 - replica]
        jobs = [gang, *waiting] if behind else [*waiting, gang]
        context = AdmitContext(
            now_s,
            int(now_s / 10),
            QueueSettings(bound_s=BOUND_S),
            0,
            starts_only=starts_only,
            exploration=self.exploration,
        )
        plan = self.policy.admit(jobs, view, self.queue, context)
        if plan.queue is not self.queue:
            self.queue = replace(plan.queue, seq=self.queue.seq + 1)
            for each in self.views:
                tell(each, self.queue)
        started = []
        for chosen in [each for each in jobs if each.id in admitted(plan)]:
            if start(view, chosen, now_s):
                other.add_job(view.jobs[chosen.id])
                started.append(chosen)
        return started


def test_a_head_starts_after_the_jobs_admitted_ahead_of_it() -> None:
    view = cluster_of(gpu_nodes(2, 4))
    plan = ask([job("first", 4, 300.0), job("gang", 4, tasks=2), job("short", 4, 299.0)], view, QueueState("q"))
    assert admitted(plan) == {"first", "short"}
    assert plan.queue.head is not None
    assert plan.queue.head.start_s == NOW_S + 300.0


def test_a_head_counts_only_gpus_of_its_model() -> None:
    view = cluster_of(gpu_nodes(2, 4))
    for name, told_s in (("a", 100.0), ("b", 700.0)):
        assert start(view, job(name, 4, told_s), NOW_S)
    gang = job("gang", 4, tasks=2)
    model = view.nodes.records[0].gpus[0].model
    gang = replace(gang, groups=(replace(gang.groups[0], gpu_model=model),))
    ask([gang], view, QueueState("q"))
    assert view.heads["q"].start_s == NOW_S + 700.0


def test_place_lets_through_the_jobs_that_the_queue_has_admitted() -> None:
    view = cluster_of(gpu_nodes(2, 4))
    first, gang, short = job("first", 4, 0.0), job("gang", 4, tasks=2), job("short", 4, 59.0)
    assert admitted(ask([first, gang, short], view, QueueState("q"))) == {"first", "short"}
    assert ask([job("late", 1, 500.0)], view, view.queues["q"]).queue.head == view.heads["q"]
    for admitted_job in (first, short):
        assert start(view, admitted_job, NOW_S + 5.0)
    assert ask([gang], view, view.queues["q"], NOW_S + 6.0).queue.head is not None
    assert view.heads["q"].passes == ()


def test_past_the_bound_an_earlier_admission_no_longer_counts() -> None:
    view = busy(100_000.0)
    ask([job("gang", 4, tasks=2)], view, QueueState("q"))
    short = job("short", 1, 99_000.0)
    assert admitted(ask([short], view, view.queues["q"])) == {"short"}
    assert barred(view, short, 1.0, view.heads["q"].bound_s - 1.0) is None
    head = replace(view.heads["q"], expire_s=NOW_S + 2 * BOUND_S)
    tell(view, replace(view.queues["q"], seq=9, head=head))
    assert not start(view, short, head.bound_s)


def test_past_its_bound_a_job_goes_before_those_that_the_host_lists_first() -> None:
    view, gang = busy(100.0), job("gang", 4, tasks=2)
    listed_first = [job(f"j{i}", 1, 10.0) for i in range(8)]
    assert admitted(ask([*listed_first, gang], view, QueueState("q"), NOW_S + BOUND_S)) == set()
    assert view.heads["q"].job == "gang"
    view.remove_job(JobId("runs"))
    assert admitted(ask([*listed_first, gang], view, view.queues["q"], NOW_S + BOUND_S)) == {"gang"}


@pytest.mark.parametrize("starts_only", [True, False])
@pytest.mark.parametrize("policy", BACKFILLING)
def test_past_their_bounds_jobs_start_by_the_time_they_wait(policy: str, starts_only: bool) -> None:
    """The oldest keeps its node from those that the host lists first; they go before younger ones all the same."""
    view = cluster_of(gpu_nodes(1, 2))
    came_s = {"a": NOW_S, "b": NOW_S, "oldest": NOW_S - 1.0, "young": NOW_S + 1.0}
    jobs = [replace(job(name, 1), submit_time_s=at_s) for name, at_s in came_s.items()]
    later_s = NOW_S + BOUND_S + 10.0
    context = AdmitContext(later_s, int(later_s / 10), QueueSettings(bound_s=BOUND_S), 0, starts_only=starts_only)
    plan = POLICIES[policy].admit(jobs, view, QueueState("q"), context)
    assert admitted(plan) == {"oldest", "a"}


@pytest.mark.parametrize("younger_s", [0.0, 1.0])
def test_of_two_jobs_past_their_bounds_the_one_that_waits_longer_is_placed(younger_s: float) -> None:
    """The second becomes the head as soon as the first is admitted, and must not keep it off its nodes.

    Of two that came together the name decides.
    """
    view, first = cluster_of(gpu_nodes(2, 4)), job("first", 4, tasks=2)
    second = replace(job("second", 4, tasks=2), submit_time_s=NOW_S + younger_s)
    later_s = NOW_S + BOUND_S + 10.0
    assert admitted(ask([first, second], view, QueueState("q"), later_s)) == {"first"}
    assert view.heads["q"].job == "second"
    assert start(view, first, later_s + 1.0)
    assert not start(view, job("young", 1, 1.0), later_s + 1.0)


def test_a_head_that_may_start_keeps_its_nodes_until_it_is_placed() -> None:
    view, gang = busy(), job("gang", 4, tasks=2)
    ask([gang], view, QueueState("q"))
    view.remove_job(JobId("runs"))
    assert admitted(ask([gang], view, view.queues["q"], NOW_S + 10.0)) == {"gang"}
    assert not start(view, job("direct", 1, 600.0), NOW_S + 11.0)
    assert start(view, gang, NOW_S + 12.0)
    ask([job("next", 1, 1.0)], view, view.queues["q"], NOW_S + 13.0)
    assert view.heads["q"].job == "next"


def test_every_step_of_a_queue_keeps_its_head() -> None:
    queue = QueueState("q", slot=1, waiting={"j": 1.0}, head=HeadReservation("gang", ("n0",), 1.0, 2.0, 3.0, 4.0))
    steps = [
        lyapunov.advanced(queue, 3, QueueSettings()),
        lyapunov.followed(queue, 3, QueueSettings(), {"j"}, set()),
        lyapunov.joined(queue, {"k": 1.0}, {}, 1),
        lyapunov.numbered(queue, 7, {}),
        lyapunov.without(queue, {"j"}),
        lyapunov.renumbered(queue, NOW_S, QueueSettings()),
    ]
    assert [step.head for step in steps] == [queue.head] * 6


def test_a_head_is_told_by_the_state_as_it_was_stored() -> None:
    head = HeadReservation("gang", ("n0",), 1.0, 2.0, 3.0, 4.0)
    view = cluster_of(gpu_nodes(1, 1))
    tell(view, QueueState("q", seq=1, head=head))
    assert view.heads == {"q": head}
    tell(view, QueueState("q"))
    assert view.heads == {}


def test_a_new_bound_holds_for_the_head_that_waits() -> None:
    view, gang = busy(100_000.0), job("gang", 4, tasks=2)
    ask([gang], view, QueueState("q"))
    context = AdmitContext(NOW_S + 5.0, 0, QueueSettings(bound_s=2.0), 0)
    plan = POLICIES["fifo"].admit([gang, job("short", 1, 1.0)], view, view.queues["q"], context)
    assert admitted(plan) == set()
    assert plan.queue.head is not None
    assert plan.queue.head.bound_s == NOW_S + 2.0


@pytest.mark.parametrize(
    ("policy", "passes"), [*[(name, {"short"}) for name in BACKFILLING if name != "fifo"], ("qos-paper", set())]
)
def test_jobs_pass_the_first_that_does_not_fit_by_the_policys_own_order(policy: str, passes: set[str]) -> None:
    gang = replace(job("gang", 4, tasks=2), priority=Priority.URGENT)
    context = AdmitContext(NOW_S, 0, QueueSettings(bound_s=BOUND_S), 0)
    jobs = [job("short", 1, 50.0), gang, job("long", 1, 600.0)]
    plan = POLICIES[policy].admit(jobs, busy(500.0), QueueState("q"), context)
    assert admitted(plan) == passes
    assert (plan.queue.head is not None) == bool(passes)


STOPPING = ("fifo-strict", "min-min", "weighted-fair", "single-gpu", "random-gpus", "qos-paper")


@pytest.mark.parametrize("policy", STOPPING)
def test_nobody_passes_the_first_that_waits_under_a_baseline(policy: str) -> None:
    gang = replace(job("gang", 4, tasks=2), priority=Priority.URGENT)
    context = AdmitContext(NOW_S, 0, QueueSettings(bound_s=BOUND_S), np.random.default_rng(0))
    jobs = [gang, job("short", 1, 50.0), job("long", 1, 600.0)]
    plan = POLICIES[policy].admit(jobs, busy(500.0), QueueState("q"), context)
    assert admitted(plan) == set()
    assert plan.queue.head is None
    alone = POLICIES[policy].admit(jobs[1:], busy(500.0), QueueState("q"), context)
    assert admitted(alone) == {"short", "long"}


def test_every_policy_is_known_to_pass_or_to_stop() -> None:
    """Capacity and Tetris go on without a reservation; proteus-paper decides for the head alone."""
    goes_on = {"capacity", "tetris-perf", "tetris-cer", "proteus-paper"}
    assert {*BACKFILLING, *STOPPING, *goes_on} == set(POLICIES)


def test_a_head_that_may_start_is_placed_though_another_becomes_the_head() -> None:
    view, gang, long = busy(), job("gang", 4, 0.0, tasks=2), job("long", 1, 90_000.0)
    ask([gang, long], view, QueueState("q"))
    view.remove_job(JobId("runs"))
    assert admitted(ask([gang, long], view, view.queues["q"], NOW_S + 500.0)) == {"gang"}
    assert view.heads["q"].job == "long"
    assert start(view, gang, NOW_S + 501.0)


def test_the_reservation_of_a_head_ends_with_its_job() -> None:
    view, gang, long = busy(), job("gang", 4, tasks=2), job("long", 1, 90_000.0)
    ask([gang], view, QueueState("q"))
    view.remove_job(JobId("runs"))
    ask([gang], view, view.queues["q"], NOW_S + 500.0)
    assert start(view, gang, NOW_S + 500.0)
    view.apply(Event(view.version + 1, view.epoch, JobsEnded((gang.id,))))
    assert view.heads == {}
    assert start(view, long, NOW_S + 510.0)
    assert ask([job("next", 1)], view, view.queues["q"], NOW_S + 511.0).queue.head is None
