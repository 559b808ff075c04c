"""Item 6: a Redis that hangs, all through an outage, with callers of every kind that keep coming."""

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial

import grpc
from google.protobuf import json_format
from google.protobuf.message import Message
from tests.attack.attack import Attack, Figures
from tests.attack.source import Service, Source
from tests.fakes.servers.redis_server import RedisServer

from placewise.v1.cluster_pb2 import JobEvent, ReportJobEventsRequest
from placewise.v1.decision_pb2 import AdmitOrWaitRequest, PlaceRequest
from placewise.v1.job_pb2 import Job

TITLE = "A Redis that hangs"

_EVERY_S, _LONGEST_S = 1.5, 1.5
_NODE = {"id": "n0", "capacity": {"cpuCores": 64, "memoryGib": 64, "gpus": 8}}
_PLACE = {"jobs": [{"id": "j", "groups": [{"role": "WORKER", "count": 1, "demand": {"cpuCores": 1}}]}]}
Ask = Callable[[Service, str], int]
"""Asks under an id that is new; the HTTP status, or 503 for UNAVAILABLE by gRPC."""


def _ask(service: Service, path: str, body: object, method: str = "POST") -> int:
    """The HTTP status; 0 for no answer within a minute."""
    request = urllib.request.Request(
        f"{service.url}/v1/{path}",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
        method=method,
    )
    try:
        with urllib.request.urlopen(request, timeout=60.0) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def _places(cluster: str) -> Ask:
    path = f"clusters/{cluster}/jobs:place"
    return lambda service, name: _ask(service, path, {"jobs": [{**_PLACE["jobs"][0], "id": name}]})


def _admits(service: Service, name: str) -> int:
    return _ask(service, "clusters/loaded/jobs:admitOrWait", {"jobs": [{"id": name}]})


def _activates(service: Service, name: str) -> int:
    return _ask(service, "bundles/default:activate", {})


def _reports_nodes(service: Service, name: str) -> int:
    return _ask(service, "clusters/loaded/nodes", {"nodes": [{**_NODE, "id": name}]}, "PUT")


def _reports_events(service: Service, name: str) -> int:
    return _ask(service, "clusters/loaded/jobs:reportEvents", {"events": [{"jobId": name, "kind": "CANCELLED"}]})


def _splits(service: Service, name: str) -> int:
    """With an id, under which the answer is to be kept."""
    body = {"task": {"id": name, "parallelScale": 10.0}, "requestId": name}
    return _ask(service, "clusters/loaded/tasks:partition", body)


def _by_grpc(path: str, message: Callable[[str], Message]) -> Ask:
    def ask(service: Service, name: str) -> int:
        with grpc.insecure_channel(service.target) as channel:
            try:
                channel.unary_unary(f"/placewise.v1.{path}")(message(name).SerializeToString(), timeout=60.0)
            except grpc.RpcError as error:
                return 503 if error.code() is grpc.StatusCode.UNAVAILABLE else 0
        return 200

    return ask


def _place(name: str) -> Message:
    return json_format.ParseDict({"cluster": "loaded", "jobs": [{**_PLACE["jobs"][0], "id": name}]}, PlaceRequest())


def _admit(name: str) -> Message:
    return AdmitOrWaitRequest(cluster="loaded", jobs=[Job(id=name)])


def _report(name: str) -> Message:
    events = [JobEvent(job_id=name, kind=JobEvent.CANCELLED)]
    return ReportJobEventsRequest(cluster="loaded", events=events)


# A cluster that is not there: its view is not loaded. Several take turns: at one queue, at the choice of bundles.
_CALLS: tuple[Ask, ...] = (
    *[_places(cluster) for cluster in ("loaded", "other", "absent")],
    _admits,
    _admits,
    _activates,
    _reports_nodes,
    _reports_events,
    _splits,
    _by_grpc("DecisionService/Place", _place),
    _by_grpc("DecisionService/AdmitOrWait", _admit),
    _by_grpc("ClusterService/ReportJobEvents", _report),
)


def _outage(source: Source, outage_s: float) -> Figures:
    redis = RedisServer().start()
    try:
        with source.service({"PLACEWISE_REDIS_URL": redis.url}) as service:
            for cluster in ("loaded", "other"):
                assert _ask(service, f"clusters/{cluster}/nodes", {"nodes": [_NODE], "full": True}, "PUT") == 200
            assert _ask(service, "clusters/loaded/jobs:place", _PLACE) == 200
            return _measured(service, redis, outage_s)
    finally:
        redis.resume()
        redis.stop()


def _measured(service: Service, redis: RedisServer, outage_s: float) -> Figures:
    seconds: list[float] = []
    codes: list[int] = []

    def call(ask: Ask, i: int) -> None:
        began_s = time.monotonic()
        codes.append(ask(service, f"j{i}-{began_s}"))
        seconds.append(time.monotonic() - began_s)

    threads = []
    redis.pause()
    end_s = time.monotonic() + outage_s
    while time.monotonic() < end_s:
        for i, ask in enumerate(_CALLS):
            threads.append(threading.Thread(target=call, args=(ask, i)))
            threads[-1].start()
        time.sleep(_EVERY_S)
    for thread in threads:
        thread.join(60.0)
    redis.resume()
    began_s = time.monotonic()
    while _ask(service, "clusters/loaded/jobs:place", _PLACE) != 200 and time.monotonic() - began_s < 30.0:
        pass
    return {
        "calls": len(seconds),
        "answered_503": codes.count(503),
        "longest_s": max(seconds),
        "back_after_s": time.monotonic() - began_s,
    }


def _holds(figures: Figures) -> bool:
    is_refused = figures["answered_503"] == figures["calls"]
    return is_refused and float(figures["longest_s"]) <= _LONGEST_S and float(figures["back_after_s"]) <= _LONGEST_S


_PROMISE = "All who wait share one attempt and its failure: everybody is answered within 1.5 s, all through the outage."
_TEST = "tests/contract/state/test_redis_pipelined.py::test_one_attempt_is_shared_by_all_who_wait_and_so_is_its_failure"

ATTACKS = [
    Attack("Redis hangs for 6 s", _PROMISE, _TEST, partial(_outage, outage_s=6.0), _holds),
    Attack("Redis hangs for 30 s", _PROMISE, _TEST, partial(_outage, outage_s=30.0), _holds, is_quick=False),
]
