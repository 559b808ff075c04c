"""What holds for every placement policy on any cluster: no oversubscription, all or nothing, nothing left behind."""

import copy
import dataclasses
import itertools

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.fakes.most_memory import MostMemory
from tests.fakes.place_cases import arrays, context, view_of
from tests.fakes.quick.examples import examples

from placewise_core.domain.cluster import Assignment, Gpu, Node, NodeState, NodeTelemetry, RunningJob
from placewise_core.domain.job import GpuSharing, Job, JobId, NodeId, Resources, Role, TaskGroup
from placewise_core.gang.gpus import gpu_model_of, pick_gpus, takers
from placewise_core.gang.greedy import ScoredPolicy
from placewise_core.gang.policy import Proposal
from placewise_core.policies.profiled.tables import packaged_tables
from placewise_core.policies.registry import placement_policies
from placewise_core.view.view import GPUS, ClusterView

POLICIES = placement_policies(others=[MostMemory()])
INTERFERENCE = packaged_tables().interference
MODELS = ("resnet50", "vgg16", "lm", "transformer", "recommendation", "something-new")

amounts = st.sampled_from([0.0, 0.1, 0.5, 1.0, 3.0, 7.3])


@st.composite
def nodes(draw: st.DrawFn) -> list[Node]:
    count = draw(st.integers(1, 6))
    made = []
    for i in range(count):
        gpus = draw(st.integers(0, 4))
        model = draw(st.sampled_from(["V100", "K80"]))
        made.append(
            Node(
                id=NodeId(f"n{i}"),
                capacity=Resources(draw(st.sampled_from([4.0, 8.0, 16.0])), gpus, 64, 16 * gpus, 10),
                gpus=tuple(Gpu(g, model, 16) for g in range(gpus)),
                max_jobs_per_gpu=draw(st.integers(1, 3)),
                rack=draw(st.sampled_from(["", "r1", "r2"])),
                state=draw(st.sampled_from([NodeState.READY] * 4 + [NodeState.DOWN, NodeState.DRAINING])),
                telemetry=draw(
                    st.sampled_from(
                        [
                            NodeTelemetry(),
                            NodeTelemetry(observe_time_s=990.0, gpu_celsius=95, limit_celsius=90),
                            NodeTelemetry(observe_time_s=100.0),
                            NodeTelemetry(observe_time_s=990.0, gpu_celsius=50, limit_celsius=90),
                        ]
                    )
                ),
            )
        )
    return made


@st.composite
def jobs(draw: st.DrawFn, name: str) -> Job:
    groups = [
        TaskGroup(
            role=Role.WORKER,
            count=draw(st.integers(1, 3)),
            demand=Resources(
                draw(amounts), draw(st.sampled_from([0, 0.25, 0.5, 1, 2])), draw(amounts), draw(amounts), draw(amounts)
            ),
            max_per_node=draw(st.sampled_from([0, 0, 1, 2])),
            gpu_model=draw(st.sampled_from(["", "", "V100"])),
        )
    ]
    if draw(st.booleans()):
        groups.append(
            TaskGroup(Role.PARAMETER_SERVER, draw(st.integers(1, 2)), Resources(draw(amounts), 0, draw(amounts)))
        )
    return Job(
        JobId(name),
        model=draw(st.sampled_from(MODELS)),
        groups=tuple(groups),
        gpu_sharing=GpuSharing(draw(st.booleans()), draw(st.sampled_from([1.2, 1.8, 2.5, 4.0]))),
    )


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[Node], list[Job], str]:
    count = draw(st.integers(1, 5))
    return draw(nodes()), [draw(jobs(f"j{i}")) for i in range(count)], draw(st.sampled_from(sorted(POLICIES)))


def place_all(view: ClusterView, asked: list[Job], policy: str) -> list[tuple[Job, Proposal]]:
    placed = []
    for job in asked:
        proposal = POLICIES[policy].propose(job, view, context(interference=INTERFERENCE))
        if proposal is not None:
            view.add_job(RunningJob(job, proposal.assignments))
            placed.append((job, proposal))
    return placed


@given(situations())
@settings(max_examples=examples(120), deadline=None)
def test_nothing_is_handed_out_twice(situation: tuple[list[Node], list[Job], str]) -> None:
    made, asked, policy = situation
    view = view_of(made)
    place_all(view, asked, policy)
    pooled = [row for row in range(len(view.nodes.columns)) if row != GPUS]
    assert (view.usage.free[pooled] >= 0).all()
    assert (view.usage.gpu_fraction_free[~view.usage.gpu_is_exclusive & ~_shares_whole(view)] >= 0).all()
    assert (view.usage.gpu_memory_free >= 0).all()
    assert (view.usage.gpu_tenant_count[view.usage.gpu_is_exclusive] == 1).all()
    most = np.maximum(view.nodes.max_jobs_per_gpu, 1)[:, None]
    assert (view.usage.gpu_tenant_count <= most).all()


def _shares_whole(view: ClusterView) -> np.ndarray:
    """GPUs that some job shares as a whole: fractions do not add up there, the slowdown limits rule."""
    return np.array(
        [
            [any(t.fraction == 1.0 for t in view.usage.tenants(m, g)) for g in range(view.nodes.gpu_exists.shape[1])]
            for m in range(view.nodes.size)
        ],
        dtype=bool,
    ).reshape(view.nodes.gpu_exists.shape)


@given(situations())
@settings(max_examples=examples(120), deadline=None)
def test_a_gang_is_placed_whole_on_usable_nodes(situation: tuple[list[Node], list[Job], str]) -> None:
    made, asked, policy = situation
    view = view_of(made)
    for job, proposal in place_all(view, asked, policy):
        assert len(proposal.assignments) == job.task_count
        assert len({a.task for a in proposal.assignments}) == job.task_count
        for assignment in proposal.assignments:
            m = view.nodes.index[assignment.node]
            host = view.nodes.records[m]
            assert host.state is NodeState.READY
            assert host.telemetry.observe_time_s in (0.0, 990.0)
            assert not host.telemetry.gpu_celsius >= 90
            assert len(assignment.gpu_indices) == int(np.ceil(assignment.demand.gpus))
            assert all(view.nodes.gpu_exists[m, g] for g in assignment.gpu_indices)
        _check_groups(job, proposal, view)


def _check_groups(job: Job, proposal: Proposal, view: ClusterView) -> None:
    tasks = iter(proposal.assignments)
    for group in job.groups:
        mine = list(itertools.islice(tasks, group.count))
        on_node = [a.node for a in mine]
        if group.max_per_node:
            assert max(on_node.count(n) for n in on_node) <= group.max_per_node
        if group.gpu_model and group.demand.gpus:
            assert all(
                gpu_model_of(view, view.nodes.index[a.node], g) == group.gpu_model for a in mine for g in a.gpu_indices
            )


@st.composite
def sharers(draw: st.DrawFn) -> tuple[list[Node], list[Job], str]:
    """Two GPUs that many jobs want to share, each with its own limit."""
    gpu = draw(st.sampled_from(["V100", "K80"]))
    host = Node(NodeId("n0"), Resources(64, 2, 256, 32, 10), (Gpu(0, gpu, 16), Gpu(1, gpu, 16)), max_jobs_per_gpu=4)
    asked = [
        Job(
            JobId(f"j{i}"),
            model=draw(st.sampled_from(MODELS)),
            groups=(TaskGroup(Role.WORKER, 1, Resources(1, draw(st.sampled_from([0.25, 0.5, 1])))),),
            gpu_sharing=GpuSharing(True, draw(st.sampled_from([1.2, 1.5, 1.8, 2.5, 4.0]))),
        )
        for i in range(draw(st.integers(3, 6)))
    ]
    return [host], asked, draw(st.sampled_from(sorted(POLICIES)))


@given(sharers())
@settings(max_examples=examples(200), deadline=None)
def test_nobody_is_slowed_beyond_their_limit(situation: tuple[list[Node], list[Job], str]) -> None:
    made, asked, policy = situation
    view = view_of(made)
    place_all(view, asked, policy)
    for m, g in itertools.product(range(view.nodes.size), range(view.nodes.gpu_exists.shape[1])):
        tenants = view.usage.tenants(m, g)
        for tenant in tenants if len(tenants) > 1 else ():
            others = [t.model for t in tenants if t.job_id != tenant.job_id]
            speed = INTERFERENCE.relative_speed(tenant.model, others, gpu_model_of(view, m, g))
            assert speed >= 1.0 / view.jobs[tenant.job_id].job.gpu_sharing.max_slowdown - 1e-6


@given(situations())
@settings(max_examples=examples(100), deadline=None)
def test_nodes_are_scored_anew_only_where_that_changes_nothing(situation: tuple[list[Node], list[Job], str]) -> None:
    """A policy that says that its scores are by node is asked about nodes ahead; asked every turn it says the same."""
    made, asked, name = situation
    policy = POLICIES[name]
    assume(isinstance(policy, ScoredPolicy) and policy.is_by_node)
    view = view_of(made)
    place_all(view, asked[:-1], name)
    one_by_one = copy.copy(policy)
    one_by_one.is_by_node = one_by_one.fills_nodes = False
    found = [p.propose(asked[-1], view, context(interference=INTERFERENCE)) for p in (policy, one_by_one)]
    assert found[0] == found[1]


@given(situations())
@settings(max_examples=examples(120), deadline=None)
def test_a_proposal_leaves_the_view_as_it_was(situation: tuple[list[Node], list[Job], str]) -> None:
    made, asked, policy = situation
    view = view_of(made)
    place_all(view, asked[:-1], policy)
    before = arrays(view)
    POLICIES[policy].propose(asked[-1], view, context(interference=INTERFERENCE))
    _assert_same(before, arrays(view))


@given(situations(), st.randoms())
@settings(max_examples=examples(120), deadline=None)
def test_giving_everything_back_in_any_order_is_the_identity(
    situation: tuple[list[Node], list[Job], str], rng: object
) -> None:
    made, asked, policy = situation
    view = view_of(made)
    before = arrays(view)
    placed = place_all(view, asked, policy)
    rng.shuffle(placed)  # type: ignore[attr-defined]
    for job, _ in placed:
        view.remove_job(job.id)
    _assert_same(before, arrays(view))


def _assert_same(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> None:
    assert before.keys() == after.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(value, after[name], err_msg=name)


@given(situations(), st.permutations(range(6)))
@settings(max_examples=examples(150), deadline=None)
def test_the_order_of_nodes_does_not_matter_up_to_ties(
    situation: tuple[list[Node], list[Job], str], order: list[int]
) -> None:
    """Nodes made unlike each other in every resource: then no two have equal scores, and the choice is the same."""
    made, asked, policy = situation
    assume(policy != "random")
    unlike = [
        dataclasses.replace(
            n,
            capacity=dataclasses.replace(
                n.capacity,
                cpu_cores=n.capacity.cpu_cores + 1 + i / 16,
                memory_gib=64 + i * 1.25,
                network_gbps=10 + i * 0.75,
            ),
        )
        for i, n in enumerate(made)
    ]
    permuted = [unlike[i] for i in order if i < len(unlike)]
    job = asked[0]
    here = POLICIES[policy].propose(job, view_of(unlike), context(interference=INTERFERENCE, is_explaining=True))
    there = POLICIES[policy].propose(job, view_of(permuted), context(interference=INTERFERENCE, is_explaining=True))
    # The two searches are one until their first tie: whichever finds a place has that tie among its candidates.
    if any(_has_ties(proposal) for proposal in (here, there) if proposal is not None):
        return
    assert (here is None) == (there is None)
    if here is not None and there is not None:
        assert here.assignments == there.assignments


def _has_ties(proposal: Proposal) -> bool:
    by_task: dict[str, list[float]] = {}
    for candidate in proposal.candidates:
        by_task.setdefault(candidate.task, []).append(candidate.score)
    return any(
        np.isclose(a, b, rtol=1e-9, atol=1e-9)
        for scores in by_task.values()
        for a, b in itertools.combinations(scores, 2)
    )


@st.composite
def shared_clusters(draw: st.DrawFn) -> tuple[ClusterView, Job]:
    """Nodes of two GPU models crowded with sharing jobs, and a newcomer that may be on some of them already."""
    view = view_of(
        [
            Node(
                NodeId(f"n{i}"),
                Resources(64, 2, 256, 32, 10),
                (Gpu(0, model, 16), Gpu(1, model, 16)),
                max_jobs_per_gpu=3,
            )
            for i, model in enumerate(["V100", "K80", "V100"])
        ]
    )
    limits = st.sampled_from([1.3, 1.6, 2.0, 2.6, 4.0])
    for i in range(draw(st.integers(2, 9))):
        demand = Resources(1, draw(st.sampled_from([0.25, 1, 2])), 1)
        tenant = Job(
            JobId(draw(st.sampled_from([f"t{i}"] * 4 + ["newcomer"]))),
            model=draw(st.sampled_from(MODELS[:5])),
            groups=(TaskGroup(Role.WORKER, 1, demand),),
            gpu_sharing=GpuSharing(True, draw(limits)),
        )
        m = draw(st.integers(0, 2))
        count = int(np.ceil(demand.gpus))
        open_gpus = [g for g in (0, 1) if view.usage.gpu_tenant_count[m, g] < 3][:count]
        if len(open_gpus) == count and tenant.id not in view.jobs:
            held = Assignment("worker-0", Role.WORKER, NodeId(f"n{m}"), tuple(open_gpus), demand)
            view.add_job(RunningJob(tenant, (held,)))
    group = TaskGroup(Role.WORKER, 1, Resources(1, draw(st.sampled_from([0.25, 0.5, 1, 2])), 1))
    model = draw(st.sampled_from(MODELS[:5]))
    return view, Job(JobId("newcomer"), model, groups=(group,), gpu_sharing=GpuSharing(True, draw(limits)))


@given(shared_clusters())
@settings(max_examples=examples(300), deadline=None)
def test_the_listed_nodes_are_those_that_take_a_task(situation: tuple[ClusterView, Job]) -> None:
    """By combination of tenants, against GPU by GPU."""
    view, newcomer = situation
    group = newcomer.groups[0]
    demand = view.nodes.demand_vector(group.demand)
    assert demand is not None
    mask = view.slots.feasible(demand, group, newcomer.gpu_sharing, view.usable(1000.0))
    found = takers(view, mask, newcomer, group, demand, INTERFERENCE)
    for m in range(view.nodes.size):
        does = mask[m] and pick_gpus(view, m, newcomer, group, demand, INTERFERENCE) is not None
        assert found[m] == does, m
