"""Item 6: a Redis that hangs, all through an outage, with callers that keep coming."""

import json
import threading
import time
import urllib.error
import urllib.request
from functools import partial

from tests.attack.attack import Attack, Figures
from tests.attack.source import Service, Source
from tests.fakes.servers.redis_server import RedisServer

TITLE = "A Redis that hangs"

_CALLERS, _EVERY_S, _LONGEST_S = 12, 1.5, 1.5
_NODE = {"id": "n0", "capacity": {"cpuCores": 64, "memoryGib": 64, "gpus": 8}}
_PLACE = {"jobs": [{"id": "j", "groups": [{"role": "WORKER", "count": 1, "demand": {"cpuCores": 1}}]}]}
# A cluster that is not there: its view is not loaded. Two that take turns: at one queue, and at the choice of bundles.
_PATHS = (
    *[f"clusters/{cluster}/jobs:place" for cluster in ("loaded", "other", "absent")],
    "clusters/loaded/jobs:admitOrWait",
    "bundles/default:activate",
    "clusters/loaded/jobs:admitOrWait",
)


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

    def call(path: str, i: int) -> None:
        began_s = time.monotonic()
        jobs = [{**_PLACE["jobs"][0], "id": f"j{i}-{began_s}"}]
        codes.append(_ask(service, path, {} if path.startswith("bundles") else {"jobs": jobs}))
        seconds.append(time.monotonic() - began_s)

    threads = []
    redis.pause()
    end_s = time.monotonic() + outage_s
    while time.monotonic() < end_s:
        for i in range(_CALLERS):
            threads.append(threading.Thread(target=call, args=(_PATHS[i % len(_PATHS)], i)))
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
