"""The whole service as processes: ready, both faces, workers on shared ports, orderly stops, refusals at start."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from google.protobuf.json_format import ParseDict
from tests.fakes.bundles import copy_bundle
from tests.fakes.callers.tls import Authority
from tests.fakes.servers.redis_server import RedisServer

from placewise.v1.decision_pb2 import PlaceRequest, PlaceResponse
from placewise.v1.decision_pb2_grpc import DecisionServiceStub
from placewise.v1.job_pb2 import Job, Resources, TaskGroup
from placewise_service.api.calls.rpcs import RPCS
from placewise_service.bench.processes import free_port

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parent.parent.parent
PATIENCE_S = 120  # a service starts in a second, but not on a machine whose cores twenty others want
POLL_S = 0.02
PROGRAM = (
    "import sys\n"
    "from placewise_service.main import serve\n"
    "from placewise_service.settings import load_settings\n"
    "if __name__ == '__main__':\n"
    "    sys.exit(serve(load_settings()))\n"
)


def patiently() -> Iterator[None]:
    """Yields until patience is at an end. Counts the looks and not the time: a machine may stop us all for minutes."""
    for _ in range(int(PATIENCE_S / POLL_S)):
        yield
        time.sleep(POLL_S)


def exit_code(process: "subprocess.Popen[bytes]") -> int | None:
    """Once it has ended; None if it does not."""
    return next((code for _ in patiently() if (code := process.poll()) is not None), None)


@dataclass
class Running:
    """A service in processes of its own, its log, and its standard output."""

    process: subprocess.Popen[bytes]
    log: Path
    output: Path

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if line.get("event") == name]

    def wait_for(self, name: str, count: int = 1) -> list[dict[str, Any]]:
        """The events of a name, once there are so many. Fails when the process ends first."""
        for _ in patiently():
            found = self.events(name)
            if len(found) >= count:
                return found
            if self.process.poll() is not None:
                break
        raise AssertionError(f"no {count} × {name!r} in:\n{self.log.read_text()}")


@contextmanager
def service(folder: Path, **environment: str) -> Iterator[Running]:
    program = folder / "program.py"
    program.write_text(PROGRAM)
    log, output = folder / "log", folder / "output"
    base = {name: value for name, value in os.environ.items() if not name.startswith("PLACEWISE_")}
    base |= {
        "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("service", "clients/python")),
        "PLACEWISE_STATE_DIR": str(folder / "state"),
        "PLACEWISE_SERVER__GRPC_PORT": "0",
        "PLACEWISE_SERVER__REST_PORT": "0",
        "PLACEWISE_SERVER__DRAIN_TIMEOUT_S": "10",
    }
    with output.open("wb") as out, log.open("wb") as err:
        process = subprocess.Popen([sys.executable, str(program)], env=base | environment, stdout=out, stderr=err)
    try:
        yield Running(process, log, output)
    finally:
        process.terminate()
        try:
            process.wait(40)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def question(job_id: str) -> PlaceRequest:
    group = TaskGroup(count=1, demand=Resources(gpus=1))
    return PlaceRequest(cluster="prod", request_id=job_id, jobs=[Job(id=job_id, groups=[group])])


def report_node(rest: str, gpus: int = 4) -> None:
    nodes = {"nodes": [{"id": "n1", "capacity": {"cpuCores": 64, "gpus": gpus, "memoryGib": 64}}]}
    httpx.put(f"{rest}/v1/clusters/prod/nodes", json=nodes, timeout=60).raise_for_status()


def ask(port: int, job_id: str) -> PlaceResponse:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        answer: PlaceResponse = DecisionServiceStub(channel).Place(question(job_id), timeout=60)
    return answer


def test_one_process_serves_both_faces_and_keeps_its_state(tmp_path: Path) -> None:
    with service(tmp_path) as running:
        running.wait_for("ready")
        [ports] = running.events("listening")
        rest = f"http://127.0.0.1:{ports['rest_port']}"
        report_node(rest)
        assert httpx.get(f"{rest}/readyz", timeout=60).status_code == 200
        first = ask(ports["grpc_port"], "a")
        assert first.decisions[0].reservation_id
        running.process.send_signal(signal.SIGTERM)
        assert exit_code(running.process) == 0
        assert running.events("stopped")
    with service(tmp_path) as running:
        running.wait_for("ready")
        [*_, ports] = running.events("listening")
        again = ask(ports["grpc_port"], "a")
    assert again.meta.repeated
    assert again.decisions[0].reservation_id == first.decisions[0].reservation_id


def test_workers_share_the_ports_and_are_replaced(tmp_path: Path) -> None:
    with service(tmp_path, PLACEWISE_SERVER__WORKERS="2") as running:
        ready = running.wait_for("ready", 2)
        listening = running.wait_for("listening", 2)
        assert len({(event["grpc_port"], event["rest_port"]) for event in listening}) == 1
        grpc_port, rest = listening[0]["grpc_port"], f"http://127.0.0.1:{listening[0]['rest_port']}"
        report_node(rest, gpus=64)
        taken = [(a.node, *a.gpu_indices) for i in range(20) for a in ask(grpc_port, f"j{i}").decisions[0].assignments]
        assert len(set(taken)) == 20  # no GPU was given twice by any worker
        all_workers = 'placewise_rpc_seconds_count{code="OK",rpc="Place"} 20.0'
        assert any(all_workers in httpx.get(f"{rest}/metrics", timeout=60).text for _ in patiently())
        os.kill(ready[0]["pid"], signal.SIGKILL)
        running.wait_for("ready", 3)
        assert ask(grpc_port, "after").decisions[0].assignments
        running.process.send_signal(signal.SIGTERM)
        assert exit_code(running.process) == 0
        assert len(running.events("stopped")) == 2


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_demo_is_ready_only_when_its_cluster_is_there(tmp_path: Path, workers: str) -> None:
    port = free_port()
    rest = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "placewise_service.cli", "serve", "--demo", "--workers", workers]
    command += ["--grpc-port", "0", "--rest-port", str(port), "--state-dir", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        assert any(is_ready(rest) for _ in patiently())
        answer = httpx.get(f"{rest}/v1/clusters/demo", timeout=60)  # at once, perhaps from the other worker
        assert (answer.status_code, answer.json()["nodeCount"]) == (200, 18)
    finally:
        process.terminate()
        code = exit_code(process)
    assert code == 0


def is_ready(rest: str) -> bool:
    try:
        return httpx.get(f"{rest}/readyz", timeout=60).status_code == 200
    except httpx.TransportError:
        return False


def test_a_bundle_activated_through_one_worker_serves_in_all(tmp_path: Path) -> None:
    for name in ("default", "next"):
        copy_bundle(tmp_path / "bundles" / name)
    environment = {"PLACEWISE_SERVER__WORKERS": "2", "PLACEWISE_BUNDLE_DIR": str(tmp_path / "bundles")}
    with service(tmp_path, **environment) as running:
        running.wait_for("ready", 2)
        [ports, _] = running.events("listening")
        rest = f"http://127.0.0.1:{ports['rest_port']}"
        report_node(rest, gpus=64)
        httpx.post(f"{rest}/v1/bundles/next:activate", json={}, timeout=60).raise_for_status()
        active = [event for event in running.wait_for("bundle active", 2) if event["bundle"] == "next"]
        assert len(active) == 2
        assert {ask(ports["grpc_port"], f"j{i}").meta.bundle for i in range(16)} == {"next"}


def test_workers_go_when_their_parent_is_killed(tmp_path: Path) -> None:
    with service(tmp_path, PLACEWISE_SERVER__WORKERS="2") as running:
        pids = [event["pid"] for event in running.wait_for("ready", 2)]
        [redis] = running.events("embedded redis")
        running.process.kill()
        running.process.wait()
        are_gone = any(not any(is_alive(pid) for pid in pids) for _ in patiently())
        os.kill(redis["pid"], signal.SIGTERM)
        assert are_gone


def is_alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def test_a_port_that_is_taken_is_refused_by_name(tmp_path: Path) -> None:
    for folder in ("one", "GRPC1", "GRPC2", "REST1", "REST2"):
        (tmp_path / folder).mkdir()
    with service(tmp_path / "one") as running:
        running.wait_for("ready")
        [ports] = running.events("listening")
        with ExitStack() as stack:
            refused = {}
            for name, workers in (("GRPC", "1"), ("GRPC", "2"), ("REST", "1"), ("REST", "2")):
                port = str(ports[f"{name.lower()}_port"])
                taken = {f"PLACEWISE_SERVER__{name}_PORT": port, "PLACEWISE_SERVER__WORKERS": workers}
                refused[name, workers] = port, stack.enter_context(service(tmp_path / f"{name}{workers}", **taken))
            for port, second in refused.values():
                assert exit_code(second.process) == 1
                assert port in second.events("cannot start")[0]["reason"]


def test_tls_and_tokens_together(tmp_path: Path) -> None:
    authority = Authority("test")
    cert, key = authority.write(tmp_path, "server")
    (tmp_path / "tokens.yaml").write_text("tokens: []")
    environment = {
        "PLACEWISE_TLS__CERT_FILE": str(cert),
        "PLACEWISE_TLS__KEY_FILE": str(key),
        "PLACEWISE_AUTH__TOKENS_FILE": str(tmp_path / "tokens.yaml"),
        "PLACEWISE_SERVER__GRPC_HOST": "0.0.0.0",
        "PLACEWISE_SERVER__HEALTH_PORT": "0",
        "PLACEWISE_SERVER__WORKERS": "2",
    }
    with service(tmp_path, **environment) as running:
        running.wait_for("ready", 2)
        ports, others = running.events("listening")
        assert ports["health_port"] == others["health_port"], "one port for all workers"
        check = {**os.environ, "PLACEWISE_SERVER__HEALTH_PORT": str(ports["health_port"])}
        assert (
            subprocess.run([sys.executable, str(ROOT / "deploy/healthcheck.py")], env=check, check=False).returncode
            == 0
        )
        credentials = grpc.ssl_channel_credentials(authority.pem)
        with (
            grpc.secure_channel(f"localhost:{ports['grpc_port']}", credentials) as channel,
            pytest.raises(grpc.RpcError) as caught,
        ):
            DecisionServiceStub(channel).Place(question("a"), timeout=60)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED  # type: ignore[attr-defined]
        assert running.events("credentials refused")
        assert not running.events("insecure")
        running.process.send_signal(signal.SIGTERM)
        assert exit_code(running.process) == 0
        rows = [json.loads(line) for line in running.output.read_text().splitlines()]
        assert [(row["call"], row["result"]) for row in rows] == [("Place", "UNAUTHENTICATED")]
        assert '"record":' not in running.log.read_text(), "the audit goes to standard output, the log does not"


@pytest.mark.parametrize("content", ["", "tokens: [", None], ids=["empty", "no YAML", "missing"])
def test_a_tokens_file_that_cannot_be_used_is_a_reason_not_to_start(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "tokens.yaml"
    if content is not None:
        file.write_text(content)
    with service(tmp_path, PLACEWISE_AUTH__TOKENS_FILE=str(file)) as running:
        assert exit_code(running.process) == 1
        [refused] = running.events("cannot start")
        assert str(file) in refused["reason"]
        assert not running.events("listening")


def test_secrets_stay_out_of_the_log(tmp_path: Path) -> None:
    url = "redis://user:hunter2@127.0.0.1:1/0"
    with service(tmp_path, PLACEWISE_REDIS_URL=url) as running:
        running.wait_for("the state store does not answer yet")
        running.process.send_signal(signal.SIGTERM)
        assert exit_code(running.process) == 0
        assert "hunter2" not in running.log.read_text()


# -- A Redis that hangs ------------------------------------------------------------------------------------------------

JOB = {"id": "a", "groups": [{"count": 1, "demand": {"gpus": 1}}]}
ASKED: dict[str, dict[str, Any]] = {
    "Place": {"jobs": [JOB], "reserveTtl": "60s"},
    "Partition": {"task": {"id": "t", "parallelScale": 10}},
    "AdmitOrWait": {"jobs": [JOB]},
    "ReportNodes": {"nodes": [{"id": "n2", "capacity": {"gpus": 1}}]},
    "ReportJobEvents": {"events": [{"jobId": "a", "kind": "STARTED"}]},
    "GetDecision": {"decisionId": "none"},
    "ActivateBundle": {"name": "default"},
}
ANSWERED_S = 1.5


def test_every_call_is_answered_in_time_while_redis_hangs(tmp_path: Path) -> None:
    """All of the contract at once; those whose message is refused or that ask no Redis are answered, too."""
    server = RedisServer().start()
    try:
        with service(tmp_path, PLACEWISE_REDIS_URL=server.url) as running:
            running.wait_for("ready")
            [ports] = running.events("listening")
            report_node(f"http://127.0.0.1:{ports['rest_port']}")
            with grpc.insecure_channel(f"127.0.0.1:{ports['grpc_port']}") as channel:

                def answered(name: str) -> tuple[str, str, float]:
                    rpc, fields = RPCS[name], dict(ASKED.get(name, {}))
                    if "cluster" in rpc.request.DESCRIPTOR.fields_by_name:
                        fields["cluster"] = "prod"
                    message, began_s = ParseDict(fields, rpc.request()), time.monotonic()
                    call = channel.unary_unary(rpc.path).future(message.SerializeToString(), timeout=30)
                    code = call.code().name
                    return name, code, time.monotonic() - began_s

                channel.unary_unary(RPCS["ListClusters"].path)(b"", timeout=30)
                server.pause()
                with ThreadPoolExecutor(len(RPCS)) as pool:
                    answers = list(pool.map(answered, RPCS))
    finally:
        server.stop()
    assert [answer for answer in answers if answer[2] > ANSWERED_S] == []
    unavailable = {name for name, code, _ in answers if code == "UNAVAILABLE"}
    assert unavailable >= {"Place", "ReportNodes", "ReportJobEvents", "DeleteCluster", "ActivateBundle"}
