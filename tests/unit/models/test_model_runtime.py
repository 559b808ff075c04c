"""Bundles with a net: refused and serving ones, and a swap under load that drops no call."""

import asyncio
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from tests.fakes.bundles import no_shadows
from tests.fakes.cluster import make_job, make_node
from tests.fakes.engine import ask_place

from placewise_core.basics.clock import ManualClock
from placewise_core.domain.commands import JobEvent, JobEventKind, PlaceCommand
from placewise_core.domain.decision import Outcome
from placewise_core.domain.errors import InvalidRequestError
from placewise_core.domain.job import JobId
from placewise_core.inputs.cluster import PART_FEATURES
from placewise_core.inputs.reward import PartTokens
from placewise_models.bundle import BundleError, Manifest, load, schema_of, write_manifest
from placewise_models.folder import shipped_bundle
from placewise_models.reward import RewardRuntime
from placewise_models.session import open_session, run
from placewise_service.cli import invoke
from placewise_service.engine import Engine, EngineOptions
from placewise_service.engine.build import build_engine
from placewise_service.engine.registry import BundleRegistry, BundleState
from placewise_service.state.reference.memory import MemoryStore
from placewise_service.telemetry import Telemetry
from placewise_training.reward.export import GRAPH, random_inputs, write_onnx
from placewise_training.reward.net import RewardNet

COEFFICIENTS = ("throughput.json", "capability.json")


def make_bundle(root: Path, name: str, seed: int = 0, *, has_net: bool = True) -> Path:
    """A whole bundle; its net is a small one that was never trained."""
    directory = root / name
    directory.mkdir(parents=True)
    for file in COEFFICIENTS:
        shutil.copyfile(shipped_bundle() / file, directory / file)
    files = list(COEFFICIENTS)
    if has_net:
        torch.manual_seed(seed)
        write_onnx(RewardNet(PART_FEATURES, width=16, heads=4), directory / "reward.onnx")
        sample = GRAPH.sample(directory / "reward.onnx")
        report = {"schema": "placewise.reward/1", "spread_limit": 1e3, "sample": sample}
        (directory / "reward.json").write_bytes(msgspec.json.encode(report))
        files += ["reward.onnx", "reward.json"]
    describe(directory, files)
    return directory


def describe(directory: Path, files: list[str], schema: str = "") -> None:
    schema = schema or schema_of(files)
    write_manifest(directory, Manifest(directory.name, "2026-01-01T00:00:00Z", dict.fromkeys(files, ""), schema))


ALL = [*COEFFICIENTS, "reward.onnx", "reward.json"]


def test_a_whole_bundle_loads_and_runs(tmp_path: Path) -> None:
    bundle = load(make_bundle(tmp_path, "good"))
    assert bundle.reward is not None
    inputs = random_inputs((8, 24), 1)
    speeds = bundle.reward.speeds(PartTokens(inputs["tokens"], inputs["job"], inputs["node"], ()))
    assert speeds.shape == (8, 24)
    assert np.isfinite(speeds).all()
    options = bundle.reward.session.get_session_options()
    assert options.intra_op_num_threads == 1


def test_a_bundle_without_a_net_is_fine(tmp_path: Path) -> None:
    assert load(make_bundle(tmp_path, "bare", has_net=False)).reward is None


def set_limit(directory: Path, limit: object) -> None:
    report = msgspec.json.decode((directory / "reward.json").read_bytes())
    (directory / "reward.json").write_bytes(msgspec.json.encode(report | {"spread_limit": limit}))
    describe(directory, ALL)


def drop_spread(directory: Path) -> None:
    """As nets were exported that knew nothing of their spread."""
    import onnx

    model = onnx.load(str(directory / "reward.onnx"))
    model.graph.output.pop()
    onnx.save(model, str(directory / "reward.onnx"))
    report = msgspec.json.decode((directory / "reward.json").read_bytes())
    del report["spread_limit"], report["sample"]["spread"]
    (directory / "reward.json").write_bytes(msgspec.json.encode(report))
    describe(directory, ALL)


def test_a_net_without_a_spread_is_trusted(tmp_path: Path) -> None:
    directory = make_bundle(tmp_path, "old")
    drop_spread(directory)
    reward = load(directory).reward
    assert reward is not None
    assert reward.spread_limit == float("inf")


async def test_a_model_that_is_unsure_of_the_new_job_leaves_the_heuristic(tmp_path: Path) -> None:
    for name, limit in (("sure", 1e3), ("unsure", 1e-6)):
        set_limit(make_bundle(tmp_path, name), limit)
        engine = engine_on(tmp_path, name)
        await engine.start()
        await engine.report_nodes("c", [make_node(f"n{i}") for i in range(4)], full=True)
        decision = await ask_place(engine, command(name))
        assert decision.decisions[0].outcome is Outcome.PLACED
        assert decision.meta.fallback_reason == ("" if name == "sure" else "search: uncertain")
        await engine.close()


@pytest.mark.parametrize("limit", [None, 0.0, "much", float("inf")])
def test_a_spread_without_a_limit_is_refused(tmp_path: Path, limit: object) -> None:
    directory = make_bundle(tmp_path, "net")
    set_limit(directory, limit)
    with pytest.raises(BundleError, match="no spread_limit"):
        load(directory)


def truncate(directory: Path) -> None:
    content = (directory / "reward.onnx").read_bytes()
    (directory / "reward.onnx").write_bytes(content[: len(content) // 2])


def spoil(directory: Path) -> None:
    """Another net under the old report: loads well, answers wrong."""
    torch.manual_seed(77)
    write_onnx(RewardNet(PART_FEATURES, width=16, heads=4), directory / "reward.onnx")


def forget_report(directory: Path) -> None:
    (directory / "reward.json").write_text("{}", "utf-8")


def other_features(directory: Path) -> None:
    import onnx

    model = onnx.load(str(directory / "reward.onnx"))
    onnx.helper.set_model_props(model, {"feature_schema": "0" * 64})
    onnx.save(model, str(directory / "reward.onnx"))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (truncate, "not a model"),
        (spoil, "does not answer its sample"),
        (forget_report, "not a placewise.reward/1"),
        (other_features, "other features"),
    ],
)
def test_a_damaged_net_is_refused_even_with_right_checksums(tmp_path: Path, damage, words: str) -> None:  # type: ignore[no-untyped-def]
    directory = make_bundle(tmp_path, "bad")
    damage(directory)
    with pytest.raises(BundleError, match="checksum"):
        load(directory)
    describe(directory, ALL)
    with pytest.raises(BundleError, match=words):
        load(directory)


def test_a_manifest_of_other_features_is_refused(tmp_path: Path) -> None:
    directory = make_bundle(tmp_path, "old")
    describe(directory, ALL, schema="1" * 64)
    with pytest.raises(BundleError, match="other features"):
        load(directory)


def test_the_last_good_bundle_keeps_serving(tmp_path: Path) -> None:
    make_bundle(tmp_path, "good")
    truncate(make_bundle(tmp_path, "torn"))
    registry = BundleRegistry(tmp_path, "good", no_shadows())
    with pytest.raises(InvalidRequestError, match="checksum"):
        registry.verified("torn")
    assert registry.active == "good"
    states = {status.name: status.state for status in registry.list()}
    assert states == {"good": BundleState.ACTIVE, "torn": BundleState.REFUSED}


def engine_on(root: Path, bundle: str) -> Engine:
    clock = ManualClock(1_000_000.0)
    return build_engine(MemoryStore(clock), clock, Telemetry(), EngineOptions(), root, bundle)


def command(name: str, policy: str = "search") -> PlaceCommand:
    job = replace(make_job(name, workers=2), single_gpu_s=600.0, total_epochs=10.0, batch_size=64, dataset_size=6400)
    return PlaceCommand("c", (job,), policy=policy)


async def test_search_is_there_when_the_bundle_has_a_net(tmp_path: Path) -> None:
    make_bundle(tmp_path, "bare", has_net=False)
    make_bundle(tmp_path, "net")
    engine = engine_on(tmp_path, "bare")
    await engine.start()
    await engine.report_nodes("c", [make_node(f"n{i}") for i in range(4)], full=True)
    with pytest.raises(InvalidRequestError, match="no policy 'search'"):
        await ask_place(engine, command("a"))
    await engine.bundles.activate("net")
    decision = await ask_place(engine, command("a"))
    assert decision.decisions[0].outcome is Outcome.PLACED
    assert (decision.meta.policy, decision.meta.bundle) == ("search", "net")
    assert not decision.meta.is_fallback
    await engine.bundles.rollback()
    with pytest.raises(InvalidRequestError, match="no policy 'search'"):
        await ask_place(engine, command("b"))
    await engine.close()


async def test_a_swap_under_load_drops_nothing(tmp_path: Path) -> None:
    for seed, name in enumerate(("one", "two")):
        make_bundle(tmp_path, name, seed)
    truncate(make_bundle(tmp_path, "torn"))
    engine = engine_on(tmp_path, "one")
    await engine.start()
    await engine.report_nodes("c", [make_node(f"n{i}") for i in range(4)], full=True)
    bundles: set[str] = set()

    async def ask(worker: int) -> None:
        for i in range(25):
            name = f"{worker}-{i}"
            decision = await ask_place(engine, command(name))
            assert decision.decisions[0].outcome is Outcome.PLACED
            assert not decision.meta.is_fallback, decision.meta.fallback_reason
            bundles.add(decision.meta.bundle)
            await engine.report_job_events("c", [JobEvent(JobId(name), JobEventKind.FINISHED)])
            await asyncio.sleep(0)

    async def swap() -> None:
        for i in range(6):
            await engine.bundles.activate(("two", "one")[i % 2])
            with pytest.raises(InvalidRequestError):
                await engine.bundles.activate("torn")

    await asyncio.gather(*(ask(worker) for worker in range(3)), swap())
    assert bundles == {"one", "two"}
    await engine.close()


def test_a_net_is_run_as_by_the_runtimes_own_call() -> None:
    session = open_session((shipped_bundle() / "reward.onnx").read_bytes(), "reward.onnx")
    feeds = random_inputs((3, 9), 1)
    feeds["tokens"] = feeds["tokens"][..., : session.get_inputs()[0].shape[-1]].copy()
    for ours, theirs in zip(
        run(session, ("speed", "spread"), feeds), session.run(("speed", "spread"), feeds), strict=True
    ):
        assert np.array_equal(ours, theirs)
    with pytest.raises(Exception, match="node"):
        run(session, ("speed",), {name: values for name, values in feeds.items() if name != "node"})


async def test_a_net_that_breaks_while_serving_leaves_the_heuristic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_bundle(tmp_path, "net")
    engine = engine_on(tmp_path, "net")
    await engine.start()
    await engine.report_nodes("c", [make_node(f"n{i}") for i in range(4)], full=True)

    def break_(self: object, outputs: object, feeds: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(RewardRuntime, "_run", break_)
    decision = await ask_place(engine, command("a"))
    assert decision.decisions[0].outcome is Outcome.PLACED
    assert decision.meta.is_fallback
    assert decision.meta.fallback_reason == "search: RuntimeError"
    await engine.close()


@pytest.mark.process
def test_bundle_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = make_bundle(tmp_path / "source", "net")
    target = tmp_path / "built"
    assert invoke(["bundle", "build", str(target), "--from", str(source), "--json"]) == 0
    built = msgspec.json.decode(capsys.readouterr().out)
    assert built["is_valid"]
    assert set(built["files"]) == set(ALL)
    assert invoke(["bundle", "verify", str(target)]) == 0
    truncate(target)
    assert invoke(["bundle", "verify", str(target)]) == 5
    assert "checksum" in capsys.readouterr().err


@pytest.mark.process
def test_a_manifest_names_the_commit_and_the_command_of_each_training(tmp_path: Path) -> None:
    source = make_bundle(tmp_path / "source", "net")
    report = msgspec.json.decode((source / "reward.json").read_bytes())
    made_by = {"commit": "0123456789ab", "command": "placewise train reward --seed 3"}
    (source / "reward.json").write_bytes(msgspec.json.encode({**report, "seed": 3, "origin": made_by}))
    target = tmp_path / "built"
    assert invoke(["bundle", "build", str(target), "--from", str(source)]) == 0
    manifest = load(target).manifest
    assert manifest.seeds["reward"] == 3
    assert {name: manifest.data_sha256[f"reward/{name}"] for name in made_by} == made_by


def git(*words: str) -> str:
    reported = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", *reported, *words], check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.process
@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_manifest_names_the_commit_it_was_built_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_bundle(tmp_path / "source", "net")
    repository = tmp_path / "repository"
    repository.mkdir()
    monkeypatch.chdir(repository)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))

    def built(*options: str) -> str:
        target = repository / f"built-{len(list(repository.glob('built-*')))}"
        assert invoke(["bundle", "build", str(target), "--from", str(source), *options]) == 0
        return load(target).manifest.git_commit

    assert not built()  # there is no repository
    git("init", "--quiet")
    assert not built()  # there is no commit
    (repository / "trainer.py").write_text("one")
    git("add", "trainer.py")
    git("commit", "--quiet", "--message", "a trainer")
    git("tag", "-a", "v1", "-m", "a tag is no commit")
    assert built() == git("rev-parse", "HEAD")
    (repository / "trainer.py").write_text("two")
    assert built() == git("rev-parse", "HEAD") + "-dirty"
    assert built("--commit", "abc") == "abc"
    (repository / "trainer.py").write_text("one")
    git("add", ".")
    git("commit", "--quiet", "--message", "a bundle in the repository")
    other = make_bundle(tmp_path / "other", "net")
    (other / "throughput.json").write_text((other / "throughput.json").read_text() + "\n")
    assert built("--from", str(other)) == git("rev-parse", "HEAD")
    monkeypatch.setenv("PATH", "")
    assert not built()  # there is no git


def test_the_shipped_manifest_says_of_every_model_what_it_was_made_of() -> None:
    bundle = load(shipped_bundle())
    nets = {file.partition(".")[0].partition("_")[0] for file in bundle.manifest.files if file.endswith(".onnx")}
    assert set(bundle.manifest.seeds) == set(bundle.manifest.opsets) == nets
    made_of = {name.partition("/")[0] for name, sha256 in bundle.manifest.data_sha256.items() if len(sha256) == 64}
    assert made_of == {file.removesuffix(".json") for file in bundle.documents}
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?", bundle.manifest.git_commit)


def test_the_shipped_reward_model_was_made_from_random_weights_by_a_command_that_the_documents_show() -> None:
    data = load(shipped_bundle()).manifest.data_sha256
    assert "reward/start" not in data
    assert re.fullmatch(r"[0-9a-f]{12}", data["reward/commit"])  # no "+": no code was changed
    command = data["reward/command"].partition(" --out ")[0]
    shown = (Path(__file__).parents[3] / "docs" / "models" / "bundle.md").read_text("utf-8")
    assert f"`{command}`, at commit {data['reward/commit']}" in shown
    report = msgspec.json.decode((shipped_bundle() / "reward.json").read_bytes())
    assert report["origin"] == {"commit": data["reward/commit"], "command": data["reward/command"]}
    assert not report["args"]["log"]


def test_the_shipped_bundle_is_whole_and_knows_todays_features() -> None:
    """A change of the feature table needs new training of the shipped net: otherwise the service would not start."""
    directory = shipped_bundle()
    bundle = load(directory)
    assert bundle.reward is not None
    assert (directory / "reward.onnx").stat().st_size < 2**20
    judged = bundle.document("reward.json")["metrics"]["unseen_judge"]
    assert judged["mean_relative_error"] < judged["mean_relative_error_constant"]
