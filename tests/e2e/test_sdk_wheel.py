"""The SDK's wheel, built and installed alone in a clean environment, asks a running service."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fakes.oracle import Oracle, OracleServer

from placewise.v1 import cluster_pb2
from placewise.v1.job_pb2 import Resources

SOURCE = Path(__file__).parents[2] / "clients" / "python"

PROGRAM = """
import asyncio, importlib.util, json, sys
from placewise.v1.decision_pb2 import PlaceRequest
from placewise.v1.job_pb2 import Job, Resources, TaskGroup
from placewise_client import AsyncClient, Client, decide_or
from placewise_client.adapter.loop import AdapterLoop
from placewise_client.results import nodes_of

target = sys.argv[1]
group = TaskGroup(role=TaskGroup.WORKER, count=2, demand=Resources(gpus=4), max_per_node=1)
request = PlaceRequest(cluster="c", jobs=[Job(id="j", groups=[group])], dry_run=True)

async def ask():
    async with AsyncClient(target) as client:
        return nodes_of((await client.place(request)).decisions[0])

with Client(target) as client:
    sync = nodes_of(client.place(request).decisions[0])
with Client("127.0.0.1:1") as nobody:
    fallback = decide_or(nobody.place, request, lambda: "own").value
foreign = [name for name in ("placewise_core", "placewise_service", "numpy") if importlib.util.find_spec(name)]
print(json.dumps({"sync": sync, "async": asyncio.run(ask()), "fallback": fallback, "foreign": foreign}))
"""


async def run(*command: str | Path) -> str:
    process = await asyncio.create_subprocess_exec(
        *map(str, command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/"
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_the_wheel_works_alone(tmp_path: Path) -> None:
    await run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, SOURCE)
    (wheel,) = tmp_path.glob("placewise_client-*.whl")  # noqa: ASYNC240 - nothing else runs in this loop
    await run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    await run(python, "-m", "pip", "install", "--quiet", wheel)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    server = await OracleServer(Oracle()).start()
    nodes = [cluster_pb2.Node(id=f"n{i}", capacity=Resources(gpus=4)) for i in range(3)]
    server.oracle.report_nodes(cluster_pb2.ReportNodesRequest(cluster="c", nodes=nodes))
    printed = await run(python, program, server.target)
    await server.stop()

    assert json.loads(printed.splitlines()[-1]) == {
        "sync": ["n2", "n1"],
        "async": ["n2", "n1"],
        "fallback": "own",
        "foreign": [],
    }
    installed = json.loads(await run(python, "-m", "pip", "list", "--format=json"))
    names = {package["name"].lower().replace("_", "-") for package in installed}
    assert names <= {"placewise-client", "grpcio", "protobuf", "typing-extensions", "pip", "setuptools"}
