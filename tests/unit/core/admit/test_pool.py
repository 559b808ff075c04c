"""The free resources of one request: slots counted before a take are counted again on the nodes it took from."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.proteus_queue import bundled, cluster_of, gpu_nodes

from placewise_core.admit.policy import AdmitContext
from placewise_core.admit.pool import Pool
from placewise_core.admit.registry import admission_policies
from placewise_core.admit.shapes import NO_OPTIONS
from placewise_core.domain.cluster import QueueSettings, QueueState
from placewise_core.domain.decision import AdmitPlan, Reason
from placewise_core.domain.events import NodesReported
from placewise_core.domain.job import Architecture, ElasticRange, Job, JobId, NodeId, Resources, Role, TaskGroup
from placewise_core.speed.throughput import ThroughputModel
from placewise_core.view.view import ClusterView

NODES, GPUS, NOW_S = 4, 4, 100.0
POLICIES = admission_policies(ThroughputModel(bundled("throughput.json")))


def elastic(name: str, most: int, cores: float) -> Job:
    demand = Resources(cpu_cores=cores, gpus=1.0)
    groups = (TaskGroup(Role.WORKER, 1, demand),)
    return Job(JobId(name), architecture=Architecture.ALL_REDUCE, groups=groups, elastic=ElasticRange(1, most))


def rigid(name: str, tasks: int, gpus: int, cores: float) -> Job:
    return Job(JobId(name), groups=(TaskGroup(Role.WORKER, tasks, Resources(cpu_cores=cores, gpus=float(gpus))),))


cores = st.sampled_from([1.0, 4.0, 9.0])
jobs = st.one_of(
    st.builds(elastic, st.uuids().map(str), st.integers(1, 6), cores),
    st.builds(rigid, st.uuids().map(str), st.integers(1, 3), st.integers(0, 3), cores),
)


def shapes(pool: Pool, job: Job) -> tuple[Sequence[int], Sequence[int], list[tuple[list[int], list[int]]]]:
    options = pool.options(job)
    takes = pool.takes(job, options, len(options) - 1) if len(options) else ()
    return options.nodes.tolist(), options.gpus.tolist(), [(t.rows.tolist(), t.counts.tolist()) for t in takes]


@given(
    st.lists(jobs, min_size=1, max_size=8), st.lists(jobs, min_size=1, max_size=4), st.sets(st.integers(0, NODES - 1))
)
def test_a_pool_that_was_asked_before_answers_as_one_that_was_not(
    taken: Sequence[Job], asked: Sequence[Job], barred: set[int]
) -> None:
    view = cluster_of(gpu_nodes(NODES, GPUS))
    pool, unasked = Pool.free(view, NOW_S), Pool.free(view, NOW_S)
    mask = np.isin(np.arange(NODES), list(barred))
    for job in taken:
        for other in asked:
            pool.options(other)
        if not len(options := pool.options(job)):
            continue
        takes = pool.takes(job, options, len(options) - 1)
        pool.apply(takes)
        unasked.apply(takes)
    fresh = unasked.without(np.zeros(NODES, dtype=np.bool_))
    for other in asked:
        assert shapes(pool, other) == shapes(fresh, other)
        assert shapes(pool.without(mask), other) == shapes(fresh.without(mask), other)


def test_what_fits_nowhere_is_not_looked_at_again_after_a_take() -> None:
    view = cluster_of(gpu_nodes(NODES, GPUS))
    pool = Pool.free(view, NOW_S)
    large, small = rigid("large", 1, GPUS + 1, 1.0), rigid("small", 1, 1, 1.0)
    assert pool.options(large) is NO_OPTIONS
    pool.take(small, pool.options(small), 0)
    assert list(pool.fitting([large, small])) == [small]


def test_what_one_pool_takes_another_of_the_same_view_still_has() -> None:
    view = cluster_of(gpu_nodes(NODES, GPUS))
    first, second = Pool.free(view, NOW_S), Pool.free(view, NOW_S)
    first.take(small := rigid("small", 1, 1, 1.0), first.options(small), 0)
    assert first.total_gpus == NODES * GPUS - 1
    assert second.total_gpus == Pool.free(view, NOW_S).total_gpus == view.usage.free_gpus.sum() == NODES * GPUS


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_fork_is_asked_after_its_view_got_nodes_with_another_resource(name: str) -> None:
    """As a shadow is, and the rest of a request that pauses."""
    view = cluster_of(gpu_nodes(NODES, GPUS))

    def asked(at: ClusterView, job: Job) -> AdmitPlan:
        context = AdmitContext(NOW_S, 0, QueueSettings(), np.random.default_rng(0))
        return POLICIES[name].admit([job], at, QueueState("q"), context)

    asked(view, rigid("first", 1, 1, 1.0))
    fork = view.fork()
    (more,) = gpu_nodes(1, GPUS)
    extended = replace(more.capacity, extended={"licence": 2.0})
    view.apply_change(NodesReported((replace(more, id=NodeId("another"), capacity=extended),)))
    licensed = TaskGroup(Role.WORKER, 1, Resources(cpu_cores=1.0, gpus=1.0, extended={"licence": 1.0}))
    (answer,) = asked(fork, Job(JobId("licensed"), groups=(licensed,))).admissions
    assert [blocker.reason for blocker in answer.blockers] == [Reason.NO_FEASIBLE_SHAPE]
