"""The profiler: really runs loops side by side, and writes rows in the schema of the measured data."""

import csv
import json
import os
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from placewise_training.cli import UsageError
from placewise_training.data.site_rows import read_site_rows
from placewise_training.profiling import networks, profiler, short_profile
from placewise_training.profiling.command import profile_app
from placewise_training.profiling.profiler import (
    PAIR_COLUMNS,
    Profile,
    ProfileSettings,
    Set,
    groups,
    profile,
    short_profiles,
    write,
)
from placewise_training.profiling.workers import Reading, Workers
from placewise_training.profiling.workloads import trainer, workload


def test_groups_are_all_pairs_and_all_triples() -> None:
    names = ("a", "b", "c", "d")
    made = groups(names, has_triples=True)
    assert len([g for g in made if len(g) == 2]) == 10
    assert len([g for g in made if len(g) == 3]) == 4
    assert all(len(g) == 2 for g in groups(names, has_triples=False))


def test_two_metrics_of_every_loop_are_drawn_by_seed() -> None:
    alone = {name: Reading(name, 10.0, 0.9, 1.0) for name in "abc"}
    first = short_profiles(alone, 0, {})
    assert first == short_profiles(alone, 0, {})
    assert all(row.keys() == {"cpu", "host_memory"} for row in first.values())
    assert all(0 < row["host_memory"] < 1 for row in first.values())
    on_gpu = [short_profiles(alone, seed, dict.fromkeys("abc", 9.0)) for seed in range(20)]
    assert {metric for rows in on_gpu for row in rows.values() for metric in row} == {
        "cpu",
        "host_memory",
        "dram",
        "speedup",
    }
    assert all(len(row) == 2 for rows in on_gpu for row in rows.values())


@pytest.mark.parametrize(
    ("model", "millions"), [(networks.resnet18, 11.69), (networks.resnet50, 25.557032), (networks.vgg16, 138.357544)]
)
def test_networks_have_the_parameters_of_their_papers(model: networks.Model, millions: float) -> None:
    net, _ = model(torch.device("meta"), 1)
    assert sum(p.numel() for p in net.parameters()) / 1e6 == pytest.approx(millions, rel=1e-3)


@pytest.mark.parametrize("name", ["resnet18@2", "lm@2", "recommendation@4"])
def test_networks_learn_at_the_batch_asked_for(name: str) -> None:
    chosen = workload(name)
    assert f"{chosen.name}@{chosen.batch}" == name
    torch.manual_seed(0)
    net, loss = getattr(networks, chosen.name)(torch.device("cpu"), chosen.batch)
    before = loss().item()
    step = trainer(net, loss)
    for _ in range(2):
        step()
    assert loss().item() < before


@pytest.mark.parametrize("name", ["resnet99", "lm@0", "lm@two"])
def test_an_unknown_network_or_batch_is_refused(name: str) -> None:
    result = CliRunner().invoke(profile_app, ["--device", "cpu", "--workload", name])
    assert isinstance(result.exception, UsageError)
    assert repr(name) in str(result.exception)


def test_a_gpu_has_its_steps_written_as_a_training_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiler, "hardware_name", lambda device: "NVIDIA H200")
    alone = {name: Reading(name, 4.0, 0.9, 1.0) for name in ("lm@16", "lm@64")}
    short = {name: {"cpu": 0.9, "host_memory": 0.1} for name in alone}
    pair = Set(("lm@16", "lm@64"), (4.0, 4.0), (2.0, 3.0), (0.5, 0.75), (0.0, 0.0), (1.0, 1.0), (0.0, 0.0))
    made = Profile(alone, short, (pair,), {"lm@16": 16, "lm@64": 64}, is_partial=False)
    settings = ProfileSettings(tuple(alone), device="cuda")
    assert [file.name for file in write(made, settings, tmp_path)][-1] == "steps.csv"
    rows = read_site_rows(tmp_path)
    assert [(s.gpu_type, s.model, s.local_batch, s.step_s) for s in rows.steps] == [
        ("NVIDIA H200", "lm", 16.0, 0.25),
        ("NVIDIA H200", "lm", 64.0, 0.25),
    ]
    assert [(p.model_a, p.batch_a, p.model_b, p.batch_b, p.norm_a, p.norm_b) for p in rows.pairs] == [
        ("lm", 16.0, "lm", 64.0, 0.5, 0.75)
    ]


@pytest.mark.slow
def test_real_loops_share_one_core_and_are_written(tmp_path: Path) -> None:
    """Two loops on one core: together they can do no more than one core's work, on a busy machine, too."""
    core = (min(os.sched_getaffinity(0)),)
    names = ("convolutional", "input_bound")
    settings = ProfileSettings(names, cores=core, seconds=0.4, repeats=2, has_triples=False)
    measured = profile(settings)
    assert [s.models for s in measured.sets] == groups(names, has_triples=False)
    assert all(rate > 0 for s in measured.sets for rate in (*s.alone, *s.shared, *s.norms))
    files = write(measured, settings, tmp_path)
    assert [f.name for f in files] == ["pairs.csv", "sets.csv", "single.csv", "provenance.json"]
    with files[0].open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == PAIR_COLUMNS
    assert len(rows) == 3
    for row in rows:
        for side in "ab":
            assert float(row[f"norm_{side}"]) > 0
    found = json.loads(files[3].read_text())
    assert found["hardware"]
    assert found["settings"]["workloads"] == list(names)
    assert found["partial"] is False


@pytest.mark.slow
def test_loops_on_one_core_take_turns() -> None:
    core = (min(os.sched_getaffinity(0)),)
    with Workers(2, "cpu", core) as workers:
        readings = workers.measure(["recurrent", "transformer"], 0.8)
    assert {r.workload for r in readings} == {"recurrent", "transformer"}
    assert sum(r.cpu_share for r in readings) < 1.15


def test_a_stopped_profile_keeps_what_it_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Interrupted:
        def __init__(self, *args: object) -> None:
            self.asked = 0

        def __enter__(self) -> "Interrupted":
            return self

        def __exit__(self, *args: object) -> None: ...

        def measure(self, names: list[str], seconds: float) -> list[Reading]:
            self.asked += 1
            if self.asked > 6:
                raise KeyboardInterrupt
            return [Reading(name, 5.0, 1.0, 0.5) for name in names]

    monkeypatch.setattr(profiler, "Workers", Interrupted)
    settings = ProfileSettings(("convolutional", "recurrent"), seconds=0.1, repeats=1, has_triples=False)
    measured = profile(settings)
    assert measured.is_partial
    assert 0 < len(measured.sets) < 3
    assert json.loads(write(measured, settings, tmp_path)[3].read_text())["partial"] is True


def test_short_profiles_stand_beside_long_ones_metric_by_metric(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The short run sees 10 % fewer steps and a quarter less memory than the long one."""

    class Loops:
        def __init__(self, *args: object) -> None: ...

        def __enter__(self) -> "Loops":
            return self

        def __exit__(self, *args: object) -> None: ...

        def measure(self, names: list[str], seconds: float) -> list[Reading]:
            return [Reading(names[0], 9.0 if seconds < 5 else 10.0, 0.5, 0.75 if seconds < 5 else 1.0)]

    monkeypatch.setattr(short_profile, "Workers", Loops)
    args = ["--device", "cpu", "--workload", "recurrent", "--short-seconds", "4", "--seconds", "12", "--repeats", "2"]
    result = CliRunner().invoke(profile_app, [*args, "--out", str(tmp_path), "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["rows"] == 6  # without a GPU there is no GPU memory to compare
    assert found["accuracy"] == pytest.approx(1.0 - (0.0 + 0.25 + 0.1) / 3)
    with (tmp_path / "short.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(r["metric"], r["repeat"]) for r in rows[:3]] == [(m, "0") for m in short_profile.METRICS[:3]]
    assert (float(rows[2]["short"]), float(rows[2]["long"])) == (18.0, 20.0)


@pytest.mark.parametrize("args", [["--workload", "quantum"], ["--device", "tpu"], ["--cores", "a,b"]])
def test_options_that_make_no_sense(args: list[str]) -> None:
    result = CliRunner().invoke(profile_app, args)
    assert isinstance(result.exception, UsageError)
