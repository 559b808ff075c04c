"""First steps of an operator: calls home, queue gauges, a mistyped setting, a restart of the only replica."""

import contextlib
import json
import re
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import yaml
from tests.attack.attack import Attack, Figures
from tests.attack.enclosed import enclosed
from tests.attack.source import Service, Source
from tests.fakes.callers.tls import LATER, Authority
from tests.fakes.servers.redis_server import RedisServer

from placewise.v1.cluster_pb2 import DeleteClusterRequest, Node, ReportNodesRequest
from placewise.v1.decision_pb2 import AdmitOrWaitRequest
from placewise.v1.job_pb2 import Job, Resources, TaskGroup
from placewise_client import Client
from placewise_service.bench.processes import free_port
from placewise_service.state.redis.embedded import embedded_url

TITLE = "First steps of an operator"
_CLI = ["-m", "placewise_service.cli"]
_WATCH_S = 14.0  # ONNX Runtime asks 10 s after its import
_LOADED = "print('loaded', flush=True); import time; time.sleep(600)"
# Nobody answers there: the adapter goes on trying.
_KUBECONFIG = {
    "current-context": "c",
    "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
    "clusters": [{"name": "k", "cluster": {"server": "http://127.0.0.1:9"}}],
    "users": [{"name": "u", "user": {"token": "t"}}],
}
_AWAY_S = 2.0
_SETTLE_S = 4.0


# -- calls home ----------------------------------------------------------------------------------------------------


def _calls_home(source: Source) -> Figures:
    """Service, a command that loads the bundle, a trainer, both adapters, each for longer than ONNX Runtime waits."""
    with tempfile.TemporaryDirectory(prefix="placewise-attack-") as folder:
        rest, config = free_port(), Path(folder, "slurm.toml")
        config.write_text(
            f'[adapter]\ncluster = "c"\n[service]\naddress = "http://127.0.0.1:{rest}"\n'
            f'[slurm]\nrest = "unix:{folder}/slurmrestd.sock"\n[hooks]\nshares_dir = ""\n[metrics]\nport = 0\n'
        )
        settings = {
            "PLACEWISE_STATE_DIR": str(Path(folder, "state")),
            "PLACEWISE_SERVER__REST_PORT": str(rest),
            "PLACEWISE_SERVER__GRPC_PORT": "0",
        }
        if source.knows_setting("PLACEWISE_SERVER__HEALTH_PORT"):
            settings["PLACEWISE_SERVER__HEALTH_PORT"] = "0"
        kubernetes, kubeconfig = Path(folder, "kubernetes.yaml"), Path(folder, "kubeconfig")
        kubernetes.write_text(
            yaml.safe_dump(
                {"cluster": "c", "service": {"targets": [f"http://127.0.0.1:{rest}"]}, "listen": {"port": free_port()}}
            )
        )
        kubeconfig.write_text(yaml.safe_dump(_KUBECONFIG))
        invoked = "from placewise_service.cli import invoke; invoke"
        command = f"{invoked}(['doctor', '--json']); {_LOADED}"
        begun = f"import {_trainer(source)}; print('begun', flush=True)"
        train = f"{begun}; {invoked}(['train', 'stdm', '--out', {folder!r}])"
        programs = {
            "service": ([*_CLI, "serve"], '"ready"'),
            "command": (["-c", command], "loaded"),
            "trainer": (["-c", f"{train}; {_LOADED}"], "begun"),
            "adapter_of_slurm": (["-m", "placewise_slurm.main", "--config", str(config), "run"], "bridging"),
            "adapter_of_kubernetes": (
                ["-m", "placewise_kubernetes.cli", "--config", str(kubernetes), "--kubeconfig", str(kubeconfig)],
                "ready on port",
            ),
        }
        found = enclosed(source, programs, settings, _WATCH_S)["programs"]
    names = {name for program in found.values() for name in program["lookups"]}
    return {
        **{f"lookups_by_{name}": len(program["lookups"]) for name, program in found.items()},
        "names": " ".join(sorted(names)) or "none",
        "watched": sum(program["is_begun"] and program["code"] is None for program in found.values()),
    }


def _trainer(source: Source) -> str:
    """The module that exports a net and asks ONNX Runtime about it, by its name in that release."""
    is_now = (source.root / "training/placewise_training/stdm/export.py").exists()
    return "placewise_training.stdm.export" if is_now else "placewise_training.export_stdm"


# -- gauges of queues ----------------------------------------------------------------------------------------------


def _job(name: str) -> Job:
    group = TaskGroup(role=TaskGroup.WORKER, count=1, demand=Resources(cpu_cores=1, gpus=1))
    return Job(id=name, groups=[group])


def _report(client: Client, nodes: int) -> None:
    capacity = Resources(cpu_cores=64, gpus=8)
    listed = [Node(id=f"n{index}", capacity=capacity, state=Node.READY) for index in range(nodes)]
    client.report_nodes(ReportNodesRequest(cluster="c", nodes=listed, full=True))


def _queue_lines(service: Service) -> dict[str, float]:
    with urllib.request.urlopen(f"{service.url}/metrics", timeout=10.0) as answer:
        text = answer.read().decode()
    lines = re.findall(r"^(placewise_queue_\w+\{[^}]*\}) (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in lines}


def _gauges(source: Source) -> Figures:
    """Three replicas on one Redis: one is asked first, another later, the third never; then one more is started."""
    with source.service() as first, contextlib.ExitStack() as stack:
        shared = {"PLACEWISE_REDIS_URL": embedded_url(first.directory / "state")}
        second, third = (stack.enter_context(source.service(shared)) for _ in range(2))
        with Client(first.target) as client, Client(second.target) as other:
            _report(client, 1)
            client.admit_or_wait(AdmitOrWaitRequest(cluster="c", queue="q", jobs=[_job("a")]))
            for index in range(3):
                jobs = [_job(f"b{index}-{number}") for number in range(4 + index)]
                other.admit_or_wait(AdmitOrWaitRequest(cluster="c", queue="q", jobs=jobs))
            time.sleep(_SETTLE_S)
            shown = [_queue_lines(replica) for replica in (second, first, third)]
            truth = shown[0]
            with source.service(shared) as restarted:
                fresh = _queue_lines(restarted)
            client.delete_cluster(DeleteClusterRequest(cluster="c"))
            time.sleep(_SETTLE_S)
            left = [_queue_lines(replica) for replica in (first, second, third)]
    return {
        "series": len(truth),
        "wrong_on_others": sum(lines.get(name) != value for lines in shown[1:] for name, value in truth.items()),
        "wrong_after_a_start": sum(fresh.get(name) != value for name, value in truth.items()),
        "left_of_a_deleted_cluster": sum(map(len, left)),
    }


# -- mistyped and missing ------------------------------------------------------------------------------------------


def _mistyped_policy(source: Source) -> Figures:
    """What doctor says of PLACE__POLICY=consolidat, and whether a service with it becomes ready."""
    wrong = {"PLACEWISE_PLACE__POLICY": "consolidat", "PLACEWISE_SERVER__GRPC_PORT": "0"}
    with tempfile.TemporaryDirectory(prefix="placewise-attack-") as folder:
        settings = {**wrong, "PLACEWISE_SERVER__REST_PORT": "0", "PLACEWISE_STATE_DIR": folder}
        doctor = source.run([*_CLI, "doctor", "--json"], settings)
    with source.service({"PLACEWISE_PLACE__POLICY": "consolidat"}, is_awaited=False) as service:
        deadline_s = time.monotonic() + 30.0
        while service.is_running and '"ready"' not in service.text() and time.monotonic() < deadline_s:
            time.sleep(0.05)
        with contextlib.suppress(subprocess.TimeoutExpired):
            service.popen.wait(1.0)
        is_ready, printed = service.is_running, service.text()
    return {
        "doctor_exit": doctor.returncode,
        "doctor_suggests": int("'consolidate'?" in doctor.stdout),
        "service_starts": int(is_ready),
        "log_suggests": int("'consolidate'?" in printed),
    }


def _named(source: Source) -> Figures:
    """doctor on five mistakes: how many it names together with the file, or the setting, that is to be changed."""
    with tempfile.TemporaryDirectory(prefix="placewise-attack-") as name, _plain_redis() as redis_url:
        folder = Path(name)
        (folder / "other").mkdir()
        cert, key = Authority("site").write(folder, "placewise", LATER)
        _, other = Authority("elsewhere").write(folder / "other", "placewise", LATER)
        tls = {"PLACEWISE_TLS__CERT_FILE": str(cert), "PLACEWISE_TLS__KEY_FILE": str(other)}
        broken = {"PLACEWISE_TLS__CERT_FILE": str(key), "PLACEWISE_TLS__KEY_FILE": str(key)}
        mistakes = {
            "key of another certificate": (tls, [str(other), "is not the key"]),
            "no certificate": (broken, [str(key), "no certificate"]),
            "endpoint": ({"PLACEWISE_OTEL__ENDPOINT": f"http://127.0.0.1:{free_port()}"}, ["OTEL__ENDPOINT"]),
            "maxmemory": ({"PLACEWISE_REDIS_URL": redis_url}, ["maxmemory is not set"]),
            "fallback policy": ({"PLACEWISE_PLACE__FALLBACK_POLICY": "tetriss"}, ["FALLBACK_POLICY", "'tetris'"]),
        }
        usual = {
            "PLACEWISE_SERVER__GRPC_PORT": "0",
            "PLACEWISE_SERVER__REST_PORT": "0",
            "PLACEWISE_STATE_DIR": str(folder / "state"),
        }
        if source.knows_setting("PLACEWISE_SERVER__HEALTH_PORT"):
            usual["PLACEWISE_SERVER__HEALTH_PORT"] = "0"
        named = 0
        for settings, words in mistakes.values():
            findings = json.loads(source.run([*_CLI, "doctor", "--json"], usual | settings).stdout)["findings"]
            complaints = [each["detail"] for each in findings if each["verdict"] != "ok"]
            named += any(all(word in printed for word in words) for printed in complaints)
    return {"mistakes": len(mistakes), "named": named}


@contextlib.contextmanager
def _plain_redis() -> Iterator[str]:
    """A Redis as it comes, but for the settings that doctor warned of before."""
    server = RedisServer(("--appendonly", "yes", "--appendfsync", "always")).start()
    try:
        yield server.url
    finally:
        server.stop()


# -- a restart of the only replica ---------------------------------------------------------------------------------

_CALLER = """
import asyncio, json, sys, time
from placewise.v1.cluster_pb2 import Node, ReportNodesRequest
from placewise.v1.decision_pb2 import PlaceRequest
from placewise.v1.job_pb2 import Job, Resources, TaskGroup
from placewise_client import AsyncClient, Client

async def main(target, seconds):
    group = TaskGroup(role=TaskGroup.WORKER, count=1, demand=Resources(cpu_cores=1, gpus=1))
    failed, placed, longest = [], 0, 0.0
    is_sync = target.startswith("sync:")
    client = Client(target[5:]) if is_sync else AsyncClient(target)
    async def call(name, request):
        method = getattr(client, name)
        return await (asyncio.to_thread(method, request) if is_sync else method(request))
    capacity = Resources(cpu_cores=64, gpus=8)
    nodes = [Node(id=f"n{i}", capacity=capacity, state=Node.READY) for i in range(100)]
    await call("report_nodes", ReportNodesRequest(cluster="c", nodes=nodes, full=True))
    print("begun", flush=True)
    async def ask(number):
        nonlocal placed, longest
        began = time.monotonic()
        job = Job(id=f"{target}-{number}", groups=[group])
        try:
            await call("place", PlaceRequest(cluster="c", request_id=job.id, jobs=[job]))
            placed += 1
        except Exception as error:
            failed.append(f"{type(error).__name__}: {error}"[:120])
        longest = max(longest, time.monotonic() - began)
    tasks = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        tasks.append(asyncio.create_task(ask(len(tasks))))
        await asyncio.sleep(0.05)
    await asyncio.gather(*tasks)
    await (asyncio.to_thread(client.close) if is_sync else client.close())
    print(json.dumps({"errors": len(failed), "placed": placed, "longest_s": longest, "example": failed[:1]}))

asyncio.run(main(sys.argv[1], float(sys.argv[2])))
"""


def _restart(source: Source) -> Figures:
    """20 questions a second by each carrier of the SDK, with its own deadline (10 s), while the only replica ends and
    two seconds later starts again."""
    with tempfile.TemporaryDirectory(prefix="placewise-attack-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        grpc_port, rest_port = free_port(), free_port()
        settings = {
            "PLACEWISE_SERVER__GRPC_PORT": str(grpc_port),
            "PLACEWISE_SERVER__REST_PORT": str(rest_port),
            "PLACEWISE_STATE_DIR": str(folder / "state"),
        }
        if source.knows_setting("PLACEWISE_SERVER__HEALTH_PORT"):
            settings["PLACEWISE_SERVER__HEALTH_PORT"] = "0"
        with source.process([*_CLI, "serve"], folder, settings) as only:
            _until(lambda: '"ready"' in only.text())
            targets = (f"sync:127.0.0.1:{grpc_port}", f"127.0.0.1:{grpc_port}", f"http://127.0.0.1:{rest_port}")
            callers = [stack.enter_context(source.process(["-c", _CALLER, each, "8"], folder)) for each in targets]
            for caller in callers:
                _until(lambda caller=caller: "begun" in caller.text() or not caller.is_running)  # type: ignore[misc]
            time.sleep(1.0)
            only.popen.send_signal(signal.SIGTERM)
            only.popen.wait(60.0)
        time.sleep(_AWAY_S)
        with source.process([*_CLI, "serve"], folder, settings):
            for caller in callers:
                caller.popen.wait(60.0)
            found = [json.loads(caller.text().splitlines()[-1]) for caller in callers]
    return {
        "placed": sum(each["placed"] for each in found),
        "errors": sum(each["errors"] for each in found),
        "longest_s": max(each["longest_s"] for each in found),
        "example": next((each["example"][0] for each in found if each["example"]), "none"),
    }


def _until(is_so: object, timeout_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not is_so():  # type: ignore[operator]
        if time.monotonic() > deadline_s:
            raise TimeoutError("a process did not get so far")
        time.sleep(0.05)


ATTACKS = (
    Attack(
        "calls home",
        "Service, commands, trainers and adapters look up only the addresses that they are configured to call.",
        "tests/unit/test_telemetry_host.py::test_a_package_switches_it_off_before_its_first_module",
        _calls_home,
        lambda figures: figures["watched"] == 5 and figures["names"] == "none",
        is_quick=False,
    ),
    Attack(
        "gauges of queues on three replicas",
        "The gauges of queues come from the state: equal on every replica from its start, and gone with the cluster.",
        "tests/unit/engine/test_engine_queues.py::test_every_replica_shows_the_queues_of_the_state",
        _gauges,
        lambda figures: (
            int(figures["series"]) > 0
            and not any(
                figures[name] for name in ("wrong_on_others", "wrong_after_a_start", "left_of_a_deleted_cluster")
            )
        ),
    ),
    Attack(
        "a mistyped default policy",
        "doctor names a policy that does not exist, with the nearest that does, and the service does not start.",
        "tests/unit/engine/test_engine_settings.py::test_a_policy_that_does_not_exist_is_a_reason_not_to_start",
        _mistyped_policy,
        lambda figures: tuple(figures.values()) == (5, 1, 0, 1),
    ),
    Attack(
        "five mistakes",
        "doctor names the file or the setting that is wrong, and what to do.",
        "tests/unit/service/test_cli_doctor.py::test_the_file_that_spoils_tls_is_named",
        _named,
        lambda figures: figures["named"] == figures["mistakes"],
        is_quick=False,
    ),
    Attack(
        "restart of the only replica",
        "The SDK's calls outlast a restart within their deadline, by gRPC and HTTP.",
        "tests/contract/sdk/test_sdk_clients.py::test_a_restart_of_the_only_server_is_outlasted",
        _restart,
        lambda figures: int(figures["placed"]) > 300 and not figures["errors"] and float(figures["longest_s"]) <= 10.0,
        is_quick=False,
    ),
)
