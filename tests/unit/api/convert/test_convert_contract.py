"""Contract ↔ domain: the same names on both sides, nothing lost, absent readings stay unknown."""

import math
from dataclasses import astuple, fields, replace

import pytest
from google.protobuf import json_format
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from placewise.v1 import bundle_pb2, cluster_pb2, decision_pb2, job_pb2
from placewise_core.domain.cluster import (
    Gpu,
    HeadReservation,
    NodeState,
    NodeTelemetry,
    QueueSettings,
    QueueState,
    RunningJob,
    RunState,
)
from placewise_core.domain.commands import JobEventKind, Scope
from placewise_core.domain.decision import (
    DecisionMeta,
    Excluded,
    JobDecision,
    Outcome,
    PartitionDecision,
    PartitionPlan,
    PlaceDecision,
    Reason,
    Share,
    Verdict,
)
from placewise_core.domain.errors import InvalidRequestError
from placewise_core.domain.events import ClusterRecords
from placewise_core.domain.job import Architecture, CoRun, Job, JobId, KeepTogether, Priority, Role, SubtaskState
from placewise_core.domain.validate import Limits, check_job, check_node
from placewise_core.view.view import ClusterView
from placewise_service.api.convert import convert_cluster, convert_in, convert_out
from placewise_service.api.docs import examples
from placewise_service.engine.answers import held_until
from placewise_service.engine.registry import BundleState


@pytest.mark.parametrize(
    ("domain", "contract"),
    [
        (Outcome, decision_pb2.Outcome),
        (Reason, decision_pb2.Reason),
        (Verdict, decision_pb2.Admission.Verdict),
        (Scope, decision_pb2.PlaceRequest.Scope),
        (Role, job_pb2.TaskGroup.Role),
        (Architecture, job_pb2.Job.Architecture),
        (Priority, job_pb2.Job.Priority),
        (SubtaskState, job_pb2.Subtask.State),
        (NodeState, cluster_pb2.Node.State),
        (RunState, cluster_pb2.RunningJob.State),
        (JobEventKind, cluster_pb2.JobEvent.Kind),
        (BundleState, bundle_pb2.Bundle.State),
    ],
)
def test_domain_and_contract_spell_their_values_alike(domain: type, contract: object) -> None:
    contract_names = contract.keys()  # type: ignore[attr-defined]
    names = [name for name in contract_names if not name.endswith("_UNSPECIFIED")]
    assert [item.value for item in domain] == names  # type: ignore[attr-defined]


FULL_JOB: dict[str, object] = {
    "id": "j",
    "model": "VGG",
    "architecture": "PARAMETER_SERVER",
    "groups": [
        {
            "role": "PARAMETER_SERVER",
            "count": 2,
            "demand": {
                "cpuCores": 1.5,
                "gpus": 0.25,
                "memoryGib": 2,
                "gpuMemoryGib": 3,
                "networkGbps": 4,
                "extended": {"licence": 5},
            },
            "maxPerNode": 1,
            "gpuModel": "T4",
            "nodeSelector": {"zone": "a"},
        }
    ],
    "totalEpochs": 10,
    "batchSize": 32,
    "datasetSize": "50000",
    "iterations": 7,
    "priority": "URGENT",
    "queue": "q",
    "submitTime": "2026-01-01T00:00:00.500Z",
    "subtasks": [
        {"id": "s", "kind": "k", "after": ["r"], "hasGpuVersion": True, "profile": {"sm": 0.5}, "size": 9},
        {"id": "r", "kind": "k", "state": "DONE", "unit": "gpu0"},
    ],
    "singleGpuSeconds": 60,
    "paramsMillions": 138,
    "gpuSharing": {
        "allowed": True,
        "coRuns": [
            {
                "model": "LM",
                "relativeSpeed": 0.6,
                "neighbourRelativeSpeed": 0.7,
                "gpuModel": "V100",
                "stepSeconds": 2,
            },
            {"model": "GNMT", "relativeSpeed": 0.5},
        ],
    },
    "elastic": {"minGpus": 1, "maxGpus": 8},
    "shape": {"nodes": 2, "gpusPerNode": 4},
    "attainedGpuSeconds": 12,
    "user": "ada",
    "keepTogether": "RACK",
    "exclusiveNetwork": True,
}


def test_a_full_job_arrives_whole() -> None:
    job = convert_in.job(json_format.ParseDict(FULL_JOB, job_pb2.Job()))
    [group] = job.groups
    assert (group.role, group.count, group.max_per_node, group.gpu_model) == (Role.PARAMETER_SERVER, 2, 1, "T4")
    assert group.node_selector == {"zone": "a"}
    demand = group.demand
    assert (demand.cpu_cores, demand.gpus, demand.memory_gib) == (1.5, 0.25, 2.0)
    assert (demand.gpu_memory_gib, demand.network_gbps, demand.extended) == (3.0, 4.0, {"licence": 5.0})
    assert (job.architecture, job.priority) == (Architecture.PARAMETER_SERVER, Priority.URGENT)
    assert (job.total_epochs, job.batch_size, job.dataset_size, job.iterations) == (10.0, 32, 50_000, 7.0)
    assert job.submit_time_s == 1_767_225_600.5
    assert job.subtasks[0].after == ("r",)
    assert job.subtasks[0].profile == {"sm": 0.5}
    assert (job.subtasks[1].state, job.subtasks[1].unit) == (SubtaskState.DONE, "gpu0")
    assert (job.single_gpu_s, job.params_millions, job.attained_gpu_s) == (60.0, 138.0, 12.0)
    assert (job.queue, job.user) == ("q", "ada")
    assert (job.keep_together, job.exclusive_network) == (KeepTogether.RACK, True)
    assert (job.gpu_sharing.allowed, job.gpu_sharing.max_slowdown) == (True, 2.0)
    assert job.gpu_sharing.co_runs == (CoRun("LM", 0.6, 0.7, "V100", 2.0), CoRun("GNMT", 0.5))
    assert job.elastic is not None
    assert (job.elastic.min_gpus, job.elastic.max_gpus) == (1, 8)
    assert job.shape is not None
    assert job.shape.gpus == 8


@pytest.mark.parametrize("name", [field.name for field in job_pb2.Job.DESCRIPTOR.fields if field.name != "layers"])
def test_no_field_of_a_job_is_left_out(name: str) -> None:
    """A new field of the message has to stand in FULL_JOB and to arrive. Layers count where `params_millions` is 0."""
    message = json_format.ParseDict(FULL_JOB, job_pb2.Job())
    whole = convert_in.job(message)
    message.ClearField(name)  # type: ignore[arg-type]
    assert convert_in.job(message) != whole


@pytest.mark.parametrize("name", [each.name for each in fields(Job) if each.type is str])
def test_every_text_of_a_job_is_limited(name: str) -> None:
    job = convert_in.job(json_format.ParseDict(FULL_JOB, job_pb2.Job()))
    with pytest.raises(InvalidRequestError, match="at most 253 characters"):
        check_job(replace(job, **{name: "x" * 254}), Limits())


@pytest.mark.parametrize(
    ("job", "architecture"),
    [
        ({"groups": [{"count": 1}]}, Architecture.SINGLE),
        ({"groups": [{"count": 2}]}, Architecture.ALL_REDUCE),
        ({"groups": [{"count": 1}, {"count": 1, "role": "PARAMETER_SERVER"}]}, Architecture.PARAMETER_SERVER),
        ({"subtasks": [{"id": "s"}]}, Architecture.PIPELINE),
    ],
)
def test_a_job_that_does_not_say_is_known_by_its_parts(job: dict[str, object], architecture: Architecture) -> None:
    assert convert_in.job(json_format.ParseDict(job, job_pb2.Job())).architecture is architecture


@pytest.mark.parametrize("number", [-1, 99])
def test_an_unknown_enum_number_is_refused(number: int) -> None:
    with pytest.raises(InvalidRequestError, match=str(number)):
        convert_in.job(job_pb2.Job(id="j", architecture=number))  # type: ignore[arg-type]


def test_a_reading_that_is_absent_is_unknown_and_zero_is_zero() -> None:
    node = convert_in.node(
        cluster_pb2.Node(id="n", telemetry=cluster_pb2.Telemetry(cpu_util=0.0), gpus=[cluster_pb2.Gpu(util=0.0)])
    )
    assert node.telemetry.cpu_util == 0.0
    assert math.isnan(node.telemetry.gpu_util)
    assert math.isnan(node.telemetry.limit_celsius)
    assert node.gpus[0].util == 0.0
    assert math.isnan(node.gpus[0].celsius)


def test_a_node_survives_the_round_trip() -> None:
    message = json_format.ParseDict(examples.NODES["nodes"][0], cluster_pb2.Node())
    message.labels["zone"] = "a"
    message.hardware.cpu_ghz = 2.5
    message.telemetry.observe_time.seconds = 5
    assert convert_cluster.node(convert_in.node(message)) == message


readings = st.floats(0.0, 1.0) | st.just(math.nan)


@given(readings, readings, st.floats(-50.0, 150.0) | st.just(math.nan))
def test_readings_survive_the_round_trip(util: float, memory: float, celsius: float) -> None:
    gpu = Gpu(0, "", 0.0, util, memory, celsius)
    telemetry = NodeTelemetry(cpu_util=util, gpu_util=memory, cpu_celsius=celsius, observe_time_s=1.0)
    node = convert_in.node(cluster_pb2.Node(id="n"))
    from dataclasses import replace

    again = convert_in.node(convert_cluster.node(replace(node, gpus=(gpu,), telemetry=telemetry)))
    assert repr(again.gpus[0]) == repr(gpu)
    assert repr(again.telemetry) == repr(telemetry)
    check_node(again, "node", Limits())


@given(st.floats(0.0, 4e9))
def test_times_keep_their_microseconds(time_s: float) -> None:
    message = Timestamp()
    convert_out.set_time(message, time_s)
    assert convert_in.seconds(message) == pytest.approx(time_s, abs=1e-6)


@pytest.mark.parametrize("time_s", [0.0, -1.0, math.inf, math.nan, 1e15])
def test_a_time_that_no_timestamp_holds_stays_absent(time_s: float) -> None:
    message = Timestamp()
    convert_out.set_time(message, time_s)
    assert message == Timestamp()


@given(st.floats(0.0, 1e6))
def test_durations_keep_their_microseconds(span_s: float) -> None:
    message = convert_out.duration(span_s)
    assert 0 <= message.nanos <= 999_999_999
    assert convert_in.seconds(message) == pytest.approx(span_s, abs=1e-6)


def _placed(decision_id: str) -> PlaceDecision:
    own = JobDecision(JobId("a"), Outcome.PLACED, reservation_id="r")
    held = JobDecision(JobId("b"), Outcome.PLACED, reservation_id="of-before", expire_time_s=50.5)
    refused = JobDecision(JobId("c"), Outcome.NO_FIT)
    return PlaceDecision((own, held, refused), DecisionMeta(decision_id, "consolidate"))


def test_an_answer_written_ahead_is_given_its_expiry() -> None:
    drafted = _placed("1")
    message = convert_out.place_response(drafted, "request")
    final = held_until(drafted, ["r"], 100.25)
    convert_out.set_expiry(message, final)
    assert message == convert_out.place_response(final, "request")


def test_each_partition_tells_its_own_excluded_units() -> None:
    hot = (Excluded("n0", "gpu0", Reason.THERMAL_LIMIT, "too hot"), Excluded("n0", "gpu1", Reason.UNIT_BUSY))
    down = (Excluded("n1", "cpu", Reason.NODE_DOWN, "down"),)
    meta = DecisionMeta("d", "heat-island")
    for excluded in (hot, hot, down, (), down, hot):  # the same again is not written again
        plan = PartitionPlan(Outcome.PLACED, (Share("n2", "gpu3", 2.0, 3.0, 40.0, 0.5),), excluded=excluded)
        message = convert_out.partition_response(PartitionDecision(plan, meta))
        reported = [(e.node, e.unit, decision_pb2.Reason.Name(e.reason), e.message) for e in message.excluded]
        assert reported == [(e.node, e.unit, e.reason.value, e.message) for e in excluded]
        (share,) = message.shares
        assert (share.node, share.unit, share.scale, share.predicted_seconds) == ("n2", "gpu3", 2.0, 3.0)
        assert (share.predicted_peak_celsius, share.capability) == (40.0, 0.5)
        assert (message.units, message.meta.decision_id) == (1, "d")


def test_each_partition_tells_its_own_shares() -> None:
    first = [Share("n2", "gpu3", 2.0, 3.0, 40.0, 0.5), Share("n2", "cpu", 1.0, 3.0, 0.0, 0.25)]
    other_work = [Share("n2", "gpu3", 4.0, 6.0, 0.0, 0.5), Share("n2", "cpu", 2.0, 6.0, 41.0, 0.25)]
    other_unit, stronger = [replace(first[0], unit="gpu4")], [replace(first[0], capability=0.75)]
    for shares in (first, other_work, first[:1], other_unit, stronger, [], first):
        plan = PartitionPlan(Outcome.PLACED, tuple(shares))
        message = convert_out.partition_response(PartitionDecision(plan, DecisionMeta("d", "heat-island")))
        reported = [
            (s.node, s.unit, s.scale, s.predicted_seconds, s.predicted_peak_celsius, s.capability)
            for s in message.shares
        ]
        assert reported == [astuple(share) for share in shares]


def test_a_queue_tells_its_bound_and_the_reservation_of_its_head() -> None:
    head = HeadReservation("j", ("n0", "n1"), start_s=10.5, since_s=1.0, bound_s=61.0, expire_s=600.0)
    queues = {"q": QueueState("q", head=head), "r": QueueState("r")}
    view = ClusterView(ClusterRecords("c", 0, "e", queues=queues))
    message, other = convert_cluster.totals(view, False, 0.0, lambda _: QueueSettings(bound_s=60.0)).queues
    assert message.wait_bound.ToSeconds() == 60
    assert (message.head.job_id, list(message.head.nodes)) == ("j", ["n0", "n1"])
    assert message.head.start_time.ToMilliseconds() == 10_500
    assert (message.head.bound_time.seconds, message.head.expire_time.seconds) == (61, 600)
    assert not other.HasField("head")


def test_a_job_that_holds_resources_tells_the_decision_behind_them() -> None:
    """An adapter that starts again has nowhere else to find it."""
    held = RunningJob(Job(JobId("j")), (), RunState.RESERVED, reservation_id="r", decision_id="d")
    shown = [convert_cluster.running_job(replace(held, state=state)) for state in RunState]
    assert [(job.reservation_id, job.decision_id) for job in shown] == [("r", "d")] * len(RunState)


def test_an_answer_names_the_profile_behind_its_speed() -> None:
    drafted = _placed("1")
    assumed = replace(drafted.decisions[0], predicted_speed=2.0, profile_model="ResNet50@T4")
    message = convert_out.place_response(replace(drafted, decisions=(assumed, *drafted.decisions[1:])))
    assert [each.profile_model for each in message.decisions] == ["ResNet50@T4", "", ""]
