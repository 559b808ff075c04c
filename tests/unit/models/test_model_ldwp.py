"""LDWP's net in the shipped bundle: whole, else refused; the engine serves and drops its policy with it."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.fakes.cluster import make_node
from tests.fakes.engine import ask_place

from placewise_core.basics.clock import ManualClock
from placewise_core.domain.commands import PlaceCommand
from placewise_core.domain.decision import Outcome
from placewise_core.domain.errors import InvalidRequestError
from placewise_core.domain.job import Architecture, Job, JobId, Resources, Role, Subtask, TaskGroup
from placewise_core.inputs.ldwp import COLUMNS
from placewise_models.bundle import BundleError, Manifest, load, schema_of, write_manifest
from placewise_models.folder import shipped_bundle
from placewise_service.engine.build import build_engine
from placewise_service.engine.parts import EngineOptions
from placewise_service.state.reference.memory import MemoryStore
from placewise_service.telemetry import Telemetry

FILES = ("throughput.json", "capability.json", "ldwp.onnx", "ldwp.json")


def make_bundle(root: Path, name: str, files: tuple[str, ...] = FILES) -> Path:
    directory = root / name
    directory.mkdir(parents=True)
    for file in files:
        shutil.copyfile(shipped_bundle() / file, directory / file)
    write_manifest(directory, Manifest(name, "2026-01-01T00:00:00Z", dict.fromkeys(files, ""), schema_of(files)))
    return directory


def test_the_shipped_net_values_any_number_of_nodes(tmp_path: Path) -> None:
    net = load(make_bundle(tmp_path, "good")).ldwp
    assert net is not None
    rows = np.random.default_rng(0).random((80, len(COLUMNS)), dtype=np.float32)
    values = net.values(rows)
    assert values.shape == (80,)
    np.testing.assert_allclose(net.values(rows[::-1]), values[::-1], atol=1e-5)
    assert net.values(rows[:1]).shape == (1,)


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


@pytest.mark.parametrize(
    ("file", "damage", "reason"),
    [
        ("ldwp.onnx", cut, "ONNX Runtime"),
        ("ldwp.onnx", lambda content: content.replace(b"tasks_per_core", b"tasks_per_node"), "other columns"),
        ("ldwp.json", lambda content: content.replace(b"placewise.ldwp/1", b"placewise.ldwp/9"), "document"),
        ("ldwp.json", lambda content: content.replace(b'"sample"', b'"example"'), "sample"),
    ],
)
def test_what_is_torn_or_foreign_is_refused(
    tmp_path: Path, file: str, damage: Callable[[bytes], bytes], reason: str
) -> None:
    directory = make_bundle(tmp_path, "bad")
    (directory / file).write_bytes(damage((directory / file).read_bytes()))
    write_manifest(directory, Manifest("bad", "2026-01-01T00:00:00Z", dict.fromkeys(FILES, "")))
    with pytest.raises(BundleError, match=reason):
        load(directory)


def asked(name: str) -> PlaceCommand:
    subtasks = (
        Subtask("decode", "decode", size=1000.0),
        Subtask("detect", "detect", ("decode",), has_gpu_version=True, profile={"speedup": 12.0}, size=1000.0),
    )
    job = Job(JobId(name), groups=(TaskGroup(Role.WORKER, 1, Resources()),), subtasks=subtasks)
    return PlaceCommand("c", (job,), policy="ldwp")


async def test_the_policy_comes_and_goes_with_its_bundle(tmp_path: Path) -> None:
    make_bundle(tmp_path, "net")
    make_bundle(tmp_path, "bare", FILES[:2])
    clock = ManualClock(1_000_000.0)
    engine = build_engine(MemoryStore(clock), clock, Telemetry(), EngineOptions(), tmp_path, "bare")
    await engine.start()
    await engine.report_nodes("c", [make_node(f"n{i}") for i in range(4)], full=True)
    with pytest.raises(InvalidRequestError, match="no policy 'ldwp'"):
        await ask_place(engine, asked("a"))
    (job,) = asked("p").jobs
    unnamed = PlaceCommand("c", (replace(job, architecture=Architecture.PIPELINE),), is_dry_run=True)
    assert (await ask_place(engine, unnamed)).meta.policy == "consolidate", "the default of pipelines has no net"
    await engine.bundles.activate("net")
    assert (await ask_place(engine, unnamed)).meta.policy == "ldwp"
    nodes = set()
    for i in range(4):
        decision = await ask_place(engine, asked(f"a{i}"))
        assert decision.decisions[0].outcome is Outcome.PLACED
        assert (decision.meta.policy, decision.meta.is_fallback, decision.meta.propensity) == ("ldwp", False, 1.0)
        nodes.add(decision.decisions[0].assignments[0].node)
    assert len(nodes) > 1  # it sees its earlier placements
    await engine.bundles.rollback()
    with pytest.raises(InvalidRequestError, match="no policy 'ldwp'"):
        await ask_place(engine, asked("b"))
    await engine.close()
