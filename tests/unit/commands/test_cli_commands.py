"""The command line against a small service: output, requests and exit codes."""

import asyncio
import io
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.callers.foreground import foreground
from tests.fakes.servers.oracle import OracleServer, SmallService

from placewise.v1.cluster_pb2 import (
    DeleteClusterRequest,
    DeleteClusterResponse,
    JobEvent,
    ListClustersRequest,
    ListClustersResponse,
    Node,
    UpdateClusterSettingsRequest,
    UpdateClusterSettingsResponse,
)
from placewise.v1.job_pb2 import Resources
from placewise_client.errors import InvalidRequestError
from placewise_service import cli
from placewise_service.cli import invoke
from placewise_service.commands.connection import PLAINTEXT, target_of
from placewise_service.commands.exits import CommandError, Exit
from placewise_service.commands.remote import replay
from placewise_service.data import DEMO_INVENTORY
from placewise_service.replay.host import ReplayPlan


class Service(SmallService):
    """The oracle, with the settings and names of clusters."""

    def update_cluster_settings(self, request: UpdateClusterSettingsRequest) -> UpdateClusterSettingsResponse:
        return UpdateClusterSettingsResponse(settings=request.settings)

    def delete_cluster(self, request: DeleteClusterRequest) -> DeleteClusterResponse:
        return DeleteClusterResponse()

    def list_clusters(self, request: ListClustersRequest) -> ListClustersResponse:
        return ListClustersResponse(clusters=["lab"])


@pytest.fixture
async def service() -> AsyncIterator[OracleServer]:
    server = await OracleServer(Service()).start()
    server.oracle.nodes["n1"] = Node(id="n1", capacity=Resources(cpu_cores=8, gpus=4, memory_gib=64), state=Node.READY)
    yield server
    await server.stop()


async def call(*args: object) -> int:
    """One command line, in a thread: the commands are blocking, the service lives on this loop."""
    return await asyncio.to_thread(invoke, [str(arg) for arg in args])


async def test_apply_sends_every_node_of_the_inventory(
    service: OracleServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "cluster: lab\nnodes:\n- ids: g[08-11]\n  capacity: {gpus: 2, cpuCores: 4}\n  gpu: {model: T4, memoryGib: 16}\n"
        "- {id: cpu, capacity: {cpu_cores: 64}}\n"
    )
    assert await call("cluster", "apply", file, "--target", service.target, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"cluster": "lab", "nodes": 5, "snapshot_version": 0}
    sent = service.oracle.nodes
    assert sorted(sent) == ["cpu", "g08", "g09", "g10", "g11", "n1"]
    assert [(gpu.index, gpu.model) for gpu in sent["g09"].gpus] == [(0, "T4"), (1, "T4")]


async def test_an_inventory_may_come_from_standard_input(
    service: OracleServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("cluster: lab\nnodes: [{id: piped, capacity: {gpus: 1}}]\n"))
    assert await call("cluster", "apply", "-", "--target", service.target) == 0
    assert "piped" in service.oracle.nodes
    monkeypatch.setattr(sys, "stdin", io.StringIO("nodes: 3\n"))
    assert await call("cluster", "apply", "-", "-c", "lab", "--target", service.target) == 6
    assert "standard input:1:1" in capsys.readouterr().err


async def test_an_inventory_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert await call("cluster", "apply", tmp_path / "missing.yaml", "-c", "lab", "--target", "127.0.0.1:1") == 6
    assert "missing.yaml" in capsys.readouterr().err


@pytest.mark.parametrize(("given", "wanted"), [(None, "1"), ("2", "2")])
def test_numpy_multiplies_in_one_thread_unless_told_otherwise(
    given: str | None, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", given or "")
    if given is None:
        monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    monkeypatch.setattr(cli, "invoke", lambda: 0)
    with pytest.raises(SystemExit):
        cli.main()
    assert os.environ["OPENBLAS_NUM_THREADS"] == wanted


@pytest.mark.process
def test_numpy_is_not_imported_before_a_command_asks_for_it() -> None:
    code = "import sys, placewise_service.cli; sys.exit('numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": ":".join(sys.path)})


@pytest.mark.process
def test_a_service_without_keys_certificates_and_web_tokens_loads_no_cryptography() -> None:
    """It would be a sixteenth of the memory of a small service."""
    lines = (
        "import sys, placewise_service.main",
        "from placewise_models.bundle import load",
        "from placewise_models.folder import shipped_bundle",
        "load(shipped_bundle())",
        "sys.exit(any(name.startswith(('cryptography.hazmat', 'jwt')) for name in sys.modules))",
    )
    assert subprocess.run([sys.executable, "-c", "; ".join(lines)], check=False, timeout=60).returncode == 0


async def test_the_version_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert await call("--version") == 0
    assert capsys.readouterr().out == f"placewise {version('placewise')}\n"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("nodes:\n- {id: a\n", "c.yaml:3:1"),
        ("nodes: []\nnode: 1\n", "c.yaml:2:1: unknown key 'node'"),
        ("nodes:\n- {id: a}\n- {id: a}\n", "c.yaml:3:3: node 'a' is listed twice"),
        ("nodes:\n- {id: a, gpuz: 3}\n", "c.yaml:2:3"),
        ("nodes:\n- {ids: 'g[9-1]'}\n", "c.yaml:2:3: ids 'g[9-1]': write a range such as name-[00-15]"),
        ("nodes:\n- {capacity: {gpus: 1}}\n", "c.yaml:2:3: a node needs exactly one of id and ids"),
        ("nodes: 3\n", "c.yaml:1:1: the key nodes must hold a list"),
        ("- 3\n", "c.yaml:1:1: expected a mapping"),
    ],
)
async def test_a_malformed_inventory_is_named_and_not_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, where: str
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    assert await call("cluster", "apply", file, "-c", "lab", "--target", "127.0.0.1:1") == 6
    assert where in capsys.readouterr().err


async def test_show_prints_totals_and_json(service: OracleServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert await call("cluster", "show", "lab", "--full", "--target", service.target) == 0
    assert "n1" in capsys.readouterr().out
    assert await call("cluster", "show", "lab", "--json", "--target", service.target) == 0
    assert json.loads(capsys.readouterr().out)["nodeCount"] == 1


async def test_whatif_answers_and_says_why_not(service: OracleServer, capsys: pytest.CaptureFixture[str]) -> None:
    ask = ("whatif", "-c", "lab", "--target", service.target)
    assert await call(*ask, "--gpus", 2, "--workers", 2) == 0
    assert "PLACED" in capsys.readouterr().out
    assert await call(*ask, "--gpus", 8) == 5
    assert "INSUFFICIENT_GPU" in capsys.readouterr().out
    service.oracle.waits.add("*")
    assert await call(*ask, "--gpus", 1, "--queue", "q", "--json") == 5
    assert json.loads(capsys.readouterr().out)["admit_or_wait"]["admissions"][0]["verdict"] == "WAIT"
    assert all(request.dry_run and request.explain for _, request in service.oracle.calls)
    assert service.oracle.held == {}


async def test_whatif_takes_a_job_from_a_file(service: OracleServer, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("id: j\ngroups: [{role: WORKER, count: 1, demand: {gpus: 1}}]\n")
    assert await call("whatif", "-c", "lab", "--job", file, "--target", service.target) == 0
    file.write_text("id: j\nqueue: [\n")
    assert await call("whatif", "-c", "lab", "--job", file, "--target", service.target) == 6


async def test_a_service_that_is_away_or_refuses_has_its_exit_code(
    service: OracleServer, capsys: pytest.CaptureFixture[str]
) -> None:
    service.oracle.fail_always = InvalidRequestError("no such policy", reason="INVALID_REQUEST")
    assert await call("whatif", "-c", "lab", "--target", service.target) == 4
    assert "no such policy" in capsys.readouterr().err
    await service.stop()
    assert await call("cluster", "list", "--target", service.target) == 3


async def test_bad_usage_is_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert await call("whatif") == 2
    assert await call("no-such-command") == 2
    assert await call("cluster", "list", "--target", "nonsense") == 2
    assert await call("cluster", "list", "--target", "http://127.0.0.1:8080") == 2


async def test_replay_compares_policies_and_leaves_a_plot(
    service: OracleServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "t.csv"
    # Two 4-GPU jobs on one 4-GPU node: the second waits for the first; the third never fits.
    trace.write_text("job_id,submit_time_s,duration_s,num_gpus\na,0,100,4\nb,10,50,4\nc,20,5,40\n")
    plot = tmp_path / "p.png"
    options = ("--nodes", 1, "--gpus-per-node", 4, "--plot", plot, "--target", service.target, "--keep", "--json")
    assert await call("replay", "--trace", trace, "--policy", "tetris", *options) == 0
    answer = json.loads(capsys.readouterr().out)
    (run,) = answer["policies"]
    assert (run["jobs_started"], run["never_fits"], run["never_admitted"]) == (2, 1, 0)
    assert run["avg_jct_s"] == (100 + 140) / 2
    assert run["avg_queue_s"] == 90 / 2
    assert run["makespan_s"] == 150
    assert plot.read_bytes().startswith(b"\x89PNG")
    kinds = [(event.job_id, JobEvent.Kind.Name(event.kind)) for event in service.oracle.events]
    assert kinds == [
        ("a", "SUBMITTED"), ("a", "STARTED"), ("b", "SUBMITTED"), ("c", "SUBMITTED"), ("c", "CANCELLED"),
        ("a", "PROGRESS"), ("a", "FINISHED"), ("b", "STARTED"), ("b", "PROGRESS"), ("b", "FINISHED"),
    ]  # fmt: skip
    times = {event.kind: event.event_time.ToNanoseconds() for event in service.oracle.events if event.job_id == "b"}
    assert times[JobEvent.STARTED] - times[JobEvent.SUBMITTED] == 90 * 10**9


@pytest.fixture
def without_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "placewise_service.replay.plot", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)


@pytest.mark.usefixtures("without_plots")
async def test_replay_without_matplotlib_draws_nothing_and_says_so(
    service: OracleServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("job_id,submit_time_s,duration_s,num_gpus\na,0,100,4\n")
    options = ("--nodes", 1, "--gpus-per-node", 4, "--plot", tmp_path / "p.png", "--target", service.target, "--json")
    assert await call("replay", "--trace", trace, "--policy", "tetris", *options) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["plot"].startswith("none: matplotlib is not installed")
    assert answer["policies"][0]["jobs_started"] == 1
    assert not (tmp_path / "p.png").exists()


async def test_replay_over_http_without_aiohttp_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("connect", "http1"):
        monkeypatch.delitem(sys.modules, f"placewise_client.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    assert await call("replay", "--plot", tmp_path / "p.png", "--target", "http://127.0.0.1:1") == 2
    needs = "placewise: http:// and https:// need aiohttp: pip install 'placewise[http]'\n"
    assert capsys.readouterr().err == needs


@pytest.mark.usefixtures("without_plots")
async def test_replay_tells_the_service_the_time_of_the_trace(
    service: OracleServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("job_id,submit_time_s,duration_s,num_gpus\na,0,100,4\nb,10,5000,4\n")
    options = ("--nodes", 1, "--gpus-per-node", 4, "--plot", tmp_path / "p.png", "--target", service.target, "--json")
    rates = ("--exploration-rate", 0.25, "--admit-exploration-rate", 0.5, "--speed", 50_000)
    assert await call("replay", "--trace", trace, "--policy", "tetris", *rates, *options) == 0
    (run,) = json.loads(capsys.readouterr().out)["policies"]
    assert (run["makespan_s"], run["jobs_started"]) == (5100, 2)
    assert 0.1 < run["wall_s"] < 2500.0  # hours of the trace in less, whatever else the machine does
    (name, first), *later = service.oracle.calls
    assert name == "update_cluster_settings"
    settings = first.settings
    assert (settings.host_clock, settings.exploration_rate, settings.admit_exploration_rate) == (True, 0.25, 0.5)
    reported = [request.now.ToSeconds() for name, request in later if name != "delete_cluster"]
    assert reported[0] % 86_400 == 0
    assert reported == sorted(reported)
    assert {time_s - reported[0] for time_s in reported} == {0, 10, 50, 100, 2600, 5100}


@pytest.mark.usefixtures("without_plots")
async def test_replay_gives_up_on_a_policy_that_waits_for_ever(
    service: OracleServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("placewise_service.replay.host.IDLE_TICKS", 50)
    service.oracle.waits.add("*")
    trace = tmp_path / "t.csv"
    trace.write_text("job_id,submit_time_s,duration_s,num_gpus\na,0,100,1\n")
    options = ("--nodes", 1, "--plot", tmp_path / "p.png", "--target", service.target, "--keep", "--json")
    assert await call("replay", "--trace", trace, "--policy", "x", *options) == 0
    (run,) = json.loads(capsys.readouterr().out)["policies"]
    assert (run["jobs_started"], run["never_admitted"]) == (0, 1)
    assert sum(name == "admit_or_wait" for name, _ in service.oracle.calls) == 51


@pytest.mark.parametrize(
    ("asked", "policy"),
    [((), "fifo"), (("--admit", "fifo-strict"), "fifo-strict"), (("--truth", "judge"), "none")],
)
def test_replay_admits_by_fifo_by_default(
    asked: Sequence[str], policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[ReplayPlan] = []

    async def run_all(target: object, plans: list[ReplayPlan], *rest: Any) -> list[Any]:
        planned.extend(plans)
        raise KeyboardInterrupt

    monkeypatch.setattr(replay, "_run_all", run_all)
    invoke(["replay", *asked, "--max-jobs", "2", "--plot", str(tmp_path / "plot.png")])
    assert {plan.admit_policy for plan in planned} == {policy}


@pytest.mark.process
def test_ctrl_c_ends_a_command_with_130(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "placewise_service.cli", "cluster", "apply", str(DEMO_INVENTORY), "--wait", "60"]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(120)
        environment = {**os.environ, "PLACEWISE_CLIENT_TARGET": f"127.0.0.1:{silent.getsockname()[1]}"}
        with foreground():
            process = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE)
        assert process.stderr is not None
        connection, _ = silent.accept()  # past the imports, where Ctrl-C is not ours to catch yet
        with connection, process.stderr as printed:
            process.send_signal(signal.SIGINT)
            code = process.wait(120)
            assert (code, b"Traceback" in printed.read()) == (130, False)


def test_a_token_goes_to_another_machine_in_clear_only_if_the_environment_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for value in ("", "yes"):
        monkeypatch.setenv(PLAINTEXT, value)
        with pytest.raises(CommandError, match="in plain text"):
            target_of("10.0.0.7:1", "secret")
    monkeypatch.setenv(PLAINTEXT, "true")
    assert target_of("10.0.0.7:1", "secret").allow_plaintext_token


def test_an_export_begins_behind_no_word(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert invoke(["log", "export", str(tmp_path), "--after", "yesterday"]) == Exit.USAGE
    assert "a position is MILLISECONDS-NUMBER" in capsys.readouterr().err
