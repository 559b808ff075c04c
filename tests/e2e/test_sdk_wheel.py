"""The SDK's wheel, built and installed alone in a clean environment, asks a fake service and the real one."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.kubernetes.kubernetes_service import PlacewiseServer
from tests.fakes.servers.oracle import OracleServer, SmallService

from placewise.v1 import cluster_pb2
from placewise.v1.job_pb2 import Resources
from placewise_client import Client
from placewise_slurm.hooks import SCRIPTS

SOURCE = Path(__file__).parents[2] / "clients" / "python"
SLURM = SOURCE.with_name("slurm")

PROGRAM = """
import asyncio, importlib.util, json, os, sys
from placewise.v1.decision_pb2 import PlaceRequest
from placewise.v1.job_pb2 import Job, Resources, TaskGroup
from placewise_client import AsyncClient, Client, InvalidRequestError, NotFoundError, decide_or
from placewise_client.results import nodes_of

target = sys.argv[1]
group = TaskGroup(role=TaskGroup.WORKER, count=2, demand=Resources(gpus=4), max_per_node=1)
request = PlaceRequest(cluster="c", jobs=[Job(id="j", groups=[group])], dry_run=True)

async def ask():
    async with AsyncClient(target) as client:
        return nodes_of((await client.place(request)).decisions[0])

def reason_of(call):
    try:
        call()
    except (InvalidRequestError, NotFoundError) as error:
        return type(error).__name__ + " " + error.reason

with Client(target) as client:
    sync = nodes_of(client.place(request).decisions[0])
    streamed = [nodes_of(answer.decisions[0]) for answer in client.stream_place([request, request])]
    refused = reason_of(lambda: client.place(PlaceRequest(cluster="unknown", jobs=request.jobs)))
with Client("127.0.0.1:1") as nobody:
    fallback = decide_or(nobody.place, request, lambda: "own").value
foreign = [name for name in ("placewise_core", "placewise_service", "numpy") if importlib.util.find_spec(name)]
print(json.dumps({"sync": sync, "async": asyncio.run(ask()), "streamed": streamed, "refused": refused,
                  "fallback": fallback, "foreign": foreign}), flush=True)
os._exit(0)  # without finalizers: that of gRPC 1.66's poller has been seen to wait for its thread for ever
"""


def run(*command: str | Path) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd="/", check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module", params=["newest", "lowest"])
def python(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel and its dependencies alone: in the newest versions,
    and in the oldest that it allows."""
    root = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", root, SOURCE)
    (wheel,) = root.glob("placewise_client-*.whl")
    run(sys.executable, "-m", "venv", root / "venv")
    found = root / "venv" / "bin" / "python"
    bounds = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]["dependencies"]
    lowest = [re.sub(r">=([0-9.]+).*", r"==\1", bound) for bound in bounds] if request.param == "lowest" else []
    run(found, "-I", "-m", "pip", "install", "--quiet", *lowest, wheel)
    (root / "program.py").write_text(PROGRAM)
    return found


NODES = [
    cluster_pb2.Node(id=f"n{i}", capacity=Resources(cpu_cores=8, gpus=4, memory_gib=64), state=cluster_pb2.Node.READY)
    for i in range(3)
]


@pytest.fixture
async def fake() -> AsyncIterator[str]:
    server = await OracleServer(SmallService()).start()
    server.oracle.report_nodes(cluster_pb2.ReportNodesRequest(cluster="c", nodes=NODES))
    yield server.target
    await server.stop()


@pytest.fixture
def real(tmp_path: Path) -> Iterator[str]:
    server = PlacewiseServer(tmp_path)
    server.launch()
    with Client(server.target) as client:
        client.report_nodes(cluster_pb2.ReportNodesRequest(cluster="c", nodes=NODES, full=True))
    yield server.target
    server.end()


async def answers(python: Path, target: str) -> dict[str, Any]:
    printed = await asyncio.to_thread(run, python, "-I", python.parents[2] / "program.py", target)
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return found


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(600)
class TestTheWheelAlone:
    def test_it_brings_little(self, python: Path) -> None:
        installed = json.loads(run(python, "-I", "-m", "pip", "list", "--format=json"))
        names = {package["name"].lower().replace("_", "-") for package in installed}
        assert names - {"placewise-slurm"} <= {
            "placewise-client",
            "googleapis-common-protos",
            "grpcio",
            "protobuf",
            "typing-extensions",
            "pip",
            "setuptools",
        }

    def test_the_slurm_bridge_installs_beside_it_and_writes_its_hooks(self, python: Path, tmp_path: Path) -> None:
        run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, SLURM)
        (wheel,) = tmp_path.glob("placewise_slurm-*.whl")
        run(python, "-I", "-m", "pip", "install", "--quiet", wheel)  # with the extra that adapters need
        run(python, "-I", "-c", "import placewise_client.adapter.loop, placewise_client.connect")
        command = python.with_name("placewise-slurm")
        run(command, "--config", SLURM / "slurm.toml.example", "hooks", "--output", tmp_path)
        assert {path.name for path in tmp_path.iterdir()} - {wheel.name} == {*SCRIPTS}
        for script in tmp_path.glob("*.sh"):
            run("bash", "-n", script)

    async def test_it_asks_a_service_in_memory(self, python: Path, fake: str) -> None:
        found = await answers(python, fake)
        assert found["sync"] == found["async"] == ["n2", "n1"]
        assert found["streamed"] == [["n2", "n1"]] * 2
        assert found["fallback"] == "own"
        assert found["foreign"] == []

    async def test_it_asks_the_real_service(self, python: Path, real: str) -> None:
        found = await answers(python, real)
        assert len(set(found["sync"])) == 2
        assert found["async"] == found["sync"]
        assert found["streamed"] == [found["sync"]] * 2
        assert found["refused"] == "NotFoundError NOT_FOUND"
        assert found["fallback"] == "own"
        assert found["foreign"] == []
