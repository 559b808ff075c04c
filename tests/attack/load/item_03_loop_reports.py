"""Item 3: reports, listings, Partition and AdmitOrWait of the largest size, by every carrier, while somebody else asks
for /healthz."""

import http.client
import itertools
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import grpc
from google.protobuf import json_format
from google.protobuf.message import Message
from tests.attack.attack import Attack, Figures
from tests.attack.source import Service, Source
from tests.attack.stall import probing

from placewise.v1 import cluster_pb2, decision_pb2, job_pb2

TITLE = "The event loop under large reports and questions"

_NODES, _EVENTS, _WAITING = 10_000, 10_000, 10_000
_LONGEST_MS = 50.0
_TRIES = 3  # the machine has others to serve as well: the quietest of so many counts
_MESSAGE_BYTES = 32 << 20  # 10,000 nodes in JSON
_PIPELINED = 8
_AFTER_S = 0.5  # a report is shown a moment after its answer
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


Ask = Callable[[Service], str]
Carrier = Callable[["_Question"], Ask]


def _ask_by_stream(service: Service, raws: Sequence[bytes], token: str) -> str:
    """The reasons that StreamPlace gave."""
    with grpc.insecure_channel(service.target) as channel:
        metadata = [("authorization", f"Bearer {token}")]
        answers = channel.stream_stream("/placewise.v1.DecisionService/StreamPlace")(
            iter(raws), timeout=120.0, metadata=metadata
        )
        reasons = {decision_pb2.PlaceResponse.FromString(answer).error.reason for answer in answers}
    return ",".join(sorted(reasons))


@dataclass(frozen=True, slots=True)
class _Question:
    """A message for one call; `verb` and `url` are its own in REST, `body` names the field that REST sends."""

    path: str
    message: Message
    verb: str
    url: str
    body: str = "*"


def _by_grpc(question: _Question) -> Ask:
    raw = question.message.SerializeToString()
    return lambda service: _ask(service, question.path, raw)


def _by_rest(question: _Question) -> Ask:
    named = json_format.MessageToDict(question.message)
    raw = json.dumps(named).encode() if question.body else b""
    return lambda service: _posted(service, question.verb, question.url, raw, "application/json")


def _by_connect(question: _Question) -> Ask:
    raw = question.message.SerializeToString()
    return lambda service: _posted(service, "POST", f"/placewise.v1.{question.path}", raw, "application/proto")


def _by_connect_json(question: _Question) -> Ask:
    raw = json_format.MessageToJson(question.message, indent=None).encode()
    return lambda service: _posted(service, "POST", f"/placewise.v1.{question.path}", raw, "application/json")


_CARRIERS: Mapping[str, Carrier] = {
    "grpc": _by_grpc,
    "rest": _by_rest,
    "connect": _by_connect,
    "connect_json": _by_connect_json,
}


def _posted(service: Service, verb: str, url: str, raw: bytes, content_type: str) -> str:
    """ "OK", or the HTTP status."""
    connection = http.client.HTTPConnection("127.0.0.1", service.rest_port, timeout=120.0)
    try:
        connection.request(verb, url, raw, {"Content-Type": content_type})
        response = connection.getresponse()
        response.read()
    finally:
        connection.close()
    return "OK" if response.status == 200 else f"HTTP {response.status}"


def _empty_jobs(source: Source) -> Figures:
    """By one call, and by several at once on a stream."""
    message = b"\x0a\x01c" + b"\x1a\x00" * 2_000_000
    with source.service(tokens=_TOKENS) as service:
        before_mib = service.resident_mib()
        service.forget_peak()
        with probing(service.rest_port) as prober:
            code = _ask(service, "DecisionService/Place", message, service.tokens["decider"])
            by_stream = _ask_by_stream(service, [message] * _PIPELINED, service.tokens["decider"])
        return {
            "answer": code,
            "answers_by_stream": by_stream,
            "longest_ms": prober.longest_ms,
            "peak_mib": service.peak_mib() - before_mib,
        }


def _nodes(count: int, prefix: str = "n") -> cluster_pb2.ReportNodesRequest:
    gpus = [cluster_pb2.Gpu(index=g, model="A100", memory_gib=80) for g in range(8)]
    telemetry = cluster_pb2.Telemetry(cpu_util=0.3, gpu_util=0.4, gpu_celsius=60, limit_celsius=90)
    amounts = job_pb2.Resources(cpu_cores=64, memory_gib=512)
    nodes = [
        cluster_pb2.Node(id=f"{prefix}{i}", capacity=amounts, gpus=gpus, telemetry=telemetry, labels={"zone": "a"})
        for i in range(count)
    ]
    return cluster_pb2.ReportNodesRequest(cluster="c", full=True, nodes=nodes)


def _started(number: int, count: int = _EVENTS, gpus: int = 1) -> _Question:
    """Jobs that nobody has heard of, one on each node: one that is known to run would change nothing."""
    amounts = job_pb2.Resources(cpu_cores=1, gpus=gpus)
    events = [
        cluster_pb2.JobEvent(
            job_id=f"r{number}-{i}",
            kind=cluster_pb2.JobEvent.STARTED,
            placement=[
                cluster_pb2.Assignment(
                    task="w", node=f"n{i}", demand=amounts, gpu_indices=range(gpus if gpus > 1 else 0)
                )
            ],
        )
        for i in range(count)
    ]
    return _reported(events)


def _ended(number: int) -> _Question:
    kind = cluster_pb2.JobEvent.FINISHED
    return _reported([cluster_pb2.JobEvent(job_id=f"r{number}-{i}", kind=kind) for i in range(_EVENTS)])


def _reported(events: Sequence[cluster_pb2.JobEvent]) -> _Question:
    message = cluster_pb2.ReportJobEventsRequest(cluster="c", events=events)
    return _Question("ClusterService/ReportJobEvents", message, "POST", "/v1/clusters/c/jobs:reportEvents")


def _cluster(service: Service) -> cluster_pb2.Cluster:
    request = cluster_pb2.GetClusterRequest(cluster="c")
    with grpc.insecure_channel(service.target) as channel:
        raw = channel.unary_unary("/placewise.v1.ClusterService/GetCluster")(request.SerializeToString(), timeout=120.0)
    return cluster_pb2.Cluster.FromString(raw)


def _end_all(service: Service, number: int) -> bool:
    """Whether all jobs of that report run; then ends them."""
    is_running = _cluster(service).running_jobs == _EVENTS
    return _by_grpc(_ended(number))(service) == "OK" and is_running


def _admit(first: int, policy: str, count: int = 256) -> decision_pb2.AdmitOrWaitRequest:
    jobs = [
        job_pb2.Job(id=f"w{i}", model="ResNet-50", elastic=job_pb2.ElasticRange(min_gpus=1, max_gpus=8))
        for i in range(first, first + count)
    ]
    return decision_pb2.AdmitOrWaitRequest(cluster="c", queue="q", policy=policy, jobs=jobs)


def _partition(units: Sequence[str]) -> decision_pb2.PartitionRequest:
    task = decision_pb2.DivisibleTask(id="t", parallel_scale=1e6, serial_scale=1)
    return decision_pb2.PartitionRequest(cluster="c", task=task, explain=True, units=units)


def _admitted(policy: str) -> Callable[[int], _Question]:
    """Jobs that are new to the queue, and wait behind the others."""
    return lambda number: _Question(
        "DecisionService/AdmitOrWait",
        _admit(_WAITING + 256 * number, policy),
        "POST",
        "/v1/clusters/c/jobs:admitOrWait",
    )


def _fill_queue(service: Service, nodes: int = _NODES) -> None:
    """Every GPU is taken, so that all jobs wait, and one slot lasts for a day: in the next one a queue forgets the jobs
    that the request does not list."""
    assert _by_grpc(_started(0, nodes, gpus=8))(service) == "OK"
    settings = cluster_pb2.QueueSettings(queue="q")
    settings.slot_duration.FromSeconds(86_400)
    request = cluster_pb2.UpdateClusterSettingsRequest(
        cluster="c", settings=cluster_pb2.ClusterSettings(queues=[settings])
    )
    assert _ask(service, "ClusterService/UpdateClusterSettings", request.SerializeToString()) == "OK"
    for first in range(0, _WAITING, 256):
        assert _ask(service, "DecisionService/AdmitOrWait", _admit(first, "proteus").SerializeToString()) == "OK"


def _all_wait(service: Service, _: int = 0) -> bool:
    """Whether the queue holds as many jobs as it should."""
    return any(queue.waiting_jobs >= _WAITING for queue in _cluster(service).queues)


def _filled(source: Source) -> Figures:
    """The queue of 10,000 while it grows: the quietest of three."""
    nodes, found, all_wait = 30, [], True
    for _ in range(_TRIES):
        with source.service() as service:
            assert _ask(service, "ClusterService/ReportNodes", _nodes(nodes).SerializeToString()) == "OK"
            time.sleep(_AFTER_S)
            with probing(service.rest_port) as prober:
                _fill_queue(service, nodes)
            found.append(prober.longest_ms)
            all_wait &= _all_wait(service)
    answer = "OK" if all_wait else "they do not wait"
    return {"answer": answer, "longest_ms": min(found), "median_ms": statistics.median(found)}


def _longest(
    question: Callable[[int], _Question],
    prepare: Callable[[Service], object] | None = None,
    settle: Callable[[Service, int], bool] | None = None,
) -> Callable[[Source], Figures]:
    """Milliseconds for which /healthz had no answer, by carrier. `question` by number, another for each try. `settle`
    looks, after each, whether it did all that it should."""

    def measure(source: Source) -> Figures:
        settings = {"PLACEWISE_LIMITS__MESSAGE_BYTES": str(_MESSAGE_BYTES), "PLACEWISE_REDIS__TIMEOUT_MS": "20000"}
        codes, longest, numbers = set(), {}, itertools.count()
        with source.service(settings) as service:
            assert _ask(service, "ClusterService/ReportNodes", _nodes(_NODES).SerializeToString()) == "OK"
            if prepare is not None:
                prepare(service)
            for name, carrier in _CARRIERS.items():
                found = []
                for number in itertools.islice(numbers, _TRIES):
                    ask = carrier(question(number))
                    with probing(service.rest_port) as prober:
                        codes.add(ask(service))
                        time.sleep(_AFTER_S)
                    found.append(prober.longest_ms)
                    if settle is not None and not settle(service, number):
                        codes.add("not all of it")
                longest[name] = found
        return {
            "answer": ",".join(sorted(codes)),
            "longest_ms": max(map(min, longest.values())),
            **{f"median_{name}_ms": statistics.median(found) for name, found in longest.items()},
            **{f"longest_{name}_ms": min(found) for name, found in longest.items()},
        }

    return measure


def _holds(figures: Figures) -> bool:
    return figures["answer"] == "OK" and float(figures["longest_ms"]) <= _LONGEST_MS


ATTACKS = [
    Attack(
        "2,000,000 empty jobs in 4 MiB",
        "The lists of a message are counted before anything is built from it.",
        "tests/unit/api/calls/test_counts.py::test_of_a_request_with_too_many_jobs_nothing_is_built",
        _empty_jobs,
        lambda figures: (
            (figures["answer"], figures["answers_by_stream"]) == ("INVALID_ARGUMENT", "INVALID_REQUEST")
            and float(figures["longest_ms"]) <= _LONGEST_MS
            and float(figures["peak_mib"]) <= 100
        ),
    ),
    *[
        Attack(
            name,
            promise,
            test,
            _longest(question, prepare, settle),
            _holds,
            is_quick=False,
        )
        for name, promise, test, question, prepare, settle in (
            (
                "ReportNodes of 10,000 nodes",
                "A report of 10,000 nodes holds the loop no longer than 50 ms, and is seen whole or not at all.",
                "tests/unit/core/view/test_view_renewal.py::test_a_large_report_is_shown_whole_and_what_follows_waits_for_it",
                # By turns of the nodes that are there and of others, which are new.
                lambda number: _Question(
                    "ClusterService/ReportNodes", _nodes(_NODES, f"n{number // 2}-"), "PUT", "/v1/clusters/c/nodes"
                ),
                None,
                None,
            ),
            (
                "10,000 job events",
                "A report of 10,000 events holds the loop no longer than 50 ms, and all of it is there.",
                "tests/unit/core/view/test_view_renewal.py::test_others_have_their_turn_within_a_large_report_of_events",
                _started,
                None,
                _end_all,
            ),
            (
                "GetCluster of 10,000 nodes",
                "A listing of 10,000 nodes holds the loop no longer than 50 ms.",
                "tests/unit/core/view/test_view_renewal.py::test_a_large_message_is_converted_beside_the_loop_and_a_small_one_on_it",
                lambda _: _Question(
                    "ClusterService/GetCluster",
                    cluster_pb2.GetClusterRequest(cluster="c", full=True),
                    "GET",
                    "/v1/clusters/c?full=true",
                    body="",
                ),
                None,
                None,
            ),
            (
                "Partition over 10,000 nodes",
                "Splitting a task over 80,000 units holds the loop no longer than 50 ms.",
                "tests/unit/engine/test_sliced_questions.py::test_a_large_partition_pauses_and_answers_the_same",
                lambda _: _Question(
                    "DecisionService/Partition",
                    _partition([f"n{i}/gpu{g}" for i in range(_NODES) for g in range(8)]),
                    "POST",
                    "/v1/clusters/c/tasks:partition",
                ),
                None,
                None,
            ),
            *[
                (
                    f"AdmitOrWait behind 10,000 waiting, {policy or 'the default policy'}",
                    "256 new jobs behind 10,000 waiting hold the loop no longer than 50 ms.",
                    "tests/unit/engine/test_sliced_questions.py::test_many_jobs_to_admit_pause_and_are_answered_the_same",
                    _admitted(policy),
                    _fill_queue,
                    _all_wait,
                )
                for policy in ("qos", "proteus", "")
            ],
        )
    ],
    Attack(
        "a queue that grows to 10,000",
        "A queue holds the loop no longer than 50 ms while it grows to 10,000 jobs.",
        "tests/unit/engine/test_sliced_questions.py::test_many_jobs_to_admit_pause_and_are_answered_the_same",
        _filled,
        _holds,
        is_quick=False,
    ),
]
