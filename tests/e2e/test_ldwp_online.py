"""LDWP's DQN learns on line: one learner process, two replicas on one Redis that share the bundles, nodes that come and
go. Pipelines are placed and reported through both replicas, as a host would."""

import contextlib
import hashlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.fakes.bundles import copy_bundle
from tests.fakes.servers.redis_server import RedisServer

from placewise_models.bundle import MANIFEST, load
from placewise_service.bench.processes import free_port
from placewise_training.ldwp.printed.train import CHECKPOINT, empty_net, save_net

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

EVERY_S = 3.0
_PATIENCE_S = 240.0
_BASE = "default"


@dataclass
class Replica:
    """A service process on loopback ports."""

    process: "subprocess.Popen[bytes]"
    grpc_port: int
    url: str

    @property
    def is_ready(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/readyz", timeout=5).status_code == 200
        return False


@dataclass
class Site:
    """Two replicas, the learner, and the folder of bundles that all of them see."""

    replicas: Sequence[Replica]
    learner: "subprocess.Popen[bytes]"
    bundles: Path
    log: Path
    _number: Iterator[int]
    last: dict[str, Any] = field(default_factory=dict)

    def report_nodes(self, *names: str) -> None:
        capacity = {"cpuCores": 16, "gpus": 2, "memoryGib": 64}
        nodes = [{"id": name, "capacity": capacity, "state": "READY"} for name in names]
        self._send("PUT", self.replicas[0], "nodes", {"nodes": nodes, "full": True})

    def place(self, replica: Replica) -> dict[str, Any]:
        """Places a pipeline and reports that it has started; its answer."""
        job = f"p{next(self._number)}"
        subtasks = [{"id": "s", "kind": "gmm_background", "size": 3000, "hasGpuVersion": True}]
        body = {"jobs": [{"id": job, "model": "video_synopsis", "subtasks": subtasks}], "policy": "ldwp-paper"}
        answer = self._send("POST", replica, "jobs:place", body)
        assert answer["decisions"][0]["outcome"] == "PLACED", answer
        self._report(replica, job, "STARTED", answer["meta"]["decisionId"])
        return {**answer["meta"], "job": job, "node": answer["decisions"][0]["assignments"][0]["node"]}

    def place_and_finish(self, replica: Replica) -> dict[str, Any]:
        """The learner has a look at it before it ends."""
        meta = self.last = self.place(replica)
        time.sleep(0.5)
        self._report(replica, meta["job"], "FINISHED")
        return meta

    def answers(self) -> list[dict[str, Any]]:
        """An answer of each replica."""
        return [self.place_and_finish(replica) for replica in self.replicas]

    def made(self) -> list[Path]:
        """The learner's bundles, oldest first."""
        return sorted(path for path in self.bundles.glob("*-dqn-*") if not path.name.startswith("."))

    def _report(self, replica: Replica, job: str, kind: str, decision: str = "") -> None:
        event = {"jobId": job, "kind": kind, "decisionId": decision, "eventTime": datetime.now(UTC).isoformat()}
        self._send("POST", replica, "jobs:reportEvents", {"events": [event]})

    def _send(self, method: str, replica: Replica, path: str, body: object) -> dict[str, Any]:
        """Again while Redis does not answer in time, as a host does."""
        deadline_s = time.monotonic() + _PATIENCE_S
        while True:
            answer = httpx.request(method, f"{replica.url}/v1/clusters/lab/{path}", json=body, timeout=60)
            if answer.status_code != 503 or time.monotonic() > deadline_s:
                assert answer.status_code == 200, answer.text
                return dict(answer.json())
            time.sleep(0.2)


def eventually(holds: Callable[[], bool], site: Site) -> None:
    deadline_s = time.monotonic() + _PATIENCE_S
    while not holds():
        assert site.learner.poll() is None, site.log.read_text()
        assert time.monotonic() < deadline_s, f"{site.last}\n{site.log.read_text()}"
        time.sleep(0.1)


def started(arguments: Sequence[str], log: Path, settings: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """A process of `placewise`."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PLACEWISE_")}
    command = [sys.executable, "-m", "placewise_service.cli", *arguments]
    with log.open("wb") as output:
        return subprocess.Popen(command, env={**inherited, **settings}, stdout=output, stderr=output)


@contextlib.contextmanager
def replica(root: Path, settings: Mapping[str, str]) -> Iterator[Replica]:
    """A service, ready; on a busy machine that takes minutes."""
    grpc_port, rest_port = free_port(), free_port()
    ports = {"PLACEWISE_SERVER__GRPC_PORT": str(grpc_port), "PLACEWISE_SERVER__REST_PORT": str(rest_port)}
    log = root / f"replica-{grpc_port}.log"
    made = Replica(started(["serve"], log, {**settings, **ports}), grpc_port, f"http://127.0.0.1:{rest_port}")
    try:
        deadline_s = time.monotonic() + _PATIENCE_S
        while not made.is_ready:
            assert made.process.poll() is None, log.read_text()
            assert time.monotonic() < deadline_s, log.read_text()
            time.sleep(0.1)
        yield made
    finally:
        made.process.terminate()
        made.process.wait(_PATIENCE_S)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    root = tmp_path_factory.mktemp("online")
    (root / "start").mkdir()
    save_net(empty_net(("worker0", "worker1", "worker2")), root / "start" / CHECKPOINT)
    copy_bundle(root / "bundles" / _BASE)
    redis = RedisServer().start()
    settings = {"PLACEWISE_REDIS_URL": redis.url, "PLACEWISE_BUNDLE_DIR": str(root / "bundles")}
    settings["PLACEWISE_REDIS__TIMEOUT_MS"] = "30000"  # of a busy machine
    try:
        with replica(root, settings) as one, replica(root, settings) as two:
            options = {
                "--target": f"127.0.0.1:{one.grpc_port},127.0.0.1:{two.grpc_port}",
                "--cluster": "lab",
                "--bundles": str(root / "bundles"),
                "--start": str(root / "start"),
                "--out": str(root / "learner"),
                "--every-min": str(EVERY_S / 60.0),
                "--poll-s": "0.05",
                "--keep": "1000",
            }
            log = root / "learner.log"
            learner = started(
                ["train", "ldwp", "--method", "dqn", "--online", *itertools.chain(*options.items())], log, {}
            )
            try:
                yield Site((one, two), learner, root / "bundles", log, itertools.count())
            finally:
                os.kill(learner.pid, signal.SIGCONT)
                learner.terminate()
                learner.wait(_PATIENCE_S)
    finally:
        redis.stop()


def test_one_learner_serves_two_replicas_through_bundles_while_nodes_come_and_go(site: Site) -> None:
    three, four, two = (
        ("worker0", "worker1", "worker2"),
        ("worker0", "worker1", "worker2", "worker3"),
        ("worker1", "worker3"),
    )
    site.report_nodes(*three)
    eventually(lambda: not any(meta.get("fallback") for meta in site.answers()), site)
    for names in (four, two):
        os.kill(site.learner.pid, signal.SIGSTOP)  # so that no transferred net is active before somebody has asked
        had = len(load(site.bundles / site.answers()[0]["bundle"]).ldwp_paper.nodes)  # type: ignore[union-attr]
        site.report_nodes(*names)
        why = f"ldwp-paper: its net is for {had} nodes, the cluster has {len(names)}"
        for replica in site.replicas:
            eventually(_answers_with(why, site, replica), site)
        os.kill(site.learner.pid, signal.SIGCONT)
        eventually(lambda: not any(meta.get("fallback") for meta in site.answers()), site)
        one, other = site.answers()
        assert one["bundle"].startswith(f"{_BASE}-dqn-")
        assert {one["node"], other["node"]} <= set(names)
    _check_bundles(site)
    for replica in site.replicas:
        assert "torch" not in Path(f"/proc/{replica.process.pid}/maps").read_text(), "replicas need no torch"


def _answers_with(why: str, site: Site, replica: Replica) -> Callable[[], bool]:
    return lambda: site.place_and_finish(replica).get("fallbackReason") == why


def _check_bundles(site: Site) -> None:
    """It learned between the bundles, none was altered, and none came sooner than the interval allows."""
    eventually(lambda: len(site.made()) >= 4 and bool(site.answers()), site)
    digests = {path: hashlib.sha256((path / MANIFEST).read_bytes()).hexdigest() for path in site.made()}
    bundles = [load(path) for path in digests]
    decisions = [bundle.manifest.metrics["ldwp_paper/decisions"] for bundle in bundles]
    assert decisions == sorted(decisions)
    assert decisions[-1] > decisions[0]
    made = [path.stat().st_mtime for path in digests]
    assert all(after - before >= EVERY_S - 0.5 for before, after in itertools.pairwise(made)), made
    count = len(digests)
    eventually(lambda: bool(site.answers()) and len(site.made()) > count, site)
    for path, digest in digests.items():
        assert hashlib.sha256((path / MANIFEST).read_bytes()).hexdigest() == digest
