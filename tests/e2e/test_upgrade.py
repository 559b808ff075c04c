"""Replicas of today beside one of 0.1.0, and beside one of the day before the code was moved, on one Redis, as during
an upgrade (docs/deploy.md)."""

import io
import json
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.attack.source import Service, Source
from tests.fakes.bundles import copy_bundle
from tests.fakes.servers.redis_server import RedisServer

from placewise_models.bundle import MANIFEST

ROOT = Path(__file__).parents[2]
RELEASES = {"0.1.0": "0ce0bd2", "the day before the moves": "8e808999"}
CLUSTER = "shared"
_PATIENCE_S = 20.0


@dataclass
class Pair:
    old: Service
    new: Service
    settings: dict[str, str]

    def both_ways(self) -> Iterator[tuple[Service, Service]]:
        yield self.old, self.new
        yield self.new, self.old


@pytest.fixture(scope="module", params=RELEASES.values(), ids=RELEASES)
def release(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Source:
    """The tree of the release, from the history."""
    archive = subprocess.run(["git", "archive", request.param], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"the history has no {request.param}: {archive.stderr.decode().strip()}")
    root = tmp_path_factory.mktemp("release")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(root, filter="data")
    return Source(root, "before")


@pytest.fixture(scope="module")
def pair(release: Source, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Both use bundles of the older one: it need not encode what newer nets read."""
    bundles = tmp_path_factory.mktemp("bundles")
    (shipped,) = (release.root / "service").rglob(MANIFEST)
    for name in ("default", "next"):
        copy_bundle(bundles / name, source=shipped.parent)
    redis = RedisServer().start()
    settings = {"PLACEWISE_REDIS_URL": redis.url, "PLACEWISE_BUNDLE_DIR": str(bundles)}
    try:
        with release.service(settings) as old, Source(ROOT, "now").service(settings) as new:
            made = Pair(old, new, settings)
            nodes = [{"id": f"n{i}", "capacity": {"cpuCores": 64, "gpus": 4, "memoryGib": 256}} for i in range(2)]
            send("PUT", old, f"clusters/{CLUSTER}/nodes", {"nodes": [{**node, "state": "READY"} for node in nodes]})
            yield made
            for name, service in (("old", old), ("new", new)):
                logged = [json.loads(line) for line in service.text().splitlines() if line.startswith("{")]
                assert [entry for entry in logged if entry["level"] in ("error", "critical")] == [], name
    finally:
        redis.stop()


def post(service: Service, path: str, body: object) -> dict[str, Any]:
    return send("POST", service, path, body)


def send(method: str, service: Service, path: str, body: object) -> dict[str, Any]:
    answer = httpx.request(method, f"{service.url}/v1/{path}", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def place(service: Service, job: str, gpus: int = 4, request_id: str = "") -> dict[str, Any]:
    group = {"role": "WORKER", "count": 1, "demand": {"cpuCores": 1, "gpus": gpus, "memoryGib": 1}}
    body = {"jobs": [{"id": job, "groups": [group]}], "requestId": request_id}
    return post(service, f"clusters/{CLUSTER}/jobs:place", body)


def report(service: Service, job: str, kind: str, decision_id: str = "") -> dict[str, Any]:
    event = {"jobId": job, "kind": kind, "decisionId": decision_id, "eventTime": "2026-11-22T12:00:00Z"}
    return post(service, f"clusters/{CLUSTER}/jobs:reportEvents", {"events": [event]})


def gpus_of(answer: dict[str, Any]) -> set[tuple[str, int]]:
    (decision,) = answer["decisions"]
    return {(a["node"], gpu) for a in decision.get("assignments", ()) for gpu in a.get("gpuIndices", ())}


def used(service: Service) -> float:
    answer = httpx.get(f"{service.url}/v1/clusters/{CLUSTER}", timeout=60)
    return float(answer.json()["used"].get("gpus", 0.0)) if answer.status_code == 200 else -1.0


def eventually(holds: Callable[[], bool]) -> bool:
    deadline_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline_s:
        if holds():
            return True
        time.sleep(0.05)
    return False


def active(service: Service) -> str:
    """The bundle that answers; "" if it was changed while the list was made."""
    bundles = httpx.get(f"{service.url}/v1/bundles", timeout=60).json()["bundles"]
    return next((bundle["name"] for bundle in bundles if bundle["state"] == "ACTIVE"), "")


@pytest.mark.e2e
@pytest.mark.slow
class TestBesideTheRelease:
    def test_each_respects_what_the_other_holds(self, pair: Pair) -> None:
        assert eventually(lambda: used(pair.new) == 0.0)
        for first, second in pair.both_ways():
            held = {"a": place(first, "a"), "b": place(second, "b")}
            assert not gpus_of(held["a"]) & gpus_of(held["b"])
            assert len(gpus_of(held["a"]) | gpus_of(held["b"])) == 8
            for service in (first, second):
                assert place(service, "c")["decisions"][0]["outcome"] in ("WAIT", "NO_FIT")
            for service, job in ((second, "a"), (first, "b")):
                report(service, job, "STARTED", held[job]["meta"]["decisionId"])
                report(service, job, "FINISHED")
            assert eventually(lambda: used(pair.old) == used(pair.new) == 0.0)

    def test_each_repeats_what_the_other_answered(self, pair: Pair) -> None:
        for first, second in pair.both_ways():
            job = f"repeated-{first.grpc_port}"
            answer = place(first, job, request_id=f"id-{job}")
            again = place(second, job, request_id=f"id-{job}")
            assert gpus_of(again) == gpus_of(answer)
            assert again["meta"]["repeated"]
            assert eventually(lambda: used(pair.old) == used(pair.new) == 4.0)
            report(second, job, "STARTED", answer["meta"]["decisionId"])
            report(first, job, "FINISHED")
            assert eventually(lambda: used(pair.old) == used(pair.new) == 0.0)

    def test_each_follows_the_bundle_that_the_other_chose(self, pair: Pair) -> None:
        for first, second in pair.both_ways():
            post(first, "bundles/next:activate", {})
            assert eventually(lambda: active(pair.old) == active(pair.new) == "next")
            post(second, "bundles:rollback", {})
            assert eventually(lambda: active(pair.old) == active(pair.new) == "default")

    def test_rows_that_the_other_summed_or_wrote_without_a_sum_are_read(self, pair: Pair, release: Source) -> None:
        """Progress, overheads and profiles, each written by one replica and changed by the other. A replica of either
        tree that starts then has to read all of them."""
        for first, second in pair.both_ways():
            job = f"measured-{first.grpc_port}"
            decision_id = place(first, job)["meta"]["decisionId"]
            report(first, job, "STARTED", decision_id)
            for service, speed in ((first, 1.5), (second, 2.5)):
                described = {"id": job, "subtasks": [{"id": "s", "kind": job, "profile": {"share": speed}}]}
                share = {"taskKind": job, "node": "n0", "unit": "cpu", "scale": speed, "overheadSeconds": speed}
                events = [
                    {"jobId": job, "kind": "PROGRESS", "speed": speed, "epochsDone": speed, "job": described},
                    {"jobId": job, "kind": "SHARE_FINISHED", "share": share | {"seconds": 1.0}},
                ]
                post(service, f"clusters/{CLUSTER}/jobs:reportEvents", {"events": events})
        with release.service(pair.settings) as old, Source(ROOT, "now").service(pair.settings) as new:
            for service in (old, new):
                full = httpx.get(f"{service.url}/v1/clusters/{CLUSTER}?full=true", timeout=60).json()
                assert sorted(job["speed"] for job in full["jobs"]) == [2.5, 2.5]
        for job in ("measured-" + str(service.grpc_port) for service in (pair.old, pair.new)):
            report(pair.new, job, "FINISHED")
        assert eventually(lambda: used(pair.old) == used(pair.new) == 0.0)

    def test_both_stay_ready(self, pair: Pair) -> None:
        for service in (pair.old, pair.new):
            assert httpx.get(f"{service.url}/readyz", timeout=60).status_code == 200
