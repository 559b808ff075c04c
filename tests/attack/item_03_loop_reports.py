"""Item 3: reports, listings, Partition and AdmitOrWait of the largest size, while somebody else asks for /healthz."""

from collections.abc import Callable, Mapping

import grpc
from tests.attack.attack import Attack, Figures
from tests.attack.source import Service, Source
from tests.attack.stall import probing

from placewise.v1 import cluster_pb2, decision_pb2, job_pb2

TITLE = "The event loop under large reports and questions"

_NODES, _EVENTS, _WAITING = 10_000, 10_000, 10_000
_LONGEST_MS = 50.0
_TRIES = 3  # the machine has others to serve as well: the quietest of so many counts
_MESSAGE_BYTES = 8 << 20
_TOKENS: Mapping[str, Mapping[str, object]] = {"decider": {"scopes": ["decide"], "clusters": ["c"]}}


def _ask(service: Service, path: str, raw: bytes, token: str = "") -> str:
    """The status code that gRPC gave."""
    with grpc.insecure_channel(service.target, options=[("grpc.max_receive_message_length", -1)]) as channel:
        call = channel.unary_unary(f"/placewise.v1.{path}")
        try:
            call(raw, timeout=120.0, metadata=[("authorization", f"Bearer {token}")] if token else [])
        except grpc.RpcError as error:
            return str(error.code().name)
    return "OK"


def _empty_jobs(source: Source) -> Figures:
    with source.service(tokens=_TOKENS) as service:
        before_mib = service.resident_mib()
        service.forget_peak()
        with probing(service.rest_port) as prober:
            code = _ask(
                service, "DecisionService/Place", b"\x0a\x01c" + b"\x1a\x00" * 2_000_000, service.tokens["decider"]
            )
        return {
            "answer": code,
            "longest_ms": prober.longest_ms,
            "peak_mib": service.peak_mib() - before_mib,
        }


def _nodes(count: int) -> bytes:
    gpus = [cluster_pb2.Gpu(index=g, model="A100", memory_gib=80) for g in range(8)]
    telemetry = cluster_pb2.Telemetry(cpu_util=0.3, gpu_util=0.4, gpu_celsius=60, limit_celsius=90)
    amounts = job_pb2.Resources(cpu_cores=64, memory_gib=512)
    nodes = [
        cluster_pb2.Node(id=f"n{i}", capacity=amounts, gpus=gpus, telemetry=telemetry, labels={"zone": "a"})
        for i in range(count)
    ]
    return cluster_pb2.ReportNodesRequest(cluster="c", full=True, nodes=nodes).SerializeToString()


def _events() -> bytes:
    amounts = job_pb2.Resources(cpu_cores=1, gpus=1)
    events = [
        cluster_pb2.JobEvent(
            job_id=f"r{i}",
            kind=cluster_pb2.JobEvent.STARTED,
            placement=[cluster_pb2.Assignment(task="w", node=f"n{i}", demand=amounts)],
        )
        for i in range(_EVENTS)
    ]
    return cluster_pb2.ReportJobEventsRequest(cluster="c", events=events).SerializeToString()


def _admit(first: int, policy: str, count: int = 256) -> bytes:
    jobs = [
        job_pb2.Job(id=f"w{i}", model="ResNet-50", elastic=job_pb2.ElasticRange(min_gpus=1, max_gpus=8))
        for i in range(first, first + count)
    ]
    return decision_pb2.AdmitOrWaitRequest(cluster="c", queue="q", policy=policy, jobs=jobs).SerializeToString()


def _partition(**fields: object) -> bytes:
    task = decision_pb2.DivisibleTask(id="t", parallel_scale=1e6, serial_scale=1)
    request = decision_pb2.PartitionRequest(cluster="c", task=task, explain=True, **fields)  # type: ignore[arg-type]
    return request.SerializeToString()


def _fill_queue(service: Service) -> None:
    for first in range(0, _WAITING, 256):
        _ask(service, "DecisionService/AdmitOrWait", _admit(first, "proteus"))


def _longest(
    path: str, raw: Callable[[], bytes], prepare: Callable[[Service], object] | None = None
) -> Callable[[Source], Figures]:
    def measure(source: Source) -> Figures:
        settings = {"PLACEWISE_LIMITS__MESSAGE_BYTES": str(_MESSAGE_BYTES), "PLACEWISE_REDIS__TIMEOUT_MS": "20000"}
        asked, codes, longest = raw(), set(), []
        with source.service(settings) as service:
            assert _ask(service, "ClusterService/ReportNodes", _nodes(_NODES)) == "OK"
            if prepare is not None:
                prepare(service)
            for _ in range(_TRIES):
                with probing(service.rest_port) as prober:
                    codes.add(_ask(service, path, asked))
                longest.append(prober.longest_ms)
        return {"answer": ",".join(sorted(codes)), "longest_ms": min(longest)}

    return measure


def _holds(figures: Figures) -> bool:
    return figures["answer"] == "OK" and float(figures["longest_ms"]) <= _LONGEST_MS


ATTACKS = [
    Attack(
        "2,000,000 empty jobs in 4 MiB",
        "The lists of a message are counted before anything is built from it.",
        "tests/unit/test_counts.py::test_of_a_request_with_too_many_jobs_nothing_is_built",
        _empty_jobs,
        lambda figures: (
            figures["answer"] == "INVALID_ARGUMENT"
            and float(figures["longest_ms"]) <= _LONGEST_MS
            and float(figures["peak_mib"]) <= 100
        ),
    ),
    *[
        Attack(
            name,
            promise,
            test,
            _longest(path, raw, prepare),
            _holds,
            is_quick=False,
        )
        for name, promise, test, path, raw, prepare in (
            (
                "ReportNodes of 10,000 nodes",
                "A report of 10,000 nodes holds the loop no longer than 50 ms, and is seen whole or not at all.",
                "tests/unit/test_view_renewal.py::test_a_large_report_is_shown_whole_and_what_follows_waits_for_it",
                "ClusterService/ReportNodes",
                lambda: _nodes(_NODES),
                None,
            ),
            (
                "10,000 job events",
                "A report of 10,000 events holds the loop no longer than 50 ms.",
                "tests/unit/test_view_renewal.py::test_events_are_reported_in_portions_that_keep_their_order",
                "ClusterService/ReportJobEvents",
                _events,
                None,
            ),
            (
                "GetCluster of 10,000 nodes",
                "A listing of 10,000 nodes holds the loop no longer than 50 ms.",
                "tests/unit/test_view_renewal.py::test_a_large_message_is_converted_beside_the_loop_and_a_small_one_on_it",
                "ClusterService/GetCluster",
                lambda: cluster_pb2.GetClusterRequest(cluster="c", full=True).SerializeToString(),
                None,
            ),
            (
                "Partition over 10,000 nodes",
                "Splitting a task over 80,000 units holds the loop no longer than 50 ms.",
                "tests/unit/test_sliced_questions.py::test_a_large_partition_pauses_and_answers_the_same",
                "DecisionService/Partition",
                lambda: _partition(units=[f"n{i}/gpu{g}" for i in range(_NODES) for g in range(8)]),
                None,
            ),
            (
                "AdmitOrWait behind 10,000 waiting",
                "256 jobs behind 10,000 waiting hold the loop no longer than 50 ms.",
                "tests/unit/test_sliced_questions.py::test_many_jobs_to_admit_pause_and_are_answered_the_same",
                "DecisionService/AdmitOrWait",
                lambda: _admit(_WAITING - 256, "qos"),
                _fill_queue,
            ),
        )
    ],
]
