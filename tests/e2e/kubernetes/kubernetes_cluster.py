"""A real Kubernetes control plane on loopback: etcd, kube-apiserver with RBAC and TLS, kube-scheduler, fake nodes.

It starts processes in a directory of its own and stops them in the order scheduler, apiserver, etcd. There are no
kubelets: a bound pod stays Pending until a test sets its phase through the status subresource.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.kubernetes import cpu_requests
from tests.e2e.kubernetes.kubernetes_certificates import Authority

ADMIN_TOKEN = "admin-token"
SCHEDULER_TOKEN = "scheduler-token"
ADAPTER_TOKEN = "adapter-token"
ADAPTER_USER = "system:serviceaccount:placewise:placewise-kubernetes"
START_LIMIT_S = 60.0
STOP_LIMIT_S = 10.0


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class ControlPlane:
    """etcd and the apiserver, with as many schedulers as a test starts.

    `features` are feature gates of apiserver and schedulers, `apis` those that the apiserver serves beside its own.
    """

    binaries: Path
    root: Path
    url: str = ""
    features: str = ""
    apis: str = ""
    authority: Authority = field(init=False)
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.authority = Authority(self.root / "pki")

    def start(self) -> None:
        """Starts etcd and the apiserver and waits until the apiserver answers readiness."""
        cpu_requests.request("kube-controller-manager", cpu_requests.CONTROLLERS)
        etcd_url = f"http://127.0.0.1:{free_port()}"
        self._start_etcd(etcd_url)
        self._start_apiserver(etcd_url)
        self._wait_ready()

    def stop(self) -> None:
        """Stops everything, the newest process first."""
        for name in reversed(list(self._processes)):
            self.stop_process(name)

    def stop_process(self, name: str) -> None:
        """Ends one process by name, gently and then by force."""
        process = self._processes.pop(name)
        process.terminate()
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def start_scheduler(self, name: str, config: dict[str, Any]) -> None:
        """Starts a kube-scheduler; `config` adds to (or replaces fields of) its configuration object."""
        kubeconfig = self.root / f"{name}.kubeconfig"
        kubeconfig.write_text(json.dumps(self.kubeconfig(SCHEDULER_TOKEN)))
        document = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 1000, "burst": 2000},
        } | config
        path = self.root / f"{name}.config"
        path.write_text(json.dumps(document))
        self.start_process(
            name,
            str(self.binaries / "kube-scheduler"),
            f"--config={path}",
            f"--secure-port={free_port()}",
            "--bind-address=127.0.0.1",
            f"--cert-dir={self.root / name}",
            *([f"--feature-gates={self.features}"] if self.features else ()),
            milli_cpu=cpu_requests.SCHEDULER,
        )

    def kubeconfig(self, token: str, url: str = "") -> dict[str, Any]:
        """A kubeconfig document for a bearer token; `url` is another way to the API server."""
        server = {"server": url or self.url, "certificate-authority": str(self.authority.ca_path)}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": server}],
            "users": [{"name": "test", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        }

    def kill_process(self, name: str) -> None:
        """Ends one process by SIGKILL."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def signal_process(self, name: str, number: signal.Signals) -> None:
        """Sends a signal to one process by name: SIGSTOP makes it hang."""
        self._processes[name].send_signal(number)

    def start_process(
        self, name: str, *command: str, milli_cpu: int, cwd: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """Starts a process that logs into the root directory and is ended by `stop`."""
        weighed = cpu_requests.requesting(name, milli_cpu, command)
        with (self.root / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(weighed, stdout=log, stderr=log, cwd=cwd or self.root, env=environment())
        self._processes[name] = process
        return process

    def log(self, name: str) -> str:
        """The output of a process so far."""
        return (self.root / f"{name}.log").read_text(errors="replace")

    def wait_for_log(self, name: str, text: str) -> None:
        """Waits until a process has written this; raises TimeoutError with its log if it ends first or never does."""
        limit = time.monotonic() + START_LIMIT_S
        while time.monotonic() < limit and self._processes[name].poll() is None:
            if text in self.log(name):
                return
            time.sleep(0.05)
        raise TimeoutError(self.log(name)[-3000:])

    def request(self, method: str, path: str, body: Any = None, content: str = "application/json") -> Any:
        """One call as administrator; the decoded answer.

        Raises:
            urllib.error.HTTPError: the apiserver refused.
        """
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method, headers=self.headers(content))
        try:
            with urllib.request.urlopen(request, context=self.tls(), timeout=30) as response:
                return json.loads(response.read() or b"null")
        except urllib.error.HTTPError as error:
            error.close()
            raise

    def headers(self, content: str = "application/json") -> dict[str, str]:
        """Of a call as administrator."""
        return {"Authorization": f"Bearer {ADMIN_TOKEN}", "Content-Type": content}

    def tls(self) -> ssl.SSLContext:
        """Trusts the authority of this control plane."""
        return ssl.create_default_context(cafile=str(self.authority.ca_path))

    def _start_etcd(self, url: str) -> None:
        self.start_process(
            "etcd",
            str(self.binaries / "etcd"),
            f"--data-dir={self.root / 'etcd'}",
            f"--listen-client-urls={url}",
            f"--advertise-client-urls={url}",
            f"--listen-peer-urls=http://127.0.0.1:{free_port()}",
            "--unsafe-no-fsync",
            "--logger=zap",
            milli_cpu=cpu_requests.ETCD,
        )

    def _start_apiserver(self, etcd_url: str) -> None:
        port = free_port()
        self.url = f"https://127.0.0.1:{port}"
        certificate, key = self.authority.issue("apiserver")
        _, account_key = self.authority.issue("service-account")
        tokens = self.root / "tokens.csv"
        tokens.write_text(
            f'{ADMIN_TOKEN},admin,1,"system:masters"\n'
            f"{SCHEDULER_TOKEN},system:kube-scheduler,2\n"
            f"{ADAPTER_TOKEN},{ADAPTER_USER},3\n"
        )
        self.start_process(
            "kube-apiserver",
            str(self.binaries / "kube-apiserver"),
            f"--etcd-servers={etcd_url}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
            f"--token-auth-file={tokens}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://localhost",
            f"--service-account-key-file={account_key}",
            f"--service-account-signing-key-file={account_key}",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
            "--max-requests-inflight=2000",
            "--max-mutating-requests-inflight=1000",
            *([f"--feature-gates={self.features}"] if self.features else ()),
            *([f"--runtime-config={self.apis}"] if self.apis else ()),
            milli_cpu=cpu_requests.APISERVER,
        )

    def _wait_ready(self) -> None:
        """Ready means that the default namespace is there, which the apiserver makes a little after /readyz."""
        limit = time.monotonic() + START_LIMIT_S
        while time.monotonic() < limit and self._processes["kube-apiserver"].poll() is None:
            try:
                self.request("GET", "/api/v1/namespaces/default")
                return
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        raise TimeoutError(f"apiserver not ready: {self.log('kube-apiserver')[-3000:]}")


def environment() -> dict[str, str]:
    """Our own, with the packages that this test run imports."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def fake_node(name: str, gpus: int = 8, cpu: int = 64, memory_gib: int = 512, model: str = "V100") -> dict[str, Any]:
    """A Ready node without a kubelet."""
    amounts = {"cpu": str(cpu), "memory": f"{memory_gib}Gi", "pods": "200", "nvidia.com/gpu": str(gpus)}
    labels = {"kubernetes.io/hostname": name, "nvidia.com/gpu.product": model}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Fake", "message": "no kubelet"}],
        },
    }


def pod(
    name: str,
    *,
    gpus: int = 1,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    scheduler: str = "default-scheduler",
) -> dict[str, Any]:
    """A pod of one container that asks for GPUs."""
    amounts = {"cpu": "1", "memory": "1Gi"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    container = {"name": "main", "image": "none", "resources": {"limits": amounts, "requests": amounts}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": dict(labels or {}), "annotations": dict(annotations or {})},
        "spec": {
            "schedulerName": scheduler,
            "containers": [container],
            "automountServiceAccountToken": False,
            "restartPolicy": "Never",
        },
    }


def gang(name: str, size: int, **options: Any) -> list[dict[str, Any]]:
    """The pods of one gang, named NAME-0 …, with the labels that the adapter reads."""
    labels = {"placewise.dev/job": name} | options.pop("labels", {})
    annotations = {"placewise.dev/gang": str(size)} | options.pop("annotations", {})
    return [pod(f"{name}-{index}", labels=labels, annotations=annotations, **options) for index in range(size)]
