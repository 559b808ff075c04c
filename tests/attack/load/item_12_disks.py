"""A disk without room, and one that changes a byte: what callers, probes, logs and metrics say of it, and what repairs
it."""

import contextlib
import json
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import redis
from tests.attack.attack import Attack, CannotRunError, Figures
from tests.attack.source import Service, Source
from tests.fakes.servers.redis_server import RedisServer

TITLE = "Disks"

_MIB = 1 << 20
_NOTICED_S = 10.0
_NODES = [
    {"id": f"n{i}", "capacity": {"cpuCores": 8 + i % 7, "gpus": 4, "memoryGib": 64}, "state": "READY"}
    for i in range(500)
]


@contextlib.contextmanager
def _small_disk(mib: int) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="placewise-disk-") as folder:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "none", folder], capture_output=True, check=False
        )
        if mounted.returncode != 0:
            raise CannotRunError("mounting a small disk needs root")
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "-l", folder], check=True)


def _fill(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as ballast:
        while True:
            ballast.write(b"\0" * 4096)


def _ask(service: Service, method: str, path: str, body: Any = None) -> tuple[int, str]:
    request = urllib.request.Request(f"{service.url}{path}", method=method)
    if body is not None:
        request.data = json.dumps(body).encode()
        request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=10.0) as answer:
            return int(answer.status), answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def _report(service: Service) -> int:
    return _ask(service, "PUT", "/v1/clusters/prod/nodes", {"nodes": _NODES, "full": True})[0]


def _gauge(service: Service) -> float:
    """-1 without such a metric."""
    lines = _ask(service, "GET", "/metrics")[1].splitlines()
    return next((float(line.split()[1]) for line in lines if line.startswith("placewise_state_unwritable ")), -1.0)


def _until(is_so: Callable[[], bool]) -> None:
    end_s = time.monotonic() + _NOTICED_S
    while not is_so() and time.monotonic() < end_s:
        time.sleep(0.05)


def _full(source: Source) -> Figures:
    with _small_disk(8) as disk, source.service({"PLACEWISE_STATE_DIR": str(disk / "state")}) as service:
        _report(service)
        _fill(disk / "ballast")
        _until(lambda: _report(service) == 503)
        refused = _report(service)
        _until(lambda: _ask(service, "GET", "/readyz")[0] == 503)
        ready, text = _ask(service, "GET", "/readyz")
        gauge, reads = _gauge(service), _ask(service, "GET", "/v1/clusters/prod")[0]
        (disk / "ballast").unlink()
        _until(lambda: _report(service) == 200)
        _until(lambda: _ask(service, "GET", "/readyz")[0] == 200)
        return {
            "change": refused,
            "reads": reads,
            "readyz": ready,
            "readyz_names_the_disk": int("disk" in text),
            "gauge": gauge,
            "errors_in_the_log": service.text().count("every change is refused"),
            "change_after": _report(service),
            "readyz_after": _ask(service, "GET", "/readyz")[0],
            "gauge_after": _gauge(service),
        }


def _is_told(figures: Figures) -> bool:
    return (
        (figures["change"], figures["reads"], figures["readyz"], figures["readyz_names_the_disk"]) == (503, 200, 503, 1)
        and (figures["gauge"], figures["errors_in_the_log"]) == (1.0, 1)
        and (figures["change_after"], figures["readyz_after"], figures["gauge_after"]) == (200, 200, 0.0)
    )


def _copy_with_a_changed_bit(client: "redis.Redis[bytes]") -> None:
    """Cluster "twin" is what "prod" is, but for a bit of its node's record, by which 64 cores are 32."""
    for key in ("meta", "events", "nodes", "capacities"):
        client.copy(f"pw:{{prod}}:{key}", f"pw:{{twin}}:{key}")
    record = bytearray(client.hget("pw:{twin}:nodes", "n0") or b"")
    record[record.index(b"cpu_cores\xcb") + len(b"cpu_cores\xcb") + 1] ^= 0x10
    client.hset("pw:{twin}:nodes", "n0", bytes(record))
    client.sadd("pw:clusters", "twin")


def _damaged(source: Source) -> Figures:
    node = {"id": "n0", "capacity": {"cpuCores": 64, "gpus": 4, "memoryGib": 64}, "state": "READY"}
    group = {"role": "WORKER", "count": 1, "demand": {"cpuCores": 40, "gpus": 1, "memoryGib": 1}}

    def place(cluster: str) -> tuple[int, str]:
        return _ask(service, "POST", f"/v1/clusters/{cluster}/jobs:place", {"jobs": [{"id": "j", "groups": [group]}]})

    server = RedisServer().start()
    try:
        with source.service({"PLACEWISE_REDIS_URL": server.url}) as service:
            _ask(service, "PUT", "/v1/clusters/prod/nodes", {"nodes": [node], "full": True})
            with redis.Redis(port=server.port) as client:
                _copy_with_a_changed_bit(client)
            code, text = place("twin")
            other = place("prod")[0]
            _ask(service, "PUT", "/v1/clusters/twin/nodes", {"nodes": [node], "full": True})
            return {
                "place": code,
                "names_the_node": int("'n0' in pw:{twin}:nodes" in text),
                "decided_from_the_damage": int(code == 200 and '"PLACED"' not in text),
                "other_cluster": other,
                "place_after_a_report": place("twin")[0],
            }
    finally:
        server.stop()


def _is_refused_alone(figures: Figures) -> bool:
    is_refused = (figures["place"], figures["names_the_node"], figures["decided_from_the_damage"]) == (503, 1, 0)
    return is_refused and (figures["other_cluster"], figures["place_after_a_report"]) == (200, 200)


ATTACKS = (
    Attack(
        "a full disk",
        "A full disk under the embedded Redis is logged once, turns readiness red and a gauge to 1; what only reads is "
        "answered, and all is well again by itself once there is room.",
        "tests/contract/state/test_redis_disk.py::test_a_full_disk_turns_readiness_red_until_there_is_room",
        _full,
        _is_told,
    ),
    Attack(
        "a changed bit in Redis",
        "A record that is not as it was written is refused by its name, with its cluster alone; a report of the node "
        "repairs it.",
        "tests/e2e/state/test_damaged_state.py::test_a_damaged_record_is_refused_by_its_name",
        _damaged,
        _is_refused_alone,
    ),
)
