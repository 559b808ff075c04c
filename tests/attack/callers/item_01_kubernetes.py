"""The Kubernetes adapter as somebody in the cluster finds it: its port, with and without a client certificate."""

import contextlib
import json
import socket
import ssl
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from tests.attack.attack import Attack, Figures
from tests.attack.source import Process, Service, Source
from tests.e2e.kubernetes.kubernetes_certificates import Authority
from tests.e2e.kubernetes.kubernetes_cluster import fake_node, gang, pod
from tests.fakes.schedulers.kubernetes_http import ServedKube, served_kube

from placewise_service.bench.processes import free_port

TITLE = "Kubernetes adapter"
Document = dict[str, Any]
_NODES = [f"n{index}" for index in range(8)]
_READY_S, _POLL_S, _CALL_S = 30.0, 0.02, 20.0
_MIB = 1 << 20
_GHOSTS, _CALLERS = 2000, 32
_PATHS = [f"x/{'../' * up}apis/any" for up in range(2, 8)]
_BODY_BYTES, _BODIES, _CHUNK = 48 * _MIB, 4, 1 << 16


@dataclass(frozen=True, slots=True)
class _Adapter:
    """A running adapter of a tree. `ssl` is a caller's certificate; `service` may record its requests."""

    process: Process
    port: int
    api: ServedKube
    service: Service | None
    ssl: ssl.SSLContext | None

    def call(self, path: str, body: object, *, headers: Mapping[str, str] | None = None) -> tuple[int, Any]:
        """(status, answer) of one call."""
        scheme = "https" if self.ssl else "http"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{scheme}://127.0.0.1:{self.port}{path}", data=data, headers=headers or {})
        try:
            with urllib.request.urlopen(request, timeout=_CALL_S, context=self.ssl) as response:
                return response.status, _decoded(response.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _decoded(error.read())

    def filter(self, document: Document, offered: list[str] = _NODES) -> list[str]:
        """Nodes that the pod is left with."""
        _, answer = self.call("/filter", {"Pod": document, "Nodes": None, "NodeNames": offered})
        return list(answer["NodeNames"] or ())

    def bind(self, document: Document, node: str, **other: str) -> None:
        metadata = document["metadata"]
        body = {"PodName": metadata["name"], "PodNamespace": metadata["namespace"], "PodUID": metadata["uid"]}
        self.call("/bind", body | {"Node": node} | other)

    def add(self, *documents: Document) -> list[Document]:
        return [self.api.do(lambda kube, each=document: kube.add_pod(each)) for document in documents]  # type: ignore[misc]

    def bound(self) -> dict[str, str]:
        """Node by pod."""
        return {path.rsplit("/", 1)[1]: node for path, node in self.api.do(lambda kube: list(kube.bound))}


def _decoded(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text.decode(errors="replace")


@contextlib.contextmanager
def _adapter(
    source: Source,
    *,
    is_bind_served: bool = False,
    is_volcano_served: bool = False,
    is_mutual: bool = False,
    is_asking: bool = False,
) -> Iterator[_Adapter]:
    """An adapter on plain HTTP, or with `is_mutual` for callers with a certificate; `is_asking`: of a real service."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="placewise-attack-")))
        service = stack.enter_context(source.service()) if is_asking else None
        api = stack.enter_context(served_kube())
        for name in _NODES:
            api.do(lambda kube, node=name: kube.add_node(fake_node(node, 8)))  # type: ignore[misc]
        port = free_port()
        listen: dict[str, Any] = {"port": port}
        settings = (source.root / "clients/kubernetes/placewise_kubernetes/config.py").read_text()
        if "is_bind_served" in settings:
            listen |= {"is_bind_served": is_bind_served, "is_volcano_served": is_volcano_served}
        context = None
        if is_mutual:
            context = _certificates(folder, listen)
        target = service.url if service else f"http://127.0.0.1:{free_port()}"
        document = {"cluster": "kube", "service": {"targets": [target]}, "listen": listen}
        config, kubeconfig = folder / "config.yaml", folder / "kubeconfig"
        config.write_text(yaml.safe_dump(document))
        kubeconfig.write_text(yaml.safe_dump(dict(api.kubeconfig)))
        arguments = ["-m", "placewise_kubernetes.cli", "--config", str(config), "--kubeconfig", str(kubeconfig)]
        process = stack.enter_context(source.process([*arguments, "--log-level", "error"], folder))
        adapter = _Adapter(process, port, api, service, context)
        _wait_until_ready(adapter)
        yield adapter


def _certificates(folder: Path, listen: dict[str, Any]) -> ssl.SSLContext:
    authority = Authority(folder / "pki")
    certificate, key = authority.issue("adapter")
    listen |= {
        "certificate_path": str(certificate),
        "key_path": str(key),
        "client_ca_path": str(authority.ca_path),
    }
    context = ssl.create_default_context(cafile=str(authority.ca_path))
    context.load_cert_chain(*authority.issue("scheduler"))
    return context


def _wait_until_ready(adapter: _Adapter) -> None:
    deadline_s = time.monotonic() + _READY_S
    while time.monotonic() < deadline_s and adapter.process.is_running:
        with contextlib.suppress(OSError):
            if adapter.call("/readyz", None)[0] == 200:
                return
        time.sleep(_POLL_S)
    raise RuntimeError(f"the adapter did not become ready:\n{adapter.process.text()[-2000:]}")


def _decided_node(adapter: _Adapter, document: Document) -> str:
    """The node that a gang of one was decided for, as its scheduler learns it."""
    deadline_s = time.monotonic() + _READY_S
    while time.monotonic() < deadline_s:
        left = adapter.filter(document)
        if len(left) == 1:
            return left[0]
        time.sleep(_POLL_S)
    raise RuntimeError("nothing was decided")


def _bind_anything(source: Source) -> Figures:
    """Without credentials: pods of others, a pod that opted out, and a decided one, each to a node of our choice."""
    with _adapter(source, is_bind_served=True, is_asking=True) as adapter:
        ignored = pod("ignored", annotations={"placewise.dev/ignore": "true"})
        strangers = adapter.add(pod("stranger"), ignored, pod("own", scheduler="placewise", gpus=100))
        (decided,) = adapter.add(*gang("decided", 1))
        node = _decided_node(adapter, decided)
        for document in strangers:
            adapter.filter(document)
            adapter.bind(document, "n7")
        other = next(name for name in _NODES if name != node)
        adapter.bind(decided, other)
        adapter.bind(decided, node, PodName="stranger")
        elsewhere = len(adapter.bound())
        adapter.bind(decided, node)
        return {"bound_for_a_stranger": elsewhere, "decided_pod_bound": int(adapter.bound().get("decided-0") == node)}


def _call_unconfigured(source: Source) -> Figures:
    """Calls that nobody has configured."""
    with _adapter(source) as adapter:
        (document,) = adapter.add(pod("stranger"))
        metadata = document["metadata"]
        body = {"PodName": "stranger", "PodNamespace": "default", "PodUID": metadata["uid"], "Node": "n7"}
        paths = ("/bind", "/volcano/jobEnqueueable", "/volcano/prioritize")
        served = [adapter.call(path, body)[0] != 404 for path in paths]
        return {"calls_served": sum(served), "pods_bound": len(adapter.bound())}


def _walk_paths(source: Source) -> Figures:
    """Names of pods that walk up the API's paths."""
    with _adapter(source, is_bind_served=True) as adapter:
        for name in _PATHS:
            body = {"PodName": name, "PodNamespace": "default", "PodUID": "u", "Node": "n7"}
            adapter.call("/bind", body)
        written = adapter.api.do(lambda _: list(adapter.api.written))
        inside = [path for path in written if path.startswith("/api/v1/namespaces/default/")]
        return {"names": len(_PATHS), "posts_to_other_paths": len(written) - len(inside)}


def _forge_pods(source: Source) -> Figures:
    """Pods and groups that the API server does not know, shown to the adapter as its schedulers do."""
    with _adapter(source, is_volcano_served=True, is_asking=True) as adapter:
        with ThreadPoolExecutor(_CALLERS) as pool:
            list(pool.map(lambda number: adapter.filter(_ghost(number)), range(_GHOSTS)))
        for number in range(50):
            adapter.call("/volcano/jobEnqueueable", {"job": _ghost_group(number)})
        time.sleep(2.0)
        (real,) = adapter.add(*gang("real", 1, gpus=8))
        left = [name for name in adapter.filter(real) if name in _NODES]
        deadline_s = time.monotonic() + 5.0
        while len(left) != 1 and time.monotonic() < deadline_s:
            time.sleep(0.2)
            left = adapter.filter(real)
        return {"forged": _GHOSTS + 50, "jobs_of_ghosts": _asked(adapter), "real_pod_decided": int(len(left) == 1)}


def _ghost(number: int) -> Document:
    (document,) = gang(f"ghost-{number}", 1)
    document["metadata"] |= {"uid": f"ghost-{number}", "namespace": "default"}
    return document


def _ghost_group(number: int) -> Document:
    spec = {"minMember": 2, "minResources": {"nvidia.com/gpu": "2"}}
    metadata = {"name": f"ghosts-{number}", "namespace": "default", "uid": f"ghosts-{number}"}
    group = {"metadata": metadata, "spec": spec}
    return {"Name": metadata["name"], "Namespace": "default", "UID": metadata["uid"], "PodGroup": group}


def _asked(adapter: _Adapter) -> int:
    """Jobs of ghosts that the service holds GPUs for, or lets wait."""
    assert adapter.service is not None
    url = f"{adapter.service.url}/v1/clusters/kube?full=true"
    with urllib.request.urlopen(url, timeout=_CALL_S) as response:
        text = response.read().decode()
    return len({word for word in text.split('"') if "/ghost" in word})


def _send_bodies(source: Source) -> Figures:
    """Bodies that are announced, and then sent for as long as the adapter takes them."""
    with _adapter(source) as adapter:
        before_mib = adapter.process.resident_mib()
        adapter.process.forget_peak()
        with ThreadPoolExecutor(_BODIES) as pool:
            taken = list(pool.map(lambda _: _send_body(adapter.port), range(_BODIES)))
        growth_mib = adapter.process.peak_mib() - before_mib
        still_up = adapter.call("/healthz", None)[0]
        return {"sent_mib": sum(taken) / _MIB, "growth_mib": growth_mib, "healthz": still_up}


def _send_body(port: int) -> int:
    """Bytes of the body that went out before the adapter answered."""
    with socket.create_connection(("127.0.0.1", port), timeout=_CALL_S) as connection:
        head = f"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: {_BODY_BYTES}\r\n\r\n"
        connection.sendall(head.encode())
        connection.settimeout(0.5)
        with contextlib.suppress(TimeoutError, OSError):
            if connection.recv(1):  # an answer before any of the body
                return 0
        connection.settimeout(_CALL_S)
        sent = 0
        with contextlib.suppress(OSError):
            while sent < _BODY_BYTES:
                sent += connection.send(b" " * min(_CHUNK, _BODY_BYTES - sent))
            connection.recv(1)
        return sent


def _bind_with_certificate(source: Source) -> Figures:
    """While the service is away: pods let through are bound only for a scheduler with a certificate."""
    with _adapter(source, is_bind_served=True, is_mutual=True) as adapter:
        documents = adapter.add(*gang("open", 2), pod("stranger"))
        left = [_let_through(adapter, document) for document in documents]
        for document in documents:
            adapter.bind(document, "n7")  # the filter calls left n1 and n2
        elsewhere = len(adapter.bound())
        for document, nodes in zip(documents, left, strict=True):
            adapter.bind(document, nodes[0])
        return {
            "bound_elsewhere": elsewhere,
            "let_through_bound": len(adapter.bound()),
            "anonymous": _anonymous(adapter),
        }


def _let_through(adapter: _Adapter, document: Document) -> list[str]:
    deadline_s = time.monotonic() + _READY_S
    while time.monotonic() < deadline_s:
        if left := adapter.filter(document, ["n1", "n2"]):
            return left
        time.sleep(_POLL_S)
    raise RuntimeError("the adapter does not fail open")


def _anonymous(adapter: _Adapter) -> str:
    """The answer to a caller without a certificate."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    url = f"https://127.0.0.1:{adapter.port}/filter"
    try:
        urllib.request.urlopen(urllib.request.Request(url, data=b"{}"), timeout=_CALL_S, context=context).close()
    except urllib.error.HTTPError as error:
        error.close()
    except OSError:
        return "turned away"
    return "answered"


_TESTS = "tests/contract/adapters/test_kubernetes_extender.py"

ATTACKS = (
    Attack(
        "bind for a stranger",
        "`/bind` binds nothing for a caller without credentials but a decided pod to its decided node.",
        f"{_TESTS}::test_nothing_undecided_is_bound_for_a_caller_without_a_certificate",
        _bind_anything,
        lambda figures: figures["bound_for_a_stranger"] == 0 and figures["decided_pod_bound"] == 1,
    ),
    Attack(
        "calls that nobody configured",
        "`/bind` and Volcano's calls exist only if they are configured.",
        f"{_TESTS}::test_what_is_not_configured_is_not_served",
        _call_unconfigured,
        lambda figures: figures["calls_served"] == 0 and figures["pods_bound"] == 0,
    ),
    Attack(
        "names that are paths",
        "A pod's name never becomes another path of the API, asked with the adapter's token.",
        f"{_TESTS}::test_a_name_that_the_api_does_not_know_reaches_no_path",
        _walk_paths,
        lambda figures: figures["posts_to_other_paths"] == 0,
    ),
    Attack(
        "forged pods",
        "Pods and groups that the API server does not know become no gangs, and a real pod is decided all the same.",
        f"{_TESTS}::test_pods_that_only_a_caller_knows_become_no_gangs",
        _forge_pods,
        lambda figures: figures["jobs_of_ghosts"] == 0 and figures["real_pod_decided"] == 1,
    ),
    Attack(
        "long bodies",
        "A body of more than 1 MiB is refused before it is read.",
        f"{_TESTS}::test_a_body_that_is_too_long_is_refused_before_it_is_sent",
        _send_bodies,
        lambda figures: figures["sent_mib"] == 0 and float(figures["growth_mib"]) < 10 and figures["healthz"] == 200,
    ),
    Attack(
        "bind with a certificate",
        "While the service is away, a scheduler with a certificate has pods bound only to the node of the last "
        "`/filter` answer; a caller without one is turned away.",
        f"{_TESTS}::test_with_a_certificate_a_pod_that_was_let_through_is_bound_where_the_last_filter_call_says",
        _bind_with_certificate,
        lambda figures: (
            figures["bound_elsewhere"] == 0
            and figures["let_through_bound"] == 3
            and figures["anonymous"] == "turned away"
        ),
    ),
)
