"""Volcano on a real control plane: its definitions, its controllers, its scheduler with the shipped configuration, and
the adapter that it calls. There are no kubelets and no garbage collector: a test ends pods, and removes the objects
of a deleted job.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from tests.e2e.kubernetes import cpu_requests
from tests.e2e.kubernetes.kubernetes_cluster import ADMIN_TOKEN, ControlPlane, free_port
from tests.e2e.kubernetes.kubernetes_cluster import pod as fake_pod
from tests.e2e.kubernetes.kubernetes_scenario import PODS, REPOSITORY, AdapterProcess
from tests.e2e.volcano.volcano_assets import CONTROLLERS, DEFINITIONS, SCHEDULER

JOBS = "/apis/batch.volcano.sh/v1alpha1/namespaces/default/jobs"
GROUPS = "/apis/scheduling.volcano.sh/v1beta1/namespaces/default/podgroups"
QUEUES = "/apis/scheduling.volcano.sh/v1beta1/queues"
HYPER_NODES = "/apis/topology.volcano.sh/v1alpha1/hypernodes"
SHIPPED = REPOSITORY / "deploy" / "kubernetes" / "volcano-scheduler.conf"
VOLCANO = "volcano"
PERIOD_S = 1.0
LIMIT_S = 60.0
CPU = 100
_DEFINITIONS_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
# With these, the controllers wait for definitions that the release does not bring in the same folder.
_LEFT_OUT = "*,-sharding-controller,-jobflow-controller,-jobtemplate-controller"


@dataclass
class VolcanoAdapter(AdapterProcess):
    """The adapter as Volcano reaches it: in clear, as Volcano knows no TLS."""

    def start(self, service: str, **config: Any) -> None:
        plain = {"certificate_path": "", "key_path": "", "client_ca_path": "", "is_volcano_served": True}
        super().start(service, listen=plain | config.pop("listen", {}), **config)

    def _call(self, path: str, data: bytes | None) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", data=data, timeout=5) as response:
            return str(response.read().decode())


@dataclass
class VolcanoCluster:
    """A release of Volcano in `assets`, on a control plane that runs."""

    plane: ControlPlane
    assets: Path
    adapter: VolcanoAdapter = field(init=False)

    def __post_init__(self) -> None:
        self.adapter = VolcanoAdapter(self.plane, free_port())

    def start(self) -> None:
        """Starts all but the scheduler, which calls the adapter as soon as it runs."""
        for path in sorted((self.assets / DEFINITIONS).glob("*.yaml")):
            for document in filter(None, yaml.safe_load_all(path.read_text())):
                self.plane.request("POST", _DEFINITIONS_PATH, document)
        for collection in (JOBS, GROUPS, QUEUES):
            until(partial(self._is_served, collection), f"{collection} is served")
        self.make_queue("default")
        self.plane.start_process(
            CONTROLLERS,
            str(self.assets / CONTROLLERS),
            f"--kubeconfig={self._kubeconfig()}",
            "--leader-elect=false",
            f"--healthz-address=127.0.0.1:{free_port()}",
            f"--listen-address=127.0.0.1:{free_port()}",
            "--kube-api-qps=2000",
            "--kube-api-burst=2000",
            f"--controllers={_LEFT_OUT}",
            milli_cpu=cpu_requests.CONTROLLERS,
        )
        until(lambda: self.queue("default")["status"]["state"] == "Open", "queue default is open")

    def start_scheduler(self, conf: Mapping[str, Any] | None = None) -> None:
        """Starts the scheduler with the shipped configuration, or another."""
        path = self.configure(conf or self.shipped())
        self.plane.start_process(
            VOLCANO,
            str(self.assets / SCHEDULER),
            f"--kubeconfig={self._kubeconfig()}",
            f"--scheduler-conf={path}",
            "--leader-elect=false",
            f"--schedule-period={PERIOD_S}s",
            f"--healthz-address=127.0.0.1:{free_port()}",
            f"--listen-address=127.0.0.1:{free_port()}",
            "--cache-dumper=false",
            milli_cpu=CPU,
        )

    def configure(self, conf: Mapping[str, Any]) -> Path:
        """Writes the scheduler's configuration, which it loads again within a second or two."""
        folder = self.plane.root / "volcano-configuration"
        folder.mkdir(exist_ok=True)
        path = folder / "scheduler.conf"
        path.write_text(yaml.safe_dump(dict(conf), sort_keys=False))
        return path

    def shipped(self) -> dict[str, Any]:
        """The configuration of deploy/kubernetes, with the address of this cluster's adapter."""
        conf: dict[str, Any] = yaml.safe_load(SHIPPED.read_text())
        for arguments in _extenders(conf):
            arguments["extender.urlPrefix"] = f"http://127.0.0.1:{self.adapter.port}/volcano"
        return conf

    def alone(self) -> dict[str, Any]:
        """The same without the extender."""
        conf = self.shipped()
        for tier in conf["tiers"]:
            tier["plugins"] = [plugin for plugin in tier["plugins"] if plugin["name"] != "extender"]
        return conf

    def make_queue(self, name: str, gpus: int | None = None, *, guaranteed: int = 0, parent: str = "") -> None:
        """A queue, with the most GPUs that it may use, if any, and those that no other queue may use."""
        spec: dict[str, Any] = {"weight": 1, "reclaimable": True}
        if gpus is not None:
            spec["capability"] = {"cpu": "1k", "memory": "100Ti", "nvidia.com/gpu": str(gpus)}
        if guaranteed:
            spec["guarantee"] = {"resource": {"nvidia.com/gpu": str(guaranteed)}}
        if parent:
            spec["parent"] = parent
        body = {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "Queue",
            "metadata": {"name": name},
            "spec": spec,
        }
        self.plane.request("POST", QUEUES, body)

    def make_hyper_node(self, name: str, tier: int, members: Iterable[str], kind: str = "Node") -> None:
        """A HyperNode of these nodes or, with kind HyperNode, of these HyperNodes."""
        selected = [{"type": kind, "selector": {"exactMatch": {"name": member}}} for member in members]
        body = {
            "apiVersion": "topology.volcano.sh/v1alpha1",
            "kind": "HyperNode",
            "metadata": {"name": name},
            "spec": {"tier": tier, "members": selected},
        }
        self.plane.request("POST", HYPER_NODES, body)

    def queue(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.plane.request("GET", f"{QUEUES}/{name}")
        return found

    def submit(self, job: Mapping[str, Any]) -> str:
        """Makes a vcjob. Returns its uid."""
        return str(self.plane.request("POST", JOBS, job)["metadata"]["uid"])

    def group(self, job: str, uid: str) -> dict[str, Any] | None:
        """The PodGroup of a vcjob, while there is one."""
        try:
            found: dict[str, Any] = self.plane.request("GET", f"{GROUPS}/{job}-{uid}")
        except urllib.error.HTTPError:
            return None
        return found

    def phase(self, job: str, uid: str) -> str:
        """How far Volcano is with the PodGroup of a vcjob; empty if it has none yet or no more."""
        group = self.group(job, uid)
        return str((group or {}).get("status", {}).get("phase", ""))

    def delete(self, job: str, uid: str) -> None:
        """Deletes a vcjob, then, as the garbage collector would, its PodGroup and its pods."""
        self.plane.request("DELETE", f"{JOBS}/{job}")
        for item in self.plane.request("GET", PODS)["items"]:
            if any(owner["uid"] == uid for owner in item["metadata"].get("ownerReferences", ())):
                self.plane.request("DELETE", f"{PODS}/{item['metadata']['name']}", {"gracePeriodSeconds": 0})
        if self.group(job, uid) is not None:
            self.plane.request("DELETE", f"{GROUPS}/{job}-{uid}")

    def clear(self) -> None:
        """Deletes every vcjob, PodGroup and pod, and waits until none is left."""
        for path in (JOBS, GROUPS, PODS):
            self.plane.request("DELETE", path, {"gracePeriodSeconds": 0})
        until(
            lambda: not any(self.plane.request("GET", path)["items"] for path in (JOBS, GROUPS, PODS)), "all are gone"
        )

    def pods(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.plane.request("GET", PODS)["items"]
        return items

    def events_of(self, kind: str, name: str) -> list[str]:
        """Messages of our own events about an object."""
        selector = f"involvedObject.kind%3D{kind},involvedObject.name%3D{name}"
        found = self.plane.request("GET", f"/api/v1/namespaces/default/events?fieldSelector={selector}")["items"]
        return [item["message"] for item in found if item["message"].startswith("Placewise")]

    def _is_served(self, collection: str) -> bool:
        return self.plane.request("GET", collection) is not None

    def _kubeconfig(self) -> Path:
        path = self.plane.root / "volcano.kubeconfig"
        path.write_text(json.dumps(self.plane.kubeconfig(ADMIN_TOKEN)))
        return path


def _extenders(conf: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for tier in conf["tiers"]:
        yield from (plugin["arguments"] for plugin in tier["plugins"] if plugin["name"] == "extender")


def until(condition: Callable[[], bool], words: str, limit_s: float = LIMIT_S) -> float:
    """Waits until it holds; the seconds that this took. Raises TimeoutError."""
    start_s = time.monotonic()
    while time.monotonic() - start_s < limit_s:
        try:
            if condition():
                return time.monotonic() - start_s
        except (urllib.error.URLError, KeyError):
            pass  # not served yet
        time.sleep(0.1)
    raise TimeoutError(f"not so after {limit_s:.0f} s: {words}")


Tasks = Mapping[str, tuple[int, int]]
"""Pods and GPUs of each of them, by role."""


def vcjob(
    name: str,
    tasks: Tasks,
    *,
    queue: str = "default",
    least: int | None = None,
    annotations: Mapping[str, str] | None = None,
    scheduler: str = VOLCANO,
    highest_tier: int | None = None,
) -> dict[str, Any]:
    """A vcjob, as Volcano's webhook would leave it. `highest_tier`: the highest HyperNode that it may cross."""
    hard = {"networkTopology": {"mode": "hard", "highestTierAllowed": highest_tier}}
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": name, "annotations": dict(annotations or {})},
        "spec": {
            "schedulerName": scheduler,
            "queue": queue,
            "minAvailable": least or sum(count for count, _ in tasks.values()),
            "maxRetry": 3,
            **(hard if highest_tier is not None else {}),
            "tasks": [
                {
                    "name": role,
                    "replicas": count,
                    "template": {"metadata": {}, "spec": fake_pod(role, gpus=gpus, scheduler=scheduler)["spec"]},
                }
                for role, (count, gpus) in tasks.items()
            ],
        },
    }


def pods_of(job: Mapping[str, Any]) -> list[str]:
    """Names that the pods of a vcjob will have."""
    name, tasks = job["metadata"]["name"], job["spec"]["tasks"]
    return [f"{name}-{task['name']}-{index}" for task in tasks for index in range(task["replicas"])]


def key_of(job: str, uid: str) -> str:
    """The name of a vcjob's gang at the service."""
    return f"default/{job}-{uid}/{uid[:8]}"
