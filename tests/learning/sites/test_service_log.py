"""A log that the service itself wrote and exported: the explorer has the gain that its host gave it."""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.fakes.cluster import make_job
from tests.fakes.engine import CLUSTER, ask_place, logged, place, running_engine
from typer.testing import CliRunner

from placewise_core.basics.clock import ManualClock
from placewise_core.domain.cluster import ClusterSettings, ExplorerSettings
from placewise_core.domain.commands import JobEvent, JobEventKind
from placewise_core.domain.job import JobId
from placewise_models.folder import shipped_bundle
from placewise_service.declog.export import export
from placewise_training.drift.command import drift_app
from placewise_training.evaluate.command import evaluate_app

JOBS, EPOCHS = 600, 100.0
# Seconds that a gang of two takes by the number of its nodes: 300 s of it are 0.6 or 0.75 of the job.
TAKES_S = {1: 500.0, 2: 400.0}


async def written(folder: Path) -> None:
    """One job after another on an empty cluster. `consolidate` is in force, `load-balance` explores."""
    clock, noise = ManualClock(1_763_726_400.0), np.random.default_rng(3)
    async with running_engine(nodes=3, gpus=4, clock=clock, alternatives_share=1.0) as engine:
        settings = ClusterSettings(
            place_policy="consolidate", exploration_rate=0.6, explorers=(ExplorerSettings("load-balance", 1),)
        )
        await engine.update_settings(CLUSTER, settings)
        for i in range(JOBS):
            answer = await ask_place(engine, place(make_job(f"j{i}", workers=2, total_epochs=EPOCHS), seed=i))
            tasks = answer.decisions[0].assignments
            took_s = TAKES_S[len({task.node for task in tasks})] * float(noise.uniform(0.9, 1.1))
            job, decided = JobId(f"j{i}"), answer.meta.decision_id
            started = JobEvent(job, JobEventKind.STARTED, clock.now_s(), placement=tasks, decision_id=decided)
            await engine.report_job_events(CLUSTER, [started])
            clock.advance(took_s)
            ended = JobEvent(job, JobEventKind.FINISHED, clock.now_s(), epochs_done=EPOCHS, decision_id=decided)
            await engine.report_job_events(CLUSTER, [ended])
            await logged(engine)
        await engine.drain(5.0)
        clock.advance(4000.0)
        await export(engine._parts.store, folder)


@pytest.mark.slow
async def test_the_gain_of_an_explorer_is_found_in_the_services_log(tmp_path: Path) -> None:
    await written(tmp_path)
    arguments = [
        "--log",
        str(tmp_path),
        "--policy",
        "load-balance",
        "--reward",
        "reward_5min",
        "--block-min",
        "60",
    ]
    done = CliRunner().invoke(evaluate_app, [*arguments, "--json"], catch_exceptions=False)
    found = json.loads(done.stdout)
    (one,) = found["candidates"]
    assert one["refusals"] == []
    rows = {row["estimator"]: row for row in one["estimates"]}
    for name in ("ips", "snips", "doubly_robust"):
        low, high = rows[name]["gain_interval"]
        assert low < 0.15 < high, name
    assert rows["doubly_robust"]["least_gain"] > 0.1
    again = [*arguments, "--bundle", str(shipped_bundle()), "--json"]
    done = CliRunner().invoke(evaluate_app, again, catch_exceptions=False)
    report = json.loads(done.stdout)
    assert report["log"]["not_asked_reasons"] == {}
    assert report["candidates"][0]["support"] == one["support"]
    assert report["candidates"][0]["estimates"] == one["estimates"]
    done = CliRunner().invoke(drift_app, ["--log", str(tmp_path), "--json"], catch_exceptions=False)
    assert json.loads(done.stdout)["models"] == {}
