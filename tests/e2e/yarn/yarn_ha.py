"""Two ResourceManagers, one active: a person decides which by YARN's own command, or ZooKeeper does."""

from __future__ import annotations

import contextlib
import json
import socket
import urllib.request
from collections import Counter
from pathlib import Path
from typing import ClassVar

from tests.e2e.yarn.yarn_artefacts import HADOOP, JAR
from tests.e2e.yarn.yarn_cluster import NODES, RM, YarnCluster, wait_for

RMS = ("rm1", "rm2")
_SESSION_MS = 4000
_ADDRESSES = ("webapp.address", "address", "scheduler.address", "resource-tracker.address", "admin.address")


class PairedCluster(YarnCluster):
    """The four nodes of YarnCluster with two ResourceManagers. Both keep their state in one folder."""

    PORTS: ClassVar[int] = 10
    active = RMS[0]

    @property
    def web(self) -> str:
        return f"http://127.0.0.1:{self._port(self.active, 'webapp.address')}/ws/v1/cluster"

    def _site(self) -> dict[str, object]:
        name = "yarn.resourcemanager"
        site = super()._site()
        for address in (*_ADDRESSES, "hostname"):
            del site[f"{name}.{address}"]
        addresses = {
            f"{name}.{address}.{rm}": f"127.0.0.1:{self._port(rm, address)}" for rm in RMS for address in _ADDRESSES
        }
        return {
            **site,
            **addresses,
            **{f"{name}.hostname.{rm}": "127.0.0.1" for rm in RMS},
            f"{name}.ha.enabled": "true",
            f"{name}.ha.automatic-failover.enabled": "false",
            f"{name}.ha.rm-ids": ",".join(RMS),
            f"{name}.cluster-id": "pair",
            "yarn.client.failover-sleep-base-ms": 200,
            "yarn.client.failover-sleep-max-ms": 1000,
        }

    def write(self) -> None:
        super().write()
        for rm in RMS:
            self._write_configuration(rm, {**self._site(), "yarn.resourcemanager.ha.id": rm}, {})

    def start_rm(self) -> None:
        for rm in RMS:
            self._spawn(rm, [*self.java(rm, [JAR, f"{HADOOP}/*"], 256), RM])
        for rm in RMS:
            wait_for(lambda rm=rm: self._takes_commands(rm), f"{rm} to take commands", 60)
        self._command("RMAdminCLI", "-transitionToActive", self.active)

    def _port(self, rm: str, address: str) -> int:
        return self.ports[len(_ADDRESSES) * RMS.index(rm) + _ADDRESSES.index(address)]

    def _takes_commands(self, rm: str) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port(rm, "admin.address"))):
            return True
        return False

    def turn_to(self, rm: str) -> None:
        """The other one is on standby afterwards. Raises CalledProcessError, TimeoutError."""
        self._command("RMAdminCLI", "-transitionToStandby", self.active)
        self._command("RMAdminCLI", "-transitionToActive", rm)
        self.active = rm
        wait_for(lambda: self.running_nodes() == len(NODES), f"the nodes to turn to {rm}", 60)

    def log(self, name: str) -> str:
        """`rm` means both ResourceManagers, in the order of time."""
        if name != "rm":
            return super().log(name)
        lines = [line for rm in RMS for line in super(PairedCluster, self).log(rm).splitlines() if line[:2] == "20"]
        return "\n".join(sorted(lines))

    def threads(self, rm: str) -> Counter[str]:
        """Our threads that live in the ResourceManager's process, by name; the kernel keeps 15 characters of it."""
        tasks = Path(f"/proc/{self.processes[rm].pid}/task").glob("*/comm")
        names = Counter(task.read_text().strip() for task in tasks)
        return Counter({name: count for name, count in names.items() if name.startswith("placewise")})


class ElectedCluster(PairedCluster):
    """A single ZooKeeper elects the active ResourceManager."""

    PORTS: ClassVar[int] = PairedCluster.PORTS + 1

    def _site(self) -> dict[str, object]:
        return {
            **super()._site(),
            "yarn.resourcemanager.ha.automatic-failover.enabled": "true",
            "yarn.resourcemanager.zk-address": f"127.0.0.1:{self.ports[PairedCluster.PORTS]}",
            "yarn.resourcemanager.zk-timeout-ms": _SESSION_MS,
        }

    def start_rm(self) -> None:
        flags = ["-Dzookeeper.admin.enableServer=false", "org.apache.zookeeper.server.ZooKeeperServerMain"]
        port, folder = str(self.ports[PairedCluster.PORTS]), str(self.root / "zookeeper")
        self._spawn("zookeeper", [*self.java("rm", [f"{HADOOP}/*"], 128), *flags, port, folder])
        for rm in RMS:
            self.start_one(rm)
        wait_for(lambda: bool(self._elected()), "one ResourceManager to become active", 60)
        self.active = self._elected()

    def start_one(self, rm: str) -> None:
        self._spawn(rm, [*self.java(rm, [JAR, f"{HADOOP}/*"], 256), RM])
        wait_for(lambda: bool(self._state(rm)), f"{rm} to answer", 60)

    def _state(self, rm: str) -> str:
        url = f"http://127.0.0.1:{self._port(rm, 'webapp.address')}/ws/v1/cluster/info"
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=10) as answer:
            return str(json.load(answer)["clusterInfo"]["haState"])
        return ""

    def _elected(self) -> str:
        return next((rm for rm in RMS if self._state(rm) == "ACTIVE"), "")

    def kill_active(self) -> None:
        """ZooKeeper makes the other one active. Raises TimeoutError."""
        killed = self.active
        (self.active,) = set(RMS) - {killed}
        self.kill(killed)
        wait_for(lambda: self._elected() == self.active, f"{self.active} to become active", 60)
        self.start_one(killed)
        wait_for(lambda: self.running_nodes() == len(NODES), f"the nodes to turn to {self.active}", 60)
