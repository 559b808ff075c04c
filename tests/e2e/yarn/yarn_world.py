"""A real YARN and the real service. Decisions are read from the service by the ids in the ResourceManager's log."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.e2e.hosts.decision_log import DecisionLog, read_log
from tests.e2e.slurm.slurm_cluster import free_ports
from tests.e2e.yarn.yarn_artefacts import HADOOP, JAR, SHELL, missing
from tests.e2e.yarn.yarn_cluster import YarnCluster, wait_for

from placewise_service.state.redis.embedded import embedded_url

_LACKING = missing() or ("" if JAR.exists() and HADOOP.exists() else "run make e2e-yarn, which builds the jar")
MARKS = [
    pytest.mark.e2e,
    pytest.mark.e2e_heavy,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        bool(_LACKING) and "PLACEWISE_TEST_REQUIRE_SCHEDULERS" not in os.environ, reason=f"YARN: {_LACKING}"
    ),
]

PLACEWISE = str(Path(sys.executable).parent / "placewise")
ROOT = Path(__file__).parents[3]
CLUSTER = "yarn-e2e"
ALLOCATOR = "yarn.scheduler.app-placement-allocator.class"
_SHELL_CLIENT = "org.apache.hadoop.yarn.applications.distributedshell.Client"
_PLACED = re.compile(r"Placewise: gang (\S+) of \d+ containers goes to \[[^]]*\], decision (\S+)")
_WOULD = re.compile(r"Placewise dry run: gang (\S+) would run on \[[^]]*\], decision (\S+)")
_RELEASED = re.compile(r"Placewise(?: dry run)?: gang (\S+) (?:is left to YARN: |(?=would ))(.*)")
_RUNS = re.compile(r"Placewise: gang (\S+) runs as decided")


def _application(gang: str) -> str:
    """appattempt_1_0002_000001/w1.1.x → application_1_0002"""
    return "application_" + "_".join(gang.split("/", maxsplit=1)[0].split("_")[1:3])


@dataclass
class Door:
    """The access to the service: its settings, and the words of the test. By default anybody has it, in clear."""

    environment: Mapping[str, str] = field(default_factory=dict)
    token: str = ""
    context: ssl.SSLContext | None = None

    def url(self, port: int) -> str:
        return f"{'https' if self.context else 'http'}://127.0.0.1:{port}"


@dataclass
class YarnWorld:
    """Everything of one test run under one folder. `submitted` counts applications."""

    yarn: YarnCluster
    rest_port: int
    grpc_port: int
    service: list[subprocess.Popen[bytes]] = field(default_factory=list)
    clients: list[subprocess.Popen[bytes]] = field(default_factory=list)
    submitted: int = 0
    door: Door = field(default_factory=Door)

    @property
    def root(self) -> Path:
        return self.yarn.root

    @property
    def state_dir(self) -> Path:
        return self.root / "service-state"

    # --- the service --------------------------------------------------------------------------------------------------

    @property
    def service_environment(self) -> dict[str, str]:
        paths = os.pathsep.join(str(ROOT / folder) for folder in ("service", "clients/python"))
        return {
            **os.environ,
            "PYTHONPATH": paths,
            "PLACEWISE_STATE_DIR": str(self.state_dir),
            "PLACEWISE_SERVER__GRPC_PORT": str(self.grpc_port),
            "PLACEWISE_SERVER__REST_PORT": str(self.rest_port),
            **self.door.environment,
        }

    def start_service(self) -> None:
        with (self.root / "service.log").open("ab") as log:
            options = {"env": self.service_environment, "cwd": self.root, "start_new_session": True}
            self.service = [subprocess.Popen([PLACEWISE, "serve"], stdout=log, stderr=log, **options)]
        wait_for(lambda: self.ask("readyz") is not None, "the service", 60)

    def signal_service(self, number: int) -> None:
        """To the service and its embedded Redis."""
        for process in self.service:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)

    def kill_service(self) -> None:
        self.signal_service(signal.SIGKILL)
        for process in self.service:
            process.wait(timeout=30)
        self.service = []

    def stop(self) -> None:
        """Every process of this run."""
        for process in self.clients:
            process.kill()
            process.wait(timeout=30)
        self.yarn.stop()
        self.kill_service()
        # The service's Redis outlives a killed service, for the next one to take over.
        with contextlib.suppress(redis.ConnectionError), redis.Redis.from_url(embedded_url(self.state_dir)) as store:
            store.shutdown(nosave=True)

    def ask(self, path: str) -> Any:
        """One answer of the service's REST face; None if it has none."""
        headers = {"authorization": f"Bearer {self.door.token}"} if self.door.token else {}
        request = urllib.request.Request(f"{self.door.url(self.rest_port)}/{path}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=10, context=self.door.context) as answer:
                text = answer.read().decode()
        except OSError:
            return None
        return json.loads(text) if text.startswith("{") else text

    def cluster(self) -> dict[str, Any]:
        return self.ask(f"v1/clusters/{CLUSTER}?full=true") or {}

    def known_nodes(self) -> int:
        return len([node for node in self.cluster().get("nodes", []) if node.get("state") == "READY"])

    # --- decisions and what became of them ----------------------------------------------------------------------------

    def log(self) -> DecisionLog:
        """The decision log as it is now."""
        return read_log(self.root / "export", CLUSTER, self.service_environment)

    def decisions(self) -> dict[str, list[tuple[str, str]]]:
        """By application, each gang with the id of its decision, in order; none that was left to YARN later."""
        return self._by_application(_PLACED)

    def dry_decisions(self) -> dict[str, list[tuple[str, str]]]:
        """The same of a dry run; empty for applications that would have waited."""
        return collections.defaultdict(list, self._by_application(_WOULD))

    def _by_application(self, line: re.Pattern[str]) -> dict[str, list[tuple[str, str]]]:
        found: dict[str, list[tuple[str, str]]] = {}
        for gang, decision in line.findall(self.yarn.log("rm")):
            found.setdefault(_application(gang), []).append((gang, decision))
        return found

    def released(self) -> dict[str, str]:
        """Gangs that were left to YARN, and the reason. A dry run leaves all."""
        return dict(_RELEASED.findall(self.yarn.log("rm")))

    def as_decided(self) -> set[str]:
        """Gangs all of whose containers were bound to the decision."""
        return set(_RUNS.findall(self.yarn.log("rm")))

    def started_twice(self) -> list[str]:
        """Gangs that ran as decided more than once."""
        return [gang for gang, count in Counter(_RUNS.findall(self.yarn.log("rm"))).items() if count > 1]

    def decided_nodes(self, decision: str, gang: str) -> Counter[str] | None:
        """Containers per node, as the service's own record of the decision has them. None without a record: a service
        that is killed loses those it has not written out yet."""
        record = self.ask(f"v1/clusters/{CLUSTER}/decisions/{decision}")
        if record is None:
            return None
        answer = record.get("place") or record["admitOrWait"]["placed"]
        (entry,) = [one for one in answer["decisions"] if one["jobId"] == gang]
        return Counter(task["node"] for task in entry["assignments"])

    def held(self) -> dict[str, tuple[int, int, int]]:
        """GPUs, cores and MiB of memory that the service counts as held, by node."""
        cluster = self.cluster()
        found = {node["id"]: (0, 0, 0) for node in cluster.get("nodes", [])}
        for job in cluster.get("jobs", []):
            for task in job["assignments"]:
                demand, (gpus, cores, mib) = task["demand"], found.get(task["node"], (0, 0, 0))  # a lost node
                found[task["node"]] = (
                    gpus + round(demand.get("gpus", 0)),
                    cores + round(demand.get("cpuCores", 0)),
                    mib + round(demand.get("memoryGib", 0) * 1024),
                )
        return found

    def agrees(self) -> bool:
        """Whether the service counts on every node what YARN counts; a lost node has nothing."""
        held, used, nothing = self.held(), self.yarn.used(), (0, 0, 0)
        return bool(held and used) and all(
            held.get(node, nothing) == used.get(node, nothing) for node in {*held, *used}
        )

    def counted(self, name: str) -> int:
        """One of the adapter's counters, from the ResourceManager's metrics."""
        (source,) = self.yarn.metrics("Hadoop:service=ResourceManager,name=Placewise")
        return int(source[name])

    def is_quiet(self) -> bool:
        """Nothing is held at the service, which knows nodes."""
        cluster = self.cluster()
        return bool(cluster.get("nodes")) and not cluster.get("jobs")

    # --- applications -------------------------------------------------------------------------------------------------

    def submit_shell(
        self,
        containers: int,
        gpus: int,
        command: str = "sleep 1",
        queue: str = "default",
        tags: str = "",
        master_gpus: int = 0,
    ) -> subprocess.Popen[bytes]:
        """A distributed shell with one container per task, by Hadoop's own client."""
        java = self.yarn.java("rm", [f"{SHELL}/*", f"{HADOOP}/*"], 128)
        (jar,) = SHELL.glob("hadoop-yarn-applications-distributedshell-*.jar")
        flags = [f"--jar={jar}", f"--shell_command={command}", f"--num_containers={containers}"]
        flags += [
            f"--container_resources=memory-mb=128,vcores=1,yarn.io/gpu={gpus}",
            f"--master_resources=memory-mb=128,vcores=1,yarn.io/gpu={master_gpus}",
            f"--queue={queue}",
        ]
        flags += [f"--application_tags={tags}"] if tags else []
        words = [part for flag in flags for part in flag.split("=", 1)]
        with (self.root / "client.log").open("ab") as log:
            client = subprocess.Popen(
                [*java, _SHELL_CLIENT, *words, "--timeout", "120000"], stdout=log, stderr=log, cwd=self.root
            )
        self.clients.append(client)
        self.submitted += 1
        return client


def with_jar(rest_port: int) -> dict[str, object]:
    """Properties of yarn-site.xml that switch the adapter on."""
    return {
        "yarn.resourcemanager.application-master-service.processors": "placewise.yarn.PlacewiseProcessor",
        ALLOCATOR: "placewise.yarn.PlacewiseAllocator",
        "placewise.url": f"http://127.0.0.1:{rest_port}",
        "placewise.cluster": CLUSTER,
        "placewise.queues": "root.default",
    }


@contextlib.contextmanager
def yarn_world(
    settings: Mapping[str, object] | None = None,
    scheduler: Mapping[str, object] | None = None,
    before: Callable[[int], None] = lambda rest_port: None,
    kind: type[YarnCluster] = YarnCluster,
    door: Door | None = None,
    has_adapter: bool = True,
) -> Iterator[YarnWorld]:
    """`settings` are further properties of yarn-site.xml, `scheduler` of capacity-scheduler.xml.

    `before` is called with the service's port before anything starts.
    """
    root = Path(tempfile.mkdtemp(prefix="placewise-yarn-"))
    ports, door = free_ports(2 + kind.PORTS), door or Door()
    own = {**with_jar(ports[0]), "placewise.url": door.url(ports[0])} if has_adapter else {}
    yarn = kind(root, [*ports[2:], 28141], {**own, **(settings or {})}, scheduler or {})
    world = YarnWorld(yarn, rest_port=ports[0], grpc_port=ports[1], door=door)
    before(world.rest_port)
    try:
        world.start_service()
        yarn.start()
        if has_adapter:
            wait_for(lambda: world.known_nodes() == 4, "the service to know four nodes", 60)
        yield world
    except BaseException:
        print(f"kept for a look: {root}")
        world.stop()
        raise
    world.stop()
    shutil.rmtree(root, ignore_errors=True)
