"""A trace through a real service while a truth runs the jobs: the run is the simulator's, event by event."""

import asyncio
import itertools
import json
import random
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
from placewise_core.admit.registry import admission_policies
from placewise_core.domain.traces import TraceJob, at_rate, read_trace
from placewise_core.domain.truth import TruthSetting
from placewise_core.policies.registry import placement_policies
from placewise_models.bundle import load
from placewise_models.learned import LEARNED_POLICIES
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
from placewise_training.sim.policies import shipped, throughput_model
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
    truth: str, policy: str, admit: str, *, bundle: Path | None = None, setting: TruthSetting = SETTING
) -> tuple[list[Event], str]:
    """Every start and end of the simulator's own run, and its hash."""
    events: list[Event] = []
    is_elastic, gpus = admit != "none", setting.gpus_per_node
    mapping = TraceMapping(gpu_model="V100", gpus_per_node=gpus, has_classes=True, is_elastic=is_elastic)
    cluster = uniform_cluster(setting.nodes, gpus)
    jobs = Setting(cluster, lambda speeds, seed: mapping.generate(setting.jobs, speeds, seed), truth)
    contender = Contender(policy, admit, load(bundle) if bundle else shipped())
    result = simulate(jobs, contender, setting.seed, observers=[recorder(events)])
    return events, result.event_hash


async def replayed(
    client: AsyncClient, truth: str, policy: str, admit: str, *, setting: TruthSetting = SETTING
) -> tuple[list[Event], str, ReplayFigures]:
    events: list[Event] = []
    hosted = HostedSimulation(truth, replace(setting, is_elastic=admit != "none"))
    hosted.simulation.options.observers = [recorder(events)]
    named = (f"{truth}-{policy}-{admit}", policy, admit, setting.nodes, setting.gpus_per_node, BASE_S)
    plan = ReplayPlan(*named, seed=setting.seed, reports_progress=policy in LEARNED_POLICIES)
    run = await TrueHost(client, plan, hosted).run(lambda _: None)
    return events, run.digest, ReplayFigures.of(run)


async def test_a_service_and_the_simulator_run_a_trace_alike() -> None:
    cases = [("judge", name, "none") for name in placement_policies()]
    cases += [("site", "consolidate", "none"), ("train", "load-balance", "none"), ("site", "tetris", "fifo-strict")]
    cases += [("site", "random", "fifo"), ("judge", "random", "qos")]
    waited = 0.0
    async with service_process() as service, AsyncClient(Target((service.target,)), timeout_s=30.0) as client:
        for case in cases:
            events, digest, figures = await replayed(client, *case)
            assert (events, digest) == simulated(*case), case
            ends = [(job, now_s) for now_s, what, job, _ in events if what == "finish"]
            assert len(ends) == len(figures.jct_s) > 30
            waited += float(figures.queue_s.sum())
    assert waited > 3600  # the cluster was too small, or the placements would have been too easy


# They read the time.
TIMED = (
    *[("judge", "load-balance", admit) for admit in admission_policies(throughput_model())],
    *[("site", policy, "proteus-qos") for policy in ("consolidate", "tetris", "random")],
    *[(truth, policy, "none") for truth, policy in (("judge", "harmony"), ("site", "search"), ("judge", "ldwp"))],
    ("site", "adaptive", "none"),
    ("site", "harmony", "fifo"),
    ("judge", "search", "qos"),
)


async def test_policies_that_read_the_time_read_that_of_the_trace() -> None:
    async with service_process() as service, AsyncClient(Target((service.target,)), timeout_s=30.0) as client:
        for case in TIMED:
            events, digest, figures = await replayed(client, *case)
            shown = await client.get_cluster(GetClusterRequest(cluster="-".join(case)))
            assert (events, digest) == simulated(*case), case
            last_s = max(now_s for now_s, *_ in events)
            assert shown.host_time.ToNanoseconds() / 1e9 == pytest.approx(BASE_S + last_s, abs=1e-3)
            assert figures.run.wall_s < last_s / 1000  # more than a week of the trace, in minutes at most
            assert last_s > 7 * 86_400


def crowded() -> TruthSetting:
    """Small jobs, and four as large as the cluster, which wait beside them for a long one to end."""
    draw, now_s = random.Random(1), 10.0
    jobs = [TraceJob("long", 0.0, 400_000.0, 4, queue="q")]
    for i in range(60):
        now_s += draw.expovariate(1 / 300.0)
        jobs.append(TraceJob(f"s{i}", now_s, draw.uniform(300, 3000), draw.choice([1, 1, 1, 2]), queue="q"))
        if i % 15 == 2:
            jobs.append(TraceJob(f"big{i}", now_s + 1.0, 2000.0, 6 * GPUS, queue="q"))
    return TruthSetting(jobs, 6, GPUS, seed=SEED)


@pytest.mark.parametrize("setting", [SETTING, crowded()], ids=["philly", "crowded"])
async def test_a_net_as_printed_decides_alike_in_both(setting: TruthSetting, tmp_path: Path) -> None:
    """Its net reads the jobs that wait. Of the nets as printed, a trace asks this one alone: those of ldwp-paper and
    iawp-paper are for pipelines."""
    printed = bundle_as_printed(setting.nodes, tmp_path)
    case, served = ("judge", "harmony-paper", "none"), service_process({"PLACEWISE_BUNDLE_DIR": str(printed.parent)})
    async with served as service, AsyncClient(Target((service.target,)), timeout_s=30.0) as client:
        events, digest, _ = await replayed(client, *case, setting=setting)
    assert (events, digest) == simulated(*case, bundle=printed, setting=setting)
    heuristic = simulated("judge", "consolidate", "none", setting=setting)  # which answers if the net cannot
    assert events != heuristic[0]


def bundle_as_printed(nodes: int, directory: Path) -> Path:
    """A bundle with Harmony's net as printed for so many nodes, next to untrained."""
    nets, folder = directory / "nets", copy_bundle(directory / "bundles" / "default")
    few = Args(out=nets, nodes=nodes, tasks=200, simulations=1, jobs=4, width=32, heads=4, layers=2, rate=3e-3)
    train(replace(few, validation_simulations=1))
    export_harmony_paper(nets, nets)
    files = json.loads((folder / "manifest.json").read_text())["files"]
    for name in (HARMONY_PAPER_MODEL, HARMONY_PAPER_REPORT):
        (folder / name).write_bytes((nets / name).read_bytes())
        files[name] = ""
    return rewrite(folder, files=files)


async def call(*args: object) -> int:
    return await asyncio.to_thread(invoke, [str(arg) for arg in args])


async def hashes(capsys: pytest.CaptureFixture[str], command: str, *options: object) -> dict[str, str]:
    """The hash of the run of each policy, by a command of docs/replay.md."""
    assert await call(command, *options, "--truth", "judge", "--json") == 0
    runs = json.loads(capsys.readouterr().out)["policies"]
    return {run["policy"]: run.get("event_hash") or run["event_hashes"][0] for run in runs}


@pytest.mark.parametrize("admit", ["none", "fifo", "proteus-qos"])
async def test_both_commands_of_the_document_give_one_run(
    admit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text("\n".join(PHILLY_CUT.read_text().splitlines()[:70]))
    policies = [option for policy in ("tetris", "random", "harmony", "search") for option in ("--policy", policy)]
    options = ("--trace", trace, "--nodes", 2, "--admit", admit, *policies)
    expected = await hashes(capsys, "simulate", *options)
    async with service_process() as service:
        found = await hashes(capsys, "replay", *options, "--plot", tmp_path / "p.png", "--target", service.target)
    assert list(found.values()) == list(expected.values())
    assert len(set(found.values())) > 1


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
