"""Item 9: what callers can make in any number: clusters, made and deleted, and queues."""

import http.client
import json
import time
from functools import partial

import redis
from tests.attack.attack import Attack, Figures
from tests.attack.source import Service, Source
from tests.fakes.servers.redis_server import RedisServer

TITLE = "Growth"

_NODE = {"id": "n0", "capacity": {"cpuCores": 64, "memoryGib": 64, "gpus": 8}}
_IDLE_S = 3.0
_SETTLE_S = 5.0  # until every tail has heard of the deletion
_MANY = "1000000"  # a limit out of the way: here clusters themselves are measured


class _Caller:
    """One connection that is kept."""

    def __init__(self, service: Service) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", service.rest_port, timeout=60.0)

    def ask(self, method: str, path: str, body: object = None) -> int:
        """The HTTP status."""
        content = None if body is None else json.dumps(body)
        self._connection.request(method, f"/v1/clusters/{path}", content, {"content-type": "application/json"})
        answer = self._connection.getresponse()
        answer.read()
        return answer.status

    def series(self) -> list[str]:
        """Series of /metrics, each with its value."""
        self._connection.request("GET", "/metrics")
        lines = self._connection.getresponse().read().decode().splitlines()
        return [line for line in lines if not line.startswith("#")]


def _connections(server: RedisServer) -> int:
    with redis.Redis(port=server.port) as client:
        return int(client.info("clients")["connected_clients"]) - 1


def _idle_share(service: Service) -> float:
    before_s = service.processor_s()
    time.sleep(_IDLE_S)
    return (service.processor_s() - before_s) / _IDLE_S


def _clusters(source: Source, count: int, rounds: int) -> Figures:
    server = RedisServer().start()
    try:
        with source.service(
            {"PLACEWISE_REDIS_URL": server.url}, if_known={"PLACEWISE_LIMITS__CLUSTERS": _MANY}
        ) as service:
            caller = _Caller(service)
            began = {"connections": _connections(server), "descriptors": service.descriptors()}
            series, idle, resident_mib = len(caller.series()), _idle_share(service), list[float]()
            for at in range(rounds):
                names = [f"c{at}-{i}" for i in range(count)]  # of each round its own
                for name in names:
                    assert caller.ask("PUT", f"{name}/nodes", {"nodes": [_NODE], "full": True}) == 200
                held, share = _connections(server), _idle_share(service)
                for name in names:
                    assert caller.ask("DELETE", name) == 200
                time.sleep(_SETTLE_S)
                resident_mib.append(service.resident_mib())
            with redis.Redis(port=server.port) as client:
                keys = sum(not key.endswith(b":events") for key in client.keys("pw:{*"))  # those expire within a minute
            return {
                "clusters": count,
                "connections_held": held - began["connections"],
                "processor_idle": share,
                "processor_more_after": max(0.0, _idle_share(service) - idle),
                "grown_since_first_round_mib": resident_mib[-1] - resident_mib[0],
                "connections_after": _connections(server) - began["connections"],
                "descriptors_after": service.descriptors() - began["descriptors"],
                "keys_after": keys,
                "series_after": len(caller.series()) - series,
            }
    finally:
        server.stop()


def _ends_where_it_began(figures: Figures) -> bool:
    return (
        float(figures["connections_held"]) <= 70  # the pool's width and the tail: for any number of clusters
        and float(figures["processor_idle"]) <= 0.15
        and float(figures["processor_more_after"]) <= 0.02
        and float(figures["grown_since_first_round_mib"]) <= 40  # a cluster kept, 0.1 MiB or so, would be 160
        and float(figures["connections_after"]) <= 10
        and float(figures["descriptors_after"]) <= 10
        and figures["keys_after"] == 0
        and int(figures["series_after"]) <= 60  # three histograms of calls: this many are made by the first cluster
    )


def _queues(source: Source) -> Figures:
    with source.service() as service:
        caller = _Caller(service)
        assert caller.ask("PUT", "c/nodes", {"nodes": [_NODE], "full": True}) == 200
        made = 0
        for i in range(1100):
            made += caller.ask("POST", "c/jobs:admitOrWait", {"queue": f"q{i}", "jobs": [{"id": "j"}]}) == 200
        return {"queues": made, "series": sum(line.startswith("placewise_queue_") for line in caller.series())}


_SOAK = "tests/unit/state/redis/test_shared_tail.py::test_one_connection_follows_all_streams_and_ends_with_the_last"

ATTACKS = [
    Attack(
        "100 clusters made and deleted",
        "A process follows all clusters over one connection; clusters made and deleted leave nothing behind.",
        _SOAK,
        partial(_clusters, count=100, rounds=1),
        _ends_where_it_began,
    ),
    Attack(
        "800 clusters made and deleted, three times",
        "As above, with as many clusters as the review made.",
        _SOAK,
        partial(_clusters, count=800, rounds=3),
        _ends_where_it_began,
        is_quick=False,
    ),
    Attack(
        "1,100 queues",
        "A cluster has a limit of queues; metrics name a limited number of them.",
        "tests/unit/engine/test_engine_queues.py::test_a_cluster_has_room_for_so_many_queues",
        _queues,
        lambda figures: 0 < int(figures["queues"]) <= 1000 and int(figures["series"]) <= 3003,
    ),
]
