"""Bundles with a policy net: refused and serving ones, a swap under load; failures are flagged and counted."""

import asyncio
import itertools
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.fakes import policy_net
from tests.fakes.cluster import make_job, make_node
from tests.fakes.engine import ask_place

from placewise_core.basics.clock import ManualClock
from placewise_core.domain.commands import JobEvent, JobEventKind, PlaceCommand
from placewise_core.domain.decision import Outcome
from placewise_core.domain.errors import InvalidRequestError
from placewise_core.domain.events import ClusterRecords
from placewise_core.domain.job import JobId
from placewise_core.inputs.cluster import STEP_FEATURES, Encoder, Observation
from placewise_core.view.view import ClusterView
from placewise_models.bundle import BundleError, Manifest, load, schema_of, write_manifest
from placewise_models.folder import shipped_bundle
from placewise_models.policy import PolicyRuntime
from placewise_service.engine import Engine, EngineOptions
from placewise_service.engine.build import build_engine
from placewise_service.state.reference.memory import MemoryStore
from placewise_service.telemetry import Telemetry

COEFFICIENTS = ("throughput.json", "capability.json")
REWARD = ("reward.onnx", "reward.json")


def make_bundle(root: Path, name: str, seed: int = 0, *, has_reward: bool = False) -> Path:
    """A whole bundle with a small policy net that was never trained, and the shipped reward model if wanted."""
    directory = root / name
    directory.mkdir(parents=True)
    for file in (*COEFFICIENTS, *(REWARD if has_reward else ())):
        shutil.copyfile(shipped_bundle() / file, directory / file)
    policy_net.write_policy(directory, seed)
    describe(directory)
    return directory


def describe(directory: Path, schema: str = "") -> None:
    """Writes the manifest of the present files."""
    files = dict.fromkeys(sorted(path.name for path in directory.iterdir() if path.name != "manifest.json"), "")
    write_manifest(directory, Manifest(directory.name, "2026-01-01T00:00:00Z", files, schema or schema_of(files)))


def test_a_whole_bundle_loads_and_runs(tmp_path: Path) -> None:
    policy = load(make_bundle(tmp_path, "good")).policy
    assert policy is not None
    for nodes, jobs in ((1, 1), (30, 33), (64, 48)):
        state = policy.read(policy.look(cluster(nodes)), Encoder().encode_new([make_job(f"j{i}") for i in range(jobs)]))
        assert (len(state.nodes), len(state.jobs)) == (nodes, jobs)
        logits = policy.decode(state, jobs - 1, np.zeros((nodes, STEP_FEATURES), dtype=np.float32))
        assert logits.shape == (2 * nodes,)
        assert np.isfinite(logits).all()
    for session in (policy.encoder, policy.jobs, policy.decoder):
        assert session.get_session_options().intra_op_num_threads == 1


def cluster(nodes: int) -> Observation:
    view = ClusterView(ClusterRecords("c", 0, "e", nodes=tuple(make_node(f"n{i}") for i in range(nodes))))
    return Encoder().encode(view, (), 0.0)


def truncate(file: str) -> Callable[[Path], None]:
    def damage(directory: Path) -> None:
        content = (directory / file).read_bytes()
        (directory / file).write_bytes(content[: len(content) // 2])

    return damage


def corrupt(directory: Path) -> None:
    """Bytes in the middle of the weights."""
    content = bytearray((directory / policy_net.ENCODER).read_bytes())
    middle = len(content) // 2
    content[middle : middle + 32] = bytes(32)
    (directory / policy_net.ENCODER).write_bytes(bytes(content))


def mix(directory: Path) -> None:
    """The decoder of another net under this one's report: loads well, answers wrong."""
    other = directory.parent / "other"
    other.mkdir()
    policy_net.write_policy(other, seed=77)
    shutil.copyfile(other / policy_net.DECODER, directory / policy_net.DECODER)


def other_features(directory: Path) -> None:
    report = (directory / policy_net.REPORT).read_bytes()
    policy_net.write_policy(directory, schema="0" * 64)
    (directory / policy_net.REPORT).write_bytes(report)


def forget(file: str) -> Callable[[Path], None]:
    return lambda directory: (directory / file).unlink()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (truncate(policy_net.ENCODER), "policy_encoder.onnx is not a model"),
        (truncate(policy_net.JOBS), "policy_jobs.onnx is not a model"),
        (truncate(policy_net.DECODER), "policy_decoder.onnx is not a model"),
        (corrupt, r"not answer|not run|not a model"),
        (mix, "does not answer its sample"),
        (other_features, "other features"),
        (forget(policy_net.DECODER), "has policy_encoder.onnx, but not policy_decoder.onnx"),
        (forget(policy_net.JOBS), "has policy_encoder.onnx, but not policy_jobs.onnx"),
        (forget(policy_net.REPORT), "has policy_encoder.onnx, but not policy.json"),
        (lambda directory: (directory / policy_net.REPORT).write_text("{}"), "not a placewise.policy/3"),
    ],
)
def test_a_damaged_net_is_refused_even_with_right_checksums(
    tmp_path: Path, damage: Callable[[Path], object], words: str
) -> None:
    directory = make_bundle(tmp_path, "bad")
    damage(directory)
    with pytest.raises(BundleError, match=r"checksum|missing"):
        load(directory)
    describe(directory)
    with pytest.raises(BundleError, match=words):
        load(directory)


def test_a_manifest_of_other_features_is_refused(tmp_path: Path) -> None:
    directory = make_bundle(tmp_path, "old")
    describe(directory, schema="1" * 64)
    with pytest.raises(BundleError, match="other features"):
        load(directory)


def engine_on(root: Path, bundle: str, telemetry: Telemetry | None = None) -> Engine:
    clock = ManualClock(1_000_000.0)
    return build_engine(MemoryStore(clock), clock, telemetry or Telemetry(), EngineOptions(), root, bundle)


def command(*names: str, policy: str = "harmony") -> PlaceCommand:
    jobs = (replace(make_job(n, workers=2), single_gpu_s=600.0, total_epochs=10.0) for n in names)
    return PlaceCommand("c", tuple(jobs), policy=policy)


async def started(root: Path, bundle: str, nodes: int = 4, telemetry: Telemetry | None = None) -> Engine:
    engine = engine_on(root, bundle, telemetry)
    await engine.start()
    await engine.report_nodes("c", [make_node(f"n{i}") for i in range(nodes)], full=True)
    return engine


async def test_harmony_is_there_when_the_bundle_has_its_net(tmp_path: Path) -> None:
    make_bundle(tmp_path, "net", has_reward=True)
    bare = make_bundle(tmp_path, "bare")
    for file in policy_net.FILES:
        (bare / file).unlink()
    describe(bare)
    engine = await started(tmp_path, "bare")
    with pytest.raises(InvalidRequestError, match="no policy 'harmony'"):
        await ask_place(engine, command("a"))
    await engine.bundles.activate("net")
    for policy in ("harmony", "search"):
        decision = await ask_place(engine, command(f"a-{policy}", policy=policy))
        assert decision.decisions[0].outcome is Outcome.PLACED
        assert (decision.meta.policy, decision.meta.bundle) == (policy, "net")
        assert (decision.meta.is_fallback, decision.meta.propensity) == (False, 1.0)
    await engine.bundles.rollback()
    with pytest.raises(InvalidRequestError, match="no policy 'harmony'"):
        await ask_place(engine, command("b"))
    await engine.close()


@pytest.mark.parametrize("policy", ["harmony", "search"])
async def test_the_next_request_finds_the_cluster_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    make_bundle(tmp_path, "net", has_reward=True)
    engine = await started(tmp_path, "net")
    calls: list[str] = []
    for name in ("look", "read"):
        monkeypatch.setattr(PolicyRuntime, name, _noted(name, getattr(PolicyRuntime, name), calls))
    for i, expected in enumerate((["look", "read"], ["read"], ["read"])):
        await ask_place(engine, command(f"a-{i}", policy=policy))
        assert calls == expected
        calls.clear()
        await asyncio.sleep(0)
        assert calls == ["look"]  # with the job that was just placed
        calls.clear()
    await engine.close()


def _noted(name: str, method: Callable[..., object], calls: list[str]) -> Callable[..., object]:
    def call(*arguments: object) -> object:
        calls.append(name)
        return method(*arguments)

    return call


async def test_a_request_of_many_jobs_is_placed_whole(tmp_path: Path) -> None:
    make_bundle(tmp_path, "net")
    engine = await started(tmp_path, "net", nodes=20)
    decision = await ask_place(engine, command(*(f"j{i}" for i in range(40))))
    assert [d.job_id for d in decision.decisions] == [f"j{i}" for i in range(40)]
    assert {d.outcome for d in decision.decisions} == {Outcome.PLACED}
    assert not decision.meta.is_fallback, decision.meta.fallback_reason
    taken = [(a.node, g) for d in decision.decisions for a in d.assignments for g in a.gpu_indices]
    assert len(taken) == len(set(taken)) == 80
    await engine.close()


@pytest.mark.parametrize("policy", ["harmony", "search"])
async def test_a_swap_under_load_drops_nothing(tmp_path: Path, policy: str) -> None:
    for seed, name in enumerate(("one", "two")):
        make_bundle(tmp_path, name, seed, has_reward=True)
    truncate(policy_net.DECODER)(make_bundle(tmp_path, "torn"))
    engine = await started(tmp_path, "one", nodes=6)
    deciding: asyncio.Queue[str] = asyncio.Queue()
    is_done = asyncio.Event()

    async def ask(worker: int) -> None:
        for i in itertools.count():
            if is_done.is_set():
                return
            names = [f"{worker}-{i}-{part}" for part in range(1 + i % 2)]
            decision = await ask_place(engine, command(*names, policy=policy))
            assert {d.outcome for d in decision.decisions} == {Outcome.PLACED}
            assert not decision.meta.is_fallback, decision.meta.fallback_reason
            deciding.put_nowait(decision.meta.bundle)
            await engine.report_job_events("c", [JobEvent(JobId(name), JobEventKind.FINISHED) for name in names])
            await asyncio.sleep(0)

    async def swap() -> None:
        for name in ("two", "one") * 3:
            await engine.bundles.activate(name)
            with pytest.raises(InvalidRequestError):
                await engine.bundles.activate("torn")
            while not deciding.empty():
                deciding.get_nowait()
            bundles = [await deciding.get() for _ in range(8)]
            assert set(bundles[3:]) == {name}  # of each of three workers, one may have begun before the swap
        is_done.set()

    async with asyncio.timeout(120), asyncio.TaskGroup() as group:
        for worker in range(3):
            group.create_task(ask(worker))
        group.create_task(swap())
    await engine.close()


@pytest.mark.parametrize(
    ("policy", "part", "reason"),
    [
        ("harmony", "look", "harmony: RuntimeError"),
        ("harmony", "read", "harmony: RuntimeError"),
        ("harmony", "decode", "harmony: RuntimeError"),
        ("search", "look", "harmony: RuntimeError"),
    ],
)
async def test_a_net_that_breaks_while_serving_is_flagged_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, part: str, reason: str
) -> None:
    make_bundle(tmp_path, "net", has_reward=True)
    telemetry = Telemetry()
    engine = await started(tmp_path, "net", telemetry=telemetry)

    def break_(self: object, *arguments: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(PolicyRuntime, part, break_)
    decision = await ask_place(engine, command("a", policy=policy))
    assert decision.decisions[0].outcome is Outcome.PLACED
    assert (decision.meta.is_fallback, decision.meta.fallback_reason) == (True, reason)
    await asyncio.sleep(0)  # a decision is counted once its answer is on its way
    lines = telemetry.render().decode().splitlines()
    counted = [line for line in lines if line.startswith("placewise_fallbacks_total{") and f'policy="{policy}"' in line]
    assert [line.split()[-1] for line in counted] == ["1.0"]
    await engine.close()
