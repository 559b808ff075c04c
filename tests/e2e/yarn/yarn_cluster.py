"""A real YARN on this machine: one ResourceManager and four NodeManagers, each a process of its own.

Every NodeManager has a host name and a loopback address of its own, by a hosts file that only these JVMs read.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from xml.sax.saxutils import escape

from tests.e2e.yarn.yarn_artefacts import HADOOP, JAR, SHELL

NODES = ("n1", "n2", "n3", "n4")
GPUS = 8
_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xss512k")
_OPENED = ("lang", "lang.reflect", "util", "util.concurrent", "net", "io", "nio", "math", "text", "time")
RM = "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager"
_NM = "org.apache.hadoop.yarn.server.nodemanager.NodeManager"
_MASTER = b"org.apache.hadoop.yarn.applications.distributedshell.ApplicationMaster"
_DONE = re.compile(r"^(\S+ \S+) INFO ContainerImpl: Container (\S+) transitioned from \S+ to DONE$", re.MULTILINE)
_LOG4J = """log4j.rootLogger=INFO,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d{ISO8601} %p %c{1}: %m%n
"""


def wait_for(is_true: Callable[[], bool], what: str, timeout_s: float) -> None:
    """Raises TimeoutError if it does not become true."""
    deadline = time.monotonic() + timeout_s
    while not is_true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s} s for {what}")
        time.sleep(0.1)


def send(method: str, url: str, body: Mapping[str, object]) -> Any:
    """The JSON of the answer. Raises OSError, HTTPError among them."""
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}, method=method
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def write_properties(path: Path, properties: Mapping[str, object]) -> None:
    """A file of Hadoop's configuration."""
    lines = [
        f"<property><name>{name}</name><value>{escape(str(value))}</value></property>"
        for name, value in properties.items()
    ]
    path.write_text("<configuration>\n" + "\n".join(lines) + "\n</configuration>\n")


@dataclass
class YarnCluster:
    """Daemons, configuration and logs under `root`. `ports` are PORTS free ones and that of the nodes. NODE_CLASSES are
    further parts of the nodes' class path.

    `settings` are further properties of yarn-site.xml, `scheduler` of capacity-scheduler.xml.
    """

    PORTS: ClassVar[int] = 5
    NODE_CLASSES: ClassVar[Sequence[str]] = ()

    root: Path
    ports: Sequence[int]
    settings: Mapping[str, object] = field(default_factory=dict)
    scheduler: Mapping[str, object] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _earlier: dict[str, str] = field(default_factory=dict)

    @property
    def web(self) -> str:
        return f"http://127.0.0.1:{self.ports[0]}/ws/v1/cluster"

    @property
    def hosts(self) -> Path:
        return self.root / "hosts"

    @property
    def _excluded(self) -> Path:
        return self.root / "excluded"

    def configuration(self, name: str) -> Path:
        return self.root / "conf" / name

    # --- files --------------------------------------------------------------------------------------------------------

    def write(self) -> None:
        """Writes a folder of configuration for the ResourceManager, which clients share, and one for each node."""
        lines = ["127.0.0.1 localhost", f"127.0.0.1 {os.uname().nodename}"]
        # Addresses of this run alone: another run on the same machine uses the same ports.
        net = f"127.{1 + os.getpid() // 250 % 250}.{os.getpid() % 250}"
        lines += [f"{net}.{11 + number} {node}" for number, node in enumerate(NODES)]
        self._excluded.touch()
        self.hosts.write_text("\n".join(lines) + "\n")
        self._write_configuration("rm", self._site(), {})
        for node in NODES:
            self._write_configuration(node, {**self._site(), **self._node_site(node)}, {"yarn.io/gpu": GPUS})

    def _write_configuration(self, name: str, site: Mapping[str, object], resources: Mapping[str, int]) -> None:
        folder = self.configuration(name)
        folder.mkdir(parents=True, exist_ok=True)
        write_properties(
            folder / "core-site.xml", {"fs.defaultFS": "file:///", "hadoop.tmp.dir": self.root / "tmp" / name}
        )
        write_properties(folder / "yarn-site.xml", site)
        write_properties(folder / "resource-types.xml", {"yarn.resource-types": "yarn.io/gpu"})
        write_properties(
            folder / "node-resources.xml", {f"yarn.nodemanager.resource-type.{k}": v for k, v in resources.items()}
        )
        write_properties(folder / "capacity-scheduler.xml", {**self._queues(), **self.scheduler})
        (folder / "log4j.properties").write_text(_LOG4J)

    def _queues(self) -> dict[str, object]:
        name = "yarn.scheduler.capacity"
        return {
            f"{name}.root.queues": "default",
            f"{name}.root.default.capacity": 100,
            f"{name}.root.default.ordering-policy": "placewise.yarn.PlacewiseOrderingPolicy",
            f"{name}.maximum-am-resource-percent": 1.0,
            f"{name}.resource-calculator": "org.apache.hadoop.yarn.util.resource.DominantResourceCalculator",
        }

    def _site(self) -> dict[str, object]:
        rm = "yarn.resourcemanager"
        store = "org.apache.hadoop.yarn.server.resourcemanager.recovery.FileSystemRMStateStore"
        return {
            f"{rm}.hostname": "127.0.0.1",
            f"{rm}.webapp.address": f"127.0.0.1:{self.ports[0]}",
            f"{rm}.address": f"127.0.0.1:{self.ports[1]}",
            f"{rm}.scheduler.address": f"127.0.0.1:{self.ports[2]}",
            f"{rm}.resource-tracker.address": f"127.0.0.1:{self.ports[3]}",
            f"{rm}.admin.address": f"127.0.0.1:{self.ports[4]}",
            f"{rm}.connect.retry-interval.ms": 1000,
            f"{rm}.nodes.exclude-path": self._excluded,
            f"{rm}.recovery.enabled": "true",
            f"{rm}.store.class": store,
            f"{rm}.fs.state-store.uri": f"file://{self.root}/rm-state",
            f"{rm}.work-preserving-recovery.scheduling-wait-ms": 3000,
            "yarn.resource-types": "yarn.io/gpu",
            "yarn.scheduler.minimum-allocation-mb": 64,
            "yarn.application.classpath": f"{self.configuration('rm')},{HADOOP}/*,{SHELL}/*",
            "yarn.nodemanager.admin-env": f"JAVA_TOOL_OPTIONS=-Djdk.net.hosts.file={self.hosts} -Xmx128m",
            "yarn.nodemanager.pmem-check-enabled": "false",
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.disk-health-checker.enable": "false",
            "yarn.nodemanager.delete.debug-delay-sec": 600,
            "yarn.nodemanager.resource.memory-mb": 16384,
            "yarn.nodemanager.resource.cpu-vcores": 32,
            "yarn.nm.liveness-monitor.expiry-interval-ms": 10000,
            **self.settings,
        }

    def _node_site(self, node: str) -> dict[str, object]:
        name, port = "yarn.nodemanager", self.ports[-1]
        return {
            f"{name}.hostname": node,
            f"{name}.bind-host": node,
            f"{name}.address": f"{node}:{port}",
            f"{name}.localizer.address": f"{node}:{port + 1}",
            f"{name}.webapp.address": f"{node}:{port + 2}",
            f"{name}.collector-service.address": f"{node}:{port + 3}",
            f"{name}.local-dirs": self.root / "local" / node,
            f"{name}.log-dirs": self.root / "containers" / node,
        }

    # --- processes ----------------------------------------------------------------------------------------------------

    def java(self, configuration: str, classes: Sequence[Path | str], heap_mib: int) -> list[str]:
        """A command up to the name of the main class."""
        path = os.pathsep.join([str(self.configuration(configuration)), *map(str, classes)])
        opened = [f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in _OPENED]
        settings = [f"-Djdk.net.hosts.file={self.hosts}", f"-Duser.home={self.root}/home", f"-Xmx{heap_mib}m"]
        return ["java", *_JVM, *opened, *settings, "-cp", path]

    def _spawn(self, name: str, command: Sequence[str]) -> None:
        with (self.root / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self.root, start_new_session=True
            )

    def start_rm(self) -> None:
        self._spawn("rm", [*self.java("rm", [JAR, f"{HADOOP}/*"], 256), RM])

    def start_node(self, node: str) -> None:
        """A NodeManager that starts removes the log folders of the one before."""
        self._earlier.update(self._containers_on(node, "*"))
        self._spawn(node, [*self.java(node, [JAR, f"{HADOOP}/*", *self.NODE_CLASSES], 256), _NM])

    def start(self) -> None:
        """Raises TimeoutError if not every node is running in time."""
        (self.root / "home").mkdir(exist_ok=True)
        self.write()
        self.start_rm()
        for node in NODES:
            self.start_node(node)
        wait_for(lambda: self.running_nodes() == len(NODES), "four NodeManagers", 120)

    def signal(self, name: str, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.processes[name].pid, number)

    def has_ended(self, name: str) -> bool:
        return self.processes[name].poll() is not None

    def kill(self, name: str) -> None:
        self.signal(name, signal.SIGKILL)
        self.processes.pop(name).wait(timeout=30)

    def kill_master(self) -> None:
        """The JVMs of distributed shell's ApplicationMasters of this cluster."""
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                command = (process / "cmdline").read_bytes().split(b"\0")
                is_here = os.fsencode(self.root) in (process / "environ").read_bytes()
                if is_here and command[0].endswith(b"java") and _MASTER in command:
                    os.kill(int(process.name), signal.SIGKILL)

    def kill_applications(self, applications: Sequence[str]) -> None:
        """By YARN's own command. Raises CalledProcessError if it fails."""
        self._command("ApplicationCLI", "application", "-kill", *applications)

    def exclude(self, nodes: Sequence[str]) -> None:
        """Decommissions these nodes, and none but these. Raises CalledProcessError if it fails."""
        self._excluded.write_text("".join(f"{node}\n" for node in nodes))
        self._command("RMAdminCLI", "-refreshNodes")

    def label(self, label: str, nodes: Sequence[str]) -> None:
        """A partition of these nodes. Raises CalledProcessError if it fails."""
        self._command("RMAdminCLI", "-addToClusterNodeLabels", f"{label}(exclusive=true)")
        self._command("RMAdminCLI", "-replaceLabelsOnNode", " ".join(f"{node}={label}" for node in nodes))

    def _command(self, program: str, *arguments: str) -> None:
        command = [*self.java("rm", [f"{HADOOP}/*"], 128), f"org.apache.hadoop.yarn.client.cli.{program}", *arguments]
        subprocess.run(command, cwd=self.root, check=True, capture_output=True, timeout=60)

    def stop(self) -> None:
        for name in list(self.processes):
            self.kill(name)
        shutil.rmtree(self.root / "local", ignore_errors=True)

    # --- what YARN says -----------------------------------------------------------------------------------------------

    def get(self, path: str) -> Any:
        """One answer of the ResourceManager's REST face; None while it is away."""
        try:
            with urllib.request.urlopen(f"{self.web}/{path}", timeout=10) as answer:
                return json.load(answer)
        except OSError:
            return None

    def metrics(self, query: str) -> list[dict[str, Any]]:
        """Sources of the active ResourceManager's /jmx. Raises OSError."""
        url = self.web.removesuffix("ws/v1/cluster") + f"jmx?qry={query}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return list(json.load(answer)["beans"])

    def put(self, path: str, body: Mapping[str, object]) -> Any:
        """Raises OSError, HTTPError among them."""
        return send("PUT", f"{self.web}/{path}", body)

    def running_nodes(self) -> int:
        nodes = (self.get("nodes?states=RUNNING") or {}).get("nodes") or {}
        return len(nodes.get("node", []))

    def used(self) -> dict[str, tuple[int, int, int]]:
        """GPUs, cores and MiB of memory that containers hold, by node."""
        found = {}
        for node in ((self.get("nodes") or {}).get("nodes") or {}).get("node", []):
            used = node.get("usedResource") or {}  # a lost node has none
            amounts = used.get("resourceInformations", {}).get("resourceInformation", [])
            by_name = {amount["name"]: int(amount["value"]) for amount in amounts}
            gpus, cores, mib = (by_name.get(name, 0) for name in ("yarn.io/gpu", "vcores", "memory-mb"))
            found[node["nodeHostName"]] = (gpus, cores, mib)
        return found

    def applications(self) -> dict[str, dict[str, Any]]:
        apps = (self.get("apps") or {}).get("apps") or {}
        return {app["id"]: app for app in apps.get("app", [])}

    def log(self, name: str) -> str:
        return (self.root / f"{name}.log").read_text(errors="replace")

    def output(self, container: str) -> str:
        """Standard output of a container that runs or has ended."""
        (path,) = (self.root / "containers").glob(f"*/*/{container}/stdout")
        return path.read_text()

    def containers(self, application: str) -> dict[str, str]:
        """Node of every container of the application that ran, from the NodeManagers' log folders."""
        of = application.removeprefix("application")
        found = {name: node for name, node in self._earlier.items() if of in name}
        for node in NODES:
            found |= self._containers_on(node, application)
        return found

    def _containers_on(self, node: str, application: str) -> dict[str, str]:
        folders = (self.root / "containers" / node).glob(f"{application}/container_*")
        return {folder.name: node for folder in folders}

    def ended_s(self) -> dict[str, float]:
        """When each container ended, by the NodeManagers' logs: seconds since the epoch."""
        return {
            container: datetime.datetime.fromisoformat(time).timestamp()
            for node in NODES
            for time, container in _DONE.findall(self.log(node))
        }
