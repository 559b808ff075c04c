"""Item 3: Place of the largest size on 10,000 nodes, over every carrier, while somebody else asks for /healthz."""

import http.client
import json
import statistics
import time
from collections.abc import Callable, Mapping

import grpc
from google.protobuf import json_format
from tests.attack.attack import Attack, Figures
from tests.attack.source import Service, Source
from tests.attack.stall import probing

from placewise.v1 import cluster_pb2, decision_pb2, job_pb2

TITLE = "The event loop under large placements"

_NODES, _GPUS = 10_000, 10  # room for every call of every carrier
_LONGEST_MS = 50.0
_TRIES = 2  # the machine has others to serve as well: the quietest of so many counts
_NODES_PER_REPORT = 1000
_METHOD = "/placewise.v1.DecisionService/Place"
_POLICIES = (
    "bin-packing", "consolidate", "ect", "harmony", "ldwp", "lif-linear", "lif-quadratic", "load-balance", "pats",
    "random", "search", "tetris", "tiresias",
)  # fmt: skip
_TASK = job_pb2.Resources(cpu_cores=4, gpus=1, memory_gib=16, network_gbps=1)

Ask = Callable[[Service, bytes], bytes]


def _by_grpc(service: Service, body: bytes) -> bytes:
    with grpc.insecure_channel(service.target, options=[("grpc.max_receive_message_length", -1)]) as channel:
        answer: bytes = channel.unary_unary(_METHOD)(body, timeout=120.0)
    return answer


def _by_stream(service: Service, body: bytes) -> bytes:
    with grpc.insecure_channel(service.target, options=[("grpc.max_receive_message_length", -1)]) as channel:
        answers = channel.stream_stream("/placewise.v1.DecisionService/StreamPlace")(iter([body]), timeout=120.0)
        answer: bytes = next(answers)
    return answer


def _posted(service: Service, path: str, body: bytes, content_type: str) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", service.rest_port, timeout=120.0)
    try:
        connection.request("POST", path, body, {"Content-Type": content_type})
        response = connection.getresponse()
        answer = response.read()
    finally:
        connection.close()
    if response.status != 200:
        raise RuntimeError(f"{response.status}: {answer[:200]!r}")
    return answer


def _by_rest(service: Service, body: bytes) -> bytes:
    return _posted(service, "/v1/clusters/c/jobs:place", body, "application/json")


def _by_connect(service: Service, body: bytes) -> bytes:
    return _posted(service, _METHOD, body, "application/proto")


def _by_connect_json(service: Service, body: bytes) -> bytes:
    return _posted(service, _METHOD, body, "application/json")


def _binary(request: decision_pb2.PlaceRequest) -> bytes:
    return request.SerializeToString()


def _json(request: decision_pb2.PlaceRequest) -> bytes:
    return json_format.MessageToJson(request).encode()


def _parsed(answer: bytes) -> decision_pb2.PlaceResponse:
    return decision_pb2.PlaceResponse.FromString(answer)


def _parsed_json(answer: bytes) -> decision_pb2.PlaceResponse:
    return json_format.ParseDict(json.loads(answer), decision_pb2.PlaceResponse())


# How each carrier writes the request, asks, and reads the answer.
_CARRIERS: Mapping[str, tuple[Callable[[decision_pb2.PlaceRequest], bytes], Ask, Callable[[bytes], object]]] = {
    "grpc": (_binary, _by_grpc, _parsed),
    "stream": (_binary, _by_stream, _parsed),
    "rest": (_json, _by_rest, _parsed_json),
    "connect": (_binary, _by_connect, _parsed),
    "connect_json": (_json, _by_connect_json, _parsed_json),
}


def _report(service: Service, cluster: str = "c") -> None:
    amounts = job_pb2.Resources(cpu_cores=64, gpus=_GPUS, memory_gib=512, gpu_memory_gib=32 * _GPUS, network_gbps=100)
    gpus = [cluster_pb2.Gpu(index=g, model="V100", memory_gib=32) for g in range(_GPUS)]
    with grpc.insecure_channel(service.target) as channel:
        report = channel.unary_unary("/placewise.v1.ClusterService/ReportNodes")
        for first in range(0, _NODES, _NODES_PER_REPORT):
            names = [f"n{i}" for i in range(first, first + _NODES_PER_REPORT)]
            nodes = [cluster_pb2.Node(id=name, capacity=amounts, gpus=gpus, max_jobs_per_gpu=2) for name in names]
            report(cluster_pb2.ReportNodesRequest(cluster=cluster, nodes=nodes).SerializeToString(), timeout=60.0)


def _request(name: str, policy: str, jobs: int, tasks: int) -> decision_pb2.PlaceRequest:
    """Tasks of which no node takes two of one gang: each is a step of its own."""
    group = job_pb2.TaskGroup(role=job_pb2.TaskGroup.WORKER, count=tasks, demand=_TASK, max_per_node=1)
    asked = [job_pb2.Job(id=f"{name}-{i}", model="ResNet-50", groups=[group]) for i in range(jobs)]
    request = decision_pb2.PlaceRequest(cluster="c", policy=policy, jobs=asked)
    request.reserve_ttl.seconds = 3600
    return request


def _longest(policy: str, jobs: int, tasks: int) -> Callable[[Source], Figures]:
    """Milliseconds for which /healthz had no answer, by carrier; seconds of the slowest call; tasks placed per call."""

    def measure(source: Source) -> Figures:
        settings = {"PLACEWISE_REDIS__TIMEOUT_MS": "20000"}
        longest: dict[str, list[float]] = {name: [] for name in _CARRIERS}
        placed, seconds = set(), []
        with source.service(settings) as service:
            _report(service)
            for number in range(_TRIES):
                for carrier, (write, ask, read) in _CARRIERS.items():
                    body = write(_request(f"{carrier}-{number}", policy, jobs, tasks))
                    began_s = time.monotonic()
                    with probing(service.rest_port) as prober:
                        answer = ask(service, body)
                    seconds.append(time.monotonic() - began_s)
                    longest[carrier].append(prober.longest_ms)
                    placed.add(_tasks_placed(read(answer)))
        return {
            "placed_tasks": min(placed),
            **{f"longest_{carrier}_ms": min(found) for carrier, found in longest.items()},
            **{f"median_{carrier}_ms": statistics.median(found) for carrier, found in longest.items()},
            "slowest_call_s": max(seconds),
        }

    return measure


def _first_counts(source: Source) -> Figures:
    """Milliseconds for which /healthz had no answer while a policy placed its first gang of two on a new view."""
    longest: dict[str, list[float]] = {policy: [] for policy in _POLICIES}
    placed = set()
    with source.service({"PLACEWISE_REDIS__TIMEOUT_MS": "20000"}) as service:
        for number in range(_TRIES):
            cluster = f"c{number}"
            _report(service, cluster)
            for policy in _POLICIES:
                request = _request(policy, policy, 1, 2)
                request.cluster = cluster
                with probing(service.rest_port) as prober:
                    placed.add(_tasks_placed(_parsed(_by_grpc(service, _binary(request)))))
                longest[policy].append(prober.longest_ms)
    found = {policy: min(tries) for policy, tries in longest.items()}
    worst = max(found, key=found.__getitem__)
    return {"placed_tasks": min(placed), "longest_ms": found[worst], "by_policy": worst}


def _tasks_placed(answer: object) -> int:
    assert isinstance(answer, decision_pb2.PlaceResponse)
    return sum(len(decision.assignments) for decision in answer.decisions)


def _holds(tasks: int) -> Callable[[Figures], bool]:
    def holds(figures: Figures) -> bool:
        longest = [float(figures[f"longest_{carrier}_ms"]) for carrier in _CARRIERS]
        return figures["placed_tasks"] == tasks and max(longest) <= _LONGEST_MS

    return holds


ATTACKS = [
    *[
        Attack(
            f"a gang of 1,024 tasks on 10,000 nodes, {policy}",
            f"A gang of 1,024 tasks on 10,000 nodes holds the loop no longer than 50 ms: {policy}, all carriers.",
            "tests/unit/engine/place/test_sliced_drafting.py::test_others_have_a_turn_within_a_gang_and_see_none_of_it_or_all",
            _longest(policy, 1, 1024),
            _holds(1024),
            is_quick=policy == "consolidate",
        )
        for policy in ("consolidate", "tetris", "harmony", "search")
    ],
    Attack(
        "8,192 tasks in 256 jobs on 10,000 nodes",
        "8,192 tasks in 256 jobs hold the loop no longer than 50 ms, and each job sees the decisions before it.",
        "tests/unit/engine/place/test_sliced_drafting.py::test_the_next_job_sees_what_others_took_in_between",
        _longest("consolidate", 256, 32),
        _holds(8192),
        is_quick=False,
    ),
    Attack(
        "a policy's first gang on 10,000 nodes",
        "The first count of a policy on a new view of 10,000 nodes holds the loop no longer than 50 ms: all policies.",
        "tests/unit/core/policies/test_place_policies.py::test_a_first_count_of_many_nodes_takes_few_steps",
        _first_counts,
        lambda figures: figures["placed_tasks"] == 2 and float(figures["longest_ms"]) <= _LONGEST_MS,
        is_quick=False,
    ),
]
