"""A trace through a real service while a truth runs the jobs: the run is the simulator's, event by event."""

import asyncio
import itertools
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.fakes.bundles import copy_bundle, rewrite

from placewise.v1.cluster_pb2 import GetClusterRequest
from placewise_client.aio import AsyncClient
from placewise_client.target import Target
from placewise_core.domain.traces import at_rate, read_trace
from placewise_core.domain.truth import TruthSetting
from placewise_core.policies.registry import placement_policies
from placewise_models.bundle import load
from placewise_models.printed.harmony_paper import HARMONY_PAPER_MODEL, HARMONY_PAPER_REPORT
from placewise_service.bench.processes import service_process
from placewise_service.cli import invoke
from placewise_service.commands.exits import Exit
from placewise_service.data import PHILLY_CUT
from placewise_service.replay.host import ReplayPlan
from placewise_service.replay.summary import ReplayFigures
from placewise_service.replay.true_host import TrueHost
from placewise_training.policy.printed.export import export_harmony_paper
from placewise_training.policy.printed.train import Args, train
from placewise_training.sim.gangs.hosted import HostedSimulation
from placewise_training.sim.gangs.results import Observer
from placewise_training.sim.hardware import uniform_cluster
from placewise_training.sim.policies import placement_policy
from placewise_training.sim.runs import Contender, Setting, simulate
from placewise_training.sim.traces import TraceMapping, read_jobs

pytestmark = pytest.mark.e2e

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "replay.md"
NODES, GPUS, SEED = 3, 4, 3
BASE_S = 20_000 * 86_400.0  # whole days: slots begin as the simulator's do
SETTING = TruthSetting(at_rate(read_jobs("philly")[:50], 100.0), NODES, GPUS, seed=SEED)
Event = tuple[float, str, str, tuple[str, ...]]


def recorder(events: list[Event]) -> Observer:
    return lambda now_s, what, job, places: events.append((now_s, what, job.id, places))


def simulated(
    truth: str, policy: str, admit: str, *, reports_progress: bool = False, bundle: Path | None = None
) -> tuple[list[Event], str]:
    """Every start and end of the simulator's own run, and its hash. A policy object hears of progress."""
    events: list[Event] = []
    is_elastic = admit != "none"
    mapping = TraceMapping(gpu_model="V100", gpus_per_node=GPUS, has_classes=True, is_elastic=is_elastic)
    cluster = uniform_cluster(NODES, GPUS)
    setting = Setting(cluster, lambda speeds, seed: mapping.generate(SETTING.jobs, speeds, seed), truth)
    nets = load(bundle) if bundle else None
    place = placement_policy(policy, nets) if reports_progress else policy
    result = simulate(setting, Contender(place, admit), SEED, observers=[recorder(events)])
    return events, result.event_hash


async def replayed(
    client: AsyncClient, truth: str, policy: str, admit: str, *, reports_progress: bool = False
) -> tuple[list[Event], str, ReplayFigures]:
    events: list[Event] = []
    hosted = HostedSimulation(truth, replace(SETTING, is_elastic=admit != "none"))
    hosted.simulation.options.observers = [recorder(events)]
    named = (f"{truth}-{policy}-{admit}", policy, admit, NODES, GPUS, BASE_S)
    plan = ReplayPlan(*named, seed=SEED, reports_progress=reports_progress)
    run = await TrueHost(client, plan, hosted).run(lambda _: None)
    return events, run.digest, ReplayFigures.of(run)


async def test_a_service_and_the_simulator_run_a_trace_alike() -> None:
    cases = [("judge", name, "none") for name in placement_policies() if name != "random"]
    cases += [("site", "consolidate", "none"), ("train", "load-balance", "none"), ("site", "tetris", "fifo-strict")]
    waited = 0.0
    async with service_process() as service, AsyncClient(Target((service.target,)), timeout_s=30.0) as client:
        for case in cases:
            events, digest, figures = await replayed(client, *case)
            assert (events, digest) == simulated(*case), case
            ends = [(job, now_s) for now_s, what, job, _ in events if what == "finish"]
            assert len(ends) == len(figures.jct_s) > 30
            waited += float(figures.queue_s.sum())
    assert waited > 3600  # the cluster was too small, or the placements would have been too easy


# (truth, policy, admission, whether speeds are reported): they read the time.
TIMED = (
    *[("judge", "consolidate", admit, False) for admit in ("proteus", "proteus-paper", "qos", "qos-paper")],
    ("site", "consolidate", "proteus-qos", False),
    ("judge", "harmony", "none", True),
    ("site", "search", "none", True),
    ("judge", "ldwp", "none", True),
    ("site", "adaptive", "none", True),
    *[(truth, policy, "fifo", True) for truth, policy in (("judge", "consolidate"), ("site", "tetris"))],
)


async def test_policies_that_read_the_time_read_that_of_the_trace() -> None:
    async with service_process() as service, AsyncClient(Target((service.target,)), timeout_s=30.0) as client:
        for truth, policy, admit, reports_progress in TIMED:
            case = (truth, policy, admit)
            events, digest, figures = await replayed(client, *case, reports_progress=reports_progress)
            shown = await client.get_cluster(GetClusterRequest(cluster="-".join(case)))
            assert (events, digest) == simulated(*case, reports_progress=reports_progress), case
            last_s = max(now_s for now_s, *_ in events)
            assert shown.host_time.ToNanoseconds() / 1e9 == pytest.approx(BASE_S + last_s, abs=1e-3)
            assert figures.run.wall_s < last_s / 1000  # more than a week of the trace, in minutes at most
            assert last_s > 7 * 86_400


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with Harmony's net as printed for the replay's number of nodes, next to untrained."""
    nets, folder = tmp_path_factory.mktemp("nets"), copy_bundle(tmp_path_factory.mktemp("bundles") / "default")
    few = Args(out=nets, nodes=NODES, tasks=20, simulations=1, jobs=4, width=16, layers=1, validation_simulations=1)
    train(few)
    export_harmony_paper(nets, nets)
    files = json.loads((folder / "manifest.json").read_text())["files"]
    for name in (HARMONY_PAPER_MODEL, HARMONY_PAPER_REPORT):
        (folder / name).write_bytes((nets / name).read_bytes())
        files[name] = ""
    return rewrite(folder, files=files)


async def test_a_net_as_printed_decides_alike_in_both(printed: Path) -> None:
    """Of the nets as printed, a trace asks this one alone: those of ldwp-paper and iawp-paper are for pipelines."""
    case, served = ("judge", "harmony-paper", "none"), service_process({"PLACEWISE_BUNDLE_DIR": str(printed.parent)})
    async with served as service, AsyncClient(Target((service.target,)), timeout_s=30.0) as client:
        events, digest, _ = await replayed(client, *case, reports_progress=True)
    assert (events, digest) == simulated(*case, reports_progress=True, bundle=printed)
    heuristic = simulated("judge", "consolidate", "none")  # which answers if the net cannot
    assert events != heuristic[0]


async def call(*args: object) -> int:
    return await asyncio.to_thread(invoke, [str(arg) for arg in args])


def installed(folder: Path, truths: str) -> None:
    """A distribution with these entry points, in a folder that Python imports from."""
    info = folder / "truths_of_a_test-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: truths-of-a-test\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[placewise.truths]\n{truths}\n")


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    monkeypatch.syspath_prepend(tmp_path / "plugins")
    return lambda truths: installed(tmp_path / "plugins", truths)


async def test_the_log_is_exported_before_its_cluster_is_deleted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, plugin: Callable[[str], None]
) -> None:
    plugin("a-site = placewise_training.sim.gangs.hosted:site")
    state, log = tmp_path / "state", tmp_path / "log"
    monkeypatch.setenv("PLACEWISE_STATE_DIR", str(state))
    async with service_process({"PLACEWISE_STATE_DIR": str(state)}) as service:
        options = ("--policy", "consolidate", "--nodes", 4, "--max-jobs", 20, "--plot", tmp_path / "p.png", "--json")
        truth = ("--truth", "a-site", "--jobs-per-hour", 60, "--target", service.target)
        assert await call("replay", *truth, *options, "--exploration-rate", 0.5, "--log", log) == 0
        output = capsys.readouterr()
        answer = json.loads(output.out)
        assert "deleted" not in output.err
        assert await call("replay", *truth, *options) == 0
        assert "--log DIR exports it first" in capsys.readouterr().err
        assert await call("cluster", "list", "--json", "--target", service.target) == 0
        assert "replay-" not in capsys.readouterr().out
    joined = rows_of(log, "joined")
    (figures,) = answer["policies"]
    assert answer["truth"] == "a-site"
    observed = [row for row in joined if row["status"] == "OBSERVED"]
    assert figures["jobs_started"] == len(observed) > 15
    recorded = {job.id: job.duration_s for job in read_trace(PHILLY_CUT)[:20]}
    took = {str(row["job_id"]): float(row["end_time_s"]) - float(row["start_time_s"]) for row in observed}
    assert max(abs(took_s / recorded[job] - 1) for job, took_s in took.items()) > 0.05  # the truth's speeds
    assert jobs_that_changed_speed(log) > 3


def jobs_that_changed_speed(log: Path) -> int:
    """Checks each run's epochs against the truth: they are those reported, and between two reports they grow by the
    speed of the first. The number of runs with several speeds.

    A speed may be off by a little: of two reports of one moment, as when two jobs start, the log keeps the first."""
    reported: dict[object, dict[float, float]] = {}
    epochs_at: dict[object, dict[float, float]] = {}
    for row in rows_of(log, "progress"):
        reported.setdefault(row["job_id"], {})[row["time_s"]] = row["speed_epochs_per_s"]
        epochs_at.setdefault(row["job_id"], {})[row["time_s"]] = row["epochs_done"] or 0.0
    several = 0
    for run in rows_of(log, "runs"):
        speeds, points = reported[run["job_id"]], list(zip(run["times_s"], run["epochs"], strict=True))
        assert points[0] == (run["start_time_s"], 0.0)
        assert dict(points).items() >= epochs_at[run["job_id"]].items()
        grown = {from_s: (to - done) / (to_s - from_s) for (from_s, done), (to_s, to) in itertools.pairwise(points)}
        assert grown == pytest.approx({from_s: speeds[from_s] for from_s in grown}, rel=0.01)
        several += len(grown) > 1
    means = {row["job_id"]: row["speed_epochs_per_s"] for row in rows_of(log, "joined") if row["end"]}
    ends = {run["job_id"]: (run["epochs"][-1], run["end_time_s"] - run["start_time_s"])
            for run in rows_of(log, "runs")}  # fmt: skip
    assert means == pytest.approx({job: epochs / seconds for job, (epochs, seconds) in ends.items()})
    return several


def rows_of(log: Path, table: str) -> list[dict[str, Any]]:
    return [row for path in log.glob(f"{table}/*/*.parquet") for row in pq.read_table(path).to_pylist()]


async def test_the_truth_of_the_document_is_driven_by_a_service(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], plugin: Callable[[str], None]
) -> None:
    plugin("halving = halving:Halving")
    code = re.search(r'```python\n("""halving\.py.*?)```', DOCUMENT.read_text(), re.DOTALL)
    assert code is not None
    (tmp_path / "plugins" / "halving.py").write_text(code[1])
    trace = tmp_path / "t.csv"
    trace.write_text("job_id,submit_time_s,duration_s,num_gpus\na,0,100,1\nb,0,100,1\nc,500,100,1\n")
    options = ("--trace", trace, "--nodes", 1, "--plot", tmp_path / "p.png", "--json", "--truth", "halving")
    async with service_process() as service:
        assert await call("replay", *options, "--policy", "consolidate", "--target", service.target) == 0
    (figures,) = json.loads(capsys.readouterr().out)["policies"]
    assert figures["jobs_started"] == 3
    assert figures["makespan_s"] == pytest.approx(600)  # a and b halve each other, c is alone
    assert figures["avg_jct_s"] == pytest.approx((200 + 200 + 100) / 3)


async def test_an_unknown_truth_reaches_no_service(
    capsys: pytest.CaptureFixture[str], plugin: Callable[[str], None]
) -> None:
    plugin("halving = halving:Halving")
    assert await call("replay", "--truth", "nobody", "--target", "127.0.0.1:1") == Exit.USAGE
    assert "no truth is called 'nobody'" in capsys.readouterr().err
