"""`keep_together` and `exclusive_network` bind every policy: checked against an enumeration of all placements."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.explored import AHEAD, HARMONY, LDWP, SAMPLE, SEARCH, on_nodes
from tests.fakes.most_memory import MostMemory
from tests.fakes.net_policies import Spreads
from tests.fakes.place_cases import context, node, view_of
from tests.fakes.quick.examples import examples

from placewise_core.domain.cluster import Assignment, Node, RunningJob
from placewise_core.domain.decision import Outcome, Reason
from placewise_core.domain.job import GpuSharing, Job, JobId, KeepTogether, NodeId, Resources, Role, Subtask, TaskGroup
from placewise_core.gang.gang import Gang
from placewise_core.gang.greedy import can_fit
from placewise_core.gang.policy import Action, PlacementPolicy, action_of
from placewise_core.gang.why import explain
from placewise_core.policies.harmony import Harmony
from placewise_core.policies.profiled.tables import packaged_tables
from placewise_core.policies.registry import placement_policies
from placewise_core.view.domains import domains_of, spans
from placewise_core.view.view import CPU, GPUS, ClusterView

INTERFERENCE = packaged_tables().interference
POLICIES: dict[str, PlacementPolicy] = {
    **placement_policies(others=[MostMemory()]),
    "harmony": HARMONY,
    "harmony-of-few": Harmony(Spreads(), placement_policies()["consolidate"], most_nodes=2),
    "search": SEARCH,
    "ldwp": LDWP,
    "ahead": AHEAD,
    "harmony-sample": SAMPLE,
}
DEAD_ENDS = {"random"}  # draws without a look ahead, and is not tried again
WISHES = st.sampled_from([*KeepTogether, KeepTogether.NODE, KeepTogether.RACK])


@st.composite
def clusters(draw: st.DrawFn) -> list[Node]:
    return [
        node(
            f"n{i}",
            gpus=draw(st.integers(0, 4)),
            cpu=draw(st.sampled_from([2.0, 4.0, 8.0])),
            rack=draw(st.sampled_from(["", "r1", "r2"])),
            max_jobs_per_gpu=draw(st.integers(1, 3)),
        )
        for i in range(draw(st.integers(1, 5)))
    ]


@st.composite
def gangs(draw: st.DrawFn, name: str, is_plain: bool = False) -> Job:
    """With `is_plain` of one group on whole GPUs: then counting is exact, and so is the enumeration."""
    demand = Resources(
        draw(st.sampled_from([0.0, 1.0, 2.0])), draw(st.sampled_from([1, 1, 2] if is_plain else [0, 0.5, 1]))
    )
    most = draw(st.sampled_from([0, 0, 1, 2]))
    model = "" if is_plain else draw(st.sampled_from(["", "", "V100"]))
    groups = [TaskGroup(Role.WORKER, draw(st.integers(1, 4)), demand, max_per_node=most, gpu_model=model)]
    if not is_plain and draw(st.booleans()):
        groups.append(TaskGroup(Role.PARAMETER_SERVER, draw(st.integers(1, 2)), Resources(2.0)))
    if not is_plain and draw(st.integers(0, 3)) == 0:
        groups.append(TaskGroup(Role.WORKER, draw(st.integers(1, 2)), Resources(1.0, draw(st.sampled_from([0, 1])))))
    return Job(
        JobId(name),
        model="resnet50",
        groups=tuple(groups),
        keep_together=draw(WISHES),
        exclusive_network=draw(st.booleans()),
        subtasks=(Subtask("s", "kind", size=100.0),) if is_plain and draw(st.booleans()) else (),
        gpu_sharing=GpuSharing(not is_plain and draw(st.booleans()), 4.0),
    )


@st.composite
def situations(draw: st.DrawFn, is_plain: bool = False) -> tuple[list[Node], list[Job], list[str]]:
    """A cluster, the jobs that come one after the other, and who places each."""
    jobs = [draw(gangs(f"j{i}", is_plain)) for i in range(draw(st.integers(1, 5)))]
    return draw(clusters()), jobs, [draw(st.sampled_from(sorted(POLICIES))) for _ in jobs]


def check(view: ClusterView, job: Job, tasks: Sequence[Assignment]) -> None:
    """Raises AssertionError unless the placement keeps the wishes of the job and of those there."""
    nodes = {task.node for task in tasks}
    racks = {view.nodes.records[view.nodes.index[name]].rack or name for name in nodes}
    assert job.keep_together is not KeepTogether.NODE or len(nodes) == 1
    assert job.keep_together is not KeepTogether.RACK or len(racks) == 1
    if len(nodes) > 1:
        for other in view.jobs.values():
            if spans(other) and other.id != job.id and (job.exclusive_network or other.job.exclusive_network):
                assert nodes.isdisjoint(task.node for task in other.assignments), other.id


def keeps(view: ClusterView, job: Job, tasks: Sequence[Assignment]) -> bool:
    try:
        check(view, job, tasks)
    except AssertionError:
        return False
    return True


def enumerated(view: ClusterView, job: Job) -> Iterator[tuple[Assignment, ...]]:
    """Every placement of a gang of one group on whole GPUs that fits and keeps all wishes."""
    [group] = job.groups
    tasks = [Assignment(f"worker-{i}", group.role, NodeId(""), (), group.demand) for i in range(group.count)]
    free = view.usage.countable_free
    for nodes in itertools.product(range(view.nodes.size), repeat=group.count):
        counts = [nodes.count(m) for m in range(view.nodes.size)]
        if group.max_per_node and max(counts) > group.max_per_node:
            continue
        if all(
            free[CPU, m] >= n * group.demand.cpu_cores and free[GPUS, m] >= n * group.demand.gpus
            for m, n in enumerate(counts)
        ):
            placed = on_nodes(tasks, [view.nodes.records[m].id for m in nodes])
            if keeps(view, job, placed):
                yield placed


@given(situations())
@settings(max_examples=examples(240), deadline=None)
def test_no_gang_is_apart_or_beside_a_network_that_is_taken(situation: tuple[list[Node], list[Job], list[str]]) -> None:
    made, jobs, policies = situation
    view = view_of(made)
    for job, policy in zip(jobs, policies, strict=True):
        asked = context(interference=INTERFERENCE)
        proposal = POLICIES[policy].propose(job, view, asked)
        if proposal is None:
            assert policy in DEAD_ENDS or explain(job, view, context(interference=INTERFERENCE))[1]
            continue
        check(view, job, proposal.assignments)
        view.add_job(RunningJob(job, proposal.assignments))


@given(situations(is_plain=True))
@settings(max_examples=examples(160), deadline=None)
def test_a_gang_is_refused_only_if_no_placement_keeps_the_wishes(
    situation: tuple[list[Node], list[Job], list[str]],
) -> None:
    made, jobs, policies = situation
    view = view_of(made)
    for job, policy in zip(jobs, policies, strict=True):
        proposal = POLICIES[policy].propose(job, view, context())
        possible = any(enumerated(view, job))
        if proposal is None:
            assert not possible or policy in DEAD_ENDS
            outcome, blockers = explain(job, view, context())
            empty = view_of(made)
            assert policy in DEAD_ENDS or (outcome is Outcome.WAIT) == any(enumerated(empty, job))
            apart = replace(job, keep_together=KeepTogether.NONE, exclusive_network=False)
            calm = view_of(made, [replace(r, job=replace(r.job, exclusive_network=False)) for r in view.jobs.values()])
            wished = any(enumerated(calm if outcome is Outcome.WAIT else empty, apart))
            named = {Reason.KEEP_TOGETHER, Reason.EXCLUSIVE_NETWORK} & {blocker.reason for blocker in blockers}
            assert possible or bool(named) == wished
            continue
        assert possible
        check(view, job, proposal.assignments)
        view.add_job(RunningJob(job, proposal.assignments))


@given(clusters(), gangs("job"), st.booleans())
@settings(max_examples=examples(160), deadline=None)
def test_the_domains_that_hold_a_gang_are_those_where_best_fit_places_it(
    made: list[Node], job: Job, is_crossed: bool
) -> None:
    view = view_of(made)
    if is_crossed and len(made) > 2:
        tasks = [Assignment(f"worker-{i}", Role.WORKER, NodeId(f"n{i}"), (), Resources(1.0)) for i in range(2)]
        view.add_job(RunningJob(Job(JobId("owner"), exclusive_network=True), tuple(tasks)))
    domains = domains_of(job, view)
    if domains is None:
        return
    open_nodes = Gang(job, view, context(interference=INTERFERENCE)).usable
    for m in range(view.nodes.size):
        within = context(
            interference=INTERFERENCE, barred=~domains.around(m), heeds_together=False, heeds_network=False
        )
        assert open_nodes[m] == can_fit(job, view, within), m


@st.composite
def roomy(draw: st.DrawFn) -> tuple[list[Node], list[Job]]:
    """A cluster with several domains for the last of the jobs."""
    racks = draw(st.permutations(["r1", "r1", "r2", "r2"]))
    made = [node(f"n{i}", gpus=draw(st.integers(1, 3)), rack=racks[i]) for i in range(draw(st.integers(3, 4)))]
    group = TaskGroup(Role.WORKER, 2, Resources(1.0, 1.0), max_per_node=draw(st.sampled_from([0, 1])))
    before = Job(JobId("before"), groups=(group,), exclusive_network=True)
    together = draw(WISHES)
    last = Job(JobId("last"), groups=(replace(group, max_per_node=0),), keep_together=together, exclusive_network=True)
    servers = TaskGroup(Role.PARAMETER_SERVER, 1, Resources(1.0))
    return made, [before, replace(last, groups=(*last.groups, servers)) if draw(st.booleans()) else last]


@pytest.mark.parametrize("name", ["random", "ahead", "harmony-sample"])
@given(roomy())
@settings(max_examples=examples(60), deadline=None)
def test_the_probabilities_of_what_may_be_drawn_sum_to_one(name: str, situation: tuple[list[Node], list[Job]]) -> None:
    made, (before, last) = situation
    view, policy = view_of(made), POLICIES[name]
    if (proposal := POLICIES["load-balance"].propose(before, view, context())) is not None:
        view.add_job(RunningJob(before, proposal.assignments))
    if (drawn := policy.propose(last, view, context())) is None:
        return
    given = _every_probability(last, view, policy, drawn.assignments)
    assert sum(given.values()) == pytest.approx(1.0) or (name in DEAD_ENDS and sum(given.values()) < 1.0)
    for seed in range(8):
        proposal = policy.propose(last, view, context(seed))
        if proposal is not None:
            assert proposal.propensity == pytest.approx(given[action_of(proposal.assignments)])


def _every_probability(
    job: Job, view: ClusterView, policy: PlacementPolicy, tasks: Sequence[Assignment]
) -> dict[Action, float]:
    """The policy's word on every assignment of tasks to nodes. Those that break a wish have none."""
    found: dict[Action, float] = {}
    for nodes in itertools.product([n.id for n in view.nodes.records], repeat=len(tasks)):
        placed = on_nodes(tasks, nodes)
        if probability := policy.probability(placed, job, view, context()):
            check(view, job, placed)
            found[action_of(placed)] = probability
    return found
