"""ClusterView: what claims, give-backs and reports do to the arrays."""

from dataclasses import replace

import numpy as np
import pytest
from tests.fakes.place_cases import arrays, gang, node, running, view_of

from placewise_core.domain.cluster import Gpu, NodeState, NodeTelemetry
from placewise_core.domain.events import ClusterDeleted, Event, JobsEnded, NodesReported
from placewise_core.domain.job import GpuSharing, NodeId, Resources
from placewise_core.view.view import CPU, GPUS, MEMORY


def test_a_claim_takes_and_a_give_back_restores_every_array() -> None:
    view = view_of([node("a"), node("b")])
    before = arrays(view)
    held = running("r", "a", [1, 2], Resources(0.1, 2, 0.3, 0.7, 0.9))
    view.add_job(held)
    assert view.usage.free_gpus.tolist() == [2, 4]
    assert view.usage.first_free_gpus(0, 9) == (0, 3)
    assert view.usage.free[GPUS, 0] == 2
    assert view.usage.load[0] > 0
    assert list(view.usage.tasks_at(0)) == [("", held.assignments[0].demand)]
    view.remove_job(held.id)
    for name, value in arrays(view).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


@pytest.mark.parametrize("seed", range(20))
def test_a_job_gives_back_at_once_what_its_tasks_give_back_one_by_one(seed: int) -> None:
    """Gangs on whole and shared GPUs, in any order, on nodes with others; two of one job may share a GPU."""
    rng = np.random.default_rng(seed)
    views = [view_of([node(name, gpus=8, max_jobs_per_gpu=4) for name in "ab"]) for _ in range(2)]
    jobs = []
    for i in range(6):
        demand, sharing = Resources(1, 1 / 4 if i % 3 else 1, 1), GpuSharing(i % 3 > 0, 10.0)
        first = running(f"r{i}", "a", [], demand, gpu_sharing=sharing)
        gpus = rng.permutation(8)[: int(rng.integers(1, 6))].tolist()
        tasks = [
            replace(first.assignments[0], task=f"w{k}", node=NodeId(str(rng.choice(["a", "b"]))), gpu_indices=(g,))
            for k, g in enumerate([*gpus, *gpus[:1]] if i % 3 else gpus)
        ]
        jobs.append(replace(first, assignments=tuple(sorted(tasks, key=lambda task: task.node))))
    for view in views:
        for job in jobs:
            view.add_job(job)
    for i in rng.permutation(6).tolist():
        for task in jobs[i].assignments:
            views[0].usage.unclaim(jobs[i].job, task)
        views[1].remove_job(jobs[i].id)
        one_by_one, at_once = arrays(views[0]), arrays(views[1])
        for name, value in at_once.items():
            if "stamp" not in name:
                np.testing.assert_array_equal(value, one_by_one[name], err_msg=name)
        assert [views[0].usage.idle_gpus(m) for m in range(2)] == [views[1].usage.idle_gpus(m) for m in range(2)]


def test_load_is_the_sum_of_shares_of_what_the_node_has() -> None:
    view = view_of([node("a"), node("cpu-only", gpus=0)])
    view.add_job(running("r", "a", [0], Resources(8, 1, 64, 0, 5)))
    view.add_job(running("s", "cpu-only", [], Resources(8, 0, 64, 0, 5)))
    assert view.usage.load.tolist() == pytest.approx([0.25 + 0.5 + 0.1 + 0.25, 0.25 + 0.5 + 0.1])


def test_a_host_may_take_three_times_the_cores_of_a_node() -> None:
    """Free cores of minus twice the scale by which tightness divides, and no GPU free: once a division by zero."""
    view = view_of([node("a", gpus=0, cpu=8)])
    view.add_job(running("r", "a", [], Resources(cpu_cores=26)))
    assert view.usage.free[CPU, 0] == -18
    assert view.usage.tightness.tolist() == [0.5]


def test_a_job_that_is_added_again_replaces_what_it_held() -> None:
    view = view_of([node("a"), node("b")])
    view.add_job(running("r", "a", [0]))
    view.add_job(running("r", "b", [0, 1]))
    assert view.usage.free_gpus.tolist() == [4, 2]
    assert (view.usage.tasks_on(0), view.usage.tasks_on(1)) == (0, 1)
    assert view.usage.is_on(running("r", "b", []).id, 1)


def test_three_thirds_of_a_gpu_fit_and_leave_nothing() -> None:
    share = GpuSharing(True, 10.0)
    view = view_of([node("a", gpus=1, max_jobs_per_gpu=4)])
    for i in range(3):
        view.add_job(running(f"r{i}", "a", [0], Resources(1, 1 / 3, 1), gpu_sharing=share))
    assert 0 <= view.usage.gpu_fraction_free[0, 0] < 1e-5
    assert view.usage.gpu_tenant_count[0, 0] == 3
    assert not view.usage.gpu_is_exclusive[0, 0]


def test_demand_vectors_are_remembered_and_cannot_be_written() -> None:
    view = view_of([node("a")])
    vector = view.nodes.demand_vector(Resources(1.5, 1, 2))
    assert vector is not None
    assert vector is view.nodes.demand_vector(Resources(1.5, 1, 2))
    assert (vector[CPU], vector[MEMORY], vector[GPUS]) == (1.5, 2.0, 1.0)
    with pytest.raises(ValueError, match="read-only"):
        vector[0] = 0.0


def test_demand_of_a_resource_no_node_has_is_none_unless_nothing_is_asked_of_it() -> None:
    view = view_of([node("a")])
    assert view.nodes.demand_vector(Resources(1, extended={"fpga": 1.0})) is None
    assert view.nodes.demand_vector(Resources(1, extended={"fpga": 0.0})) is not None


def test_stamps_grow_where_something_changed_and_only_there() -> None:
    view = view_of([node("a"), node("b")])
    before = view.usage.node_stamp.copy()
    view.add_job(running("r", "b", [0]))
    after_claim = view.usage.node_stamp.copy()
    view.remove_job(running("r", "b", [0]).id)
    assert (before[0], before[1] < after_claim[1] < view.usage.node_stamp[1]) == (view.usage.node_stamp[0], True)


def test_a_report_of_telemetry_keeps_jobs_and_layout() -> None:
    view = view_of([node("a")], [running("r", "a", [0])])
    layout, telemetry = view.nodes.layout_stamp, view.nodes.telemetry_stamp
    hot = NodeTelemetry(gpu_celsius=95, limit_celsius=90, observe_time_s=50)
    view.apply(Event(1, "e", NodesReported((node("a", telemetry=hot),))))
    assert (view.version, view.nodes.layout_stamp) == (1, layout)
    assert view.nodes.telemetry_stamp > telemetry
    assert view.nodes.is_hot.tolist() == [True]
    assert view.usable(60.0).tolist() == [False]
    assert view.usage.free_gpus.tolist() == [3]
    view.apply(Event(2, "e", NodesReported((node("a", telemetry=replace(hot, gpu_celsius=60)),))))
    assert view.usable(60.0).tolist() == [True]
    assert view.usable(500.0).tolist() == [False]  # stale by then


def test_a_report_of_a_new_gpu_rebuilds_and_keeps_what_jobs_hold() -> None:
    view = view_of([node("a", gpus=1)], [running("r", "a", [0])])
    layout = view.nodes.layout_stamp
    view.apply_change(NodesReported((node("a", gpus=2), node("b"))))
    assert view.nodes.layout_stamp > layout
    assert view.usage.free_gpus.tolist() == [1, 4]
    assert view.usage.first_free_gpus(0, 1) == (1,)


def test_a_report_without_gpus_that_jobs_hold_keeps_the_jobs() -> None:
    view = view_of([node("a")])
    view.add_job(running("r", "a", [1, 3]))
    view.apply_change(NodesReported((node("a", gpus=2),)))
    assert view.usage.free_gpus.tolist() == [1]
    view.apply_change(NodesReported((node("a", gpus=0),)))
    assert (view.usage.free_gpus.tolist(), view.usage.tasks_on(0)) == ([0], 1)
    view.remove_job(running("r", "a", []).id)
    assert view.usage.tasks_on(0) == 0


def test_an_event_out_of_order_or_of_another_life_is_refused() -> None:
    view = view_of([node("a")])
    for event in (Event(2, "e", JobsEnded(())), Event(1, "other", JobsEnded(()))):
        with pytest.raises(ValueError, match="does not follow"):
            view.apply(event)


def test_emptied_is_ready_cool_and_apart() -> None:
    hot = NodeTelemetry(gpu_celsius=95, limit_celsius=90, observe_time_s=50)
    view = view_of([node("a", state=NodeState.DOWN), node("b", telemetry=hot)], [running("r", "b", [0, 1])])
    before = arrays(view)
    empty = view.emptied()
    assert empty.usable(1e9).tolist() == [True, True]
    assert empty.usage.free_gpus.tolist() == [4, 4]
    assert not empty.jobs
    empty.add_job(running("x", "a", [0]))
    for name, value in arrays(view).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)
    assert list(view.jobs) == ["r"]


def test_gpu_indices_need_not_be_consecutive() -> None:
    host = replace(node("a"), gpus=(Gpu(1, "V100", 16), Gpu(5, "V100", 16)))
    view = view_of([host])
    assert view.usage.free_gpus.tolist() == [2]
    assert view.usage.first_free_gpus(0, 2) == (1, 5)


def test_racks_and_gpu_models_are_numbered() -> None:
    view = view_of([node("a", rack="r1"), node("b", model="K80"), node("c", rack="r1")])
    assert view.nodes.rack[0] == view.nodes.rack[2] >= 0 > view.nodes.rack[1]
    assert view.nodes.gpu_model_names() == ("V100", "K80")
    assert view.nodes.gpu_model_id("K80") == 1
    assert view.nodes.gpu_model_id("H100") == -1


def test_a_deleted_cluster_has_no_nodes_and_no_jobs() -> None:
    view = view_of([node("a")], [running("r", "a", [0])])
    view.apply_change(ClusterDeleted())
    assert (view.nodes.size, len(view.jobs)) == (0, 0)


def test_a_claim_on_a_node_that_left_is_passed_over() -> None:
    view = view_of([node("a")])
    job = gang("x")
    view.usage.claim(job, running("x", "gone", [0]).assignments[0])
    view.usage.unclaim(job, running("x", "gone", [0]).assignments[0])
    assert view.usage.free_gpus.tolist() == [4]


def test_combinations_of_tenants_are_numbered_and_forgotten_when_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("placewise_core.view.usage._KEPT_CO_TENANTS", 3)
    view = view_of([node("a", gpus=2, max_jobs_per_gpu=2)])
    for i in range(20):
        for g, model in enumerate(("steady", f"model-{i}")):
            job = running(f"r{g}", "a", [g], model=model, gpu_sharing=GpuSharing(True, 2.0 + i))
            view.add_job(job)
        co_tenants = view.usage.co_tenants()
        assert len(co_tenants) <= 6
        assert [co_tenants[c] for c in view.usage.gpu_co_tenants[0].tolist()] == [
            (("steady", 2.0 + i),),
            ((f"model-{i}", 2.0 + i),),
        ]
    view.remove_job(running("r0", "a", [0]).id)
    assert view.usage.co_tenants()[view.usage.gpu_co_tenants[0, 0]] == ()


def test_a_fork_and_its_view_do_not_see_what_the_other_takes() -> None:
    share = GpuSharing(True, 10.0)
    view = view_of([node("a", max_jobs_per_gpu=2), node("b")], [running("r", "a", [0], gpu_sharing=share)])
    before = arrays(view)
    fork = view.fork()
    fork.add_job(running("s", "a", [0, 1], gpu_sharing=share))
    fork.remove_job(running("r", "a", []).id)
    for name, value in arrays(view).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)
    assert (list(view.jobs), view.usage.tasks_on(0), view.usage.first_free_gpus(0, 9)) == (["r"], 1, (1, 2, 3))
    assert [tenant.job_id for tenant in view.usage.tenants(0, 0)] == ["r"]
    inside = arrays(fork)
    view.add_job(running("t", "a", [1]))
    view.apply_change(NodesReported((node("b", state=NodeState.DOWN),)))
    view.remove_job(running("r", "a", []).id)
    for name, value in arrays(fork).items():
        np.testing.assert_array_equal(value, inside[name], err_msg=name)
    assert (list(fork.jobs), list(fork.usage.jobs_on(0)), fork.usage.first_free_gpus(0, 9)) == (["s"], ["s"], (2, 3))
    assert fork.nodes.records[1].state is NodeState.READY


def test_what_is_adopted_from_a_fork_is_what_claims_would_have_made() -> None:
    share = GpuSharing(True, 10.0)
    nodes = [node(name, max_jobs_per_gpu=2) for name in "abc"]
    views = [view_of(nodes, [running("r", "a", [0], gpu_sharing=share)]) for _ in range(2)]
    new = [running("s", "a", [0, 1], gpu_sharing=share), running("t", "b", [1, 3])]
    fork = views[0].fork()
    for job in new:
        fork.add_job(job)
        views[1].add_job(job)
        views[0].hold(job)
    assert views[0].is_as_forked(fork, 0)
    views[0].usage.adopt(fork.usage, [0, 1])
    assert not views[0].is_as_forked(fork, 0)
    assert views[0].is_as_forked(fork, 2)
    for name, value in arrays(views[1]).items():
        np.testing.assert_array_equal(arrays(views[0])[name], value, err_msg=name)
    assert views[0].usage.shared_gpus == views[1].usage.shared_gpus == 1
    for m in range(3):
        assert list(views[0].usage.jobs_on(m)) == list(views[1].usage.jobs_on(m))
        assert views[0].usage.first_free_gpus(m, 9) == views[1].usage.first_free_gpus(m, 9)
    for view in views:
        view.remove_job(new[0].id)
    assert fork.usage.tasks_on(0) == 2
    assert [tenant.job_id for tenant in fork.usage.tenants(0, 0)] == ["r", "s"]
    for name, value in arrays(views[1]).items():
        np.testing.assert_array_equal(arrays(views[0])[name], value, err_msg=name)


def test_slots_counted_ahead_are_those_of_the_next_question() -> None:
    view = view_of([node(name) for name in "abcdefgh"])
    demand = view.nodes.demand_vector(Resources(gpus=2.0))
    assert demand is not None
    slots = view.slots.countable_slots(demand)
    view.add_job(running("r", "c", [1], Resources(gpus=1.0)))
    view.nodes.demand_vector(Resources(gpus=2.0))
    view.slots.count_ahead()
    assert slots.tolist() == [2.0, 2.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0]
    assert view.slots.countable_slots(demand).tolist() == slots.tolist()
