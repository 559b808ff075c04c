"""The service's drift metrics: of what its log holds, per cluster, with a bounded number of series."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.fakes.cluster import make_job, make_node
from tests.fakes.engine import CLUSTER, ask_place, logged, place, running_engine

from placewise_core.domain.commands import JobEvent, JobEventKind
from placewise_core.domain.job import Job
from placewise_core.inputs.tables import TOKEN_COLUMNS
from placewise_service.engine import Engine
from placewise_service.engine.reporting.drift import RECENT, REFERENCE, Columns

RNG = np.random.default_rng(5)


def shown(engine: Engine, name: str) -> dict[tuple[str, ...], float]:
    """Samples of a metric by the values of their labels, in the order of the labels' names."""
    text = engine._parts.telemetry.render().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {tuple(each.labels.values()): each.value for each in samples if each.name == name}


def known(name: str, **changes: object) -> Job:
    return replace(make_job(name), model="BERT", dataset_size=1000, **changes)  # type: ignore[arg-type]


async def report(engine: Engine, job: str, speed: float) -> None:
    await engine.report_job_events(CLUSTER, [JobEvent(job, JobEventKind.PROGRESS, speed=speed)])
    assert await logged(engine)


def test_a_column_that_moved_is_seen_when_its_turn_comes_and_others_are_not() -> None:
    columns = Columns(("still", "moved"))
    for _ in range(REFERENCE):
        assert columns.add(RNG.normal(size=2)) is None
    found = [columns.add(RNG.normal([0.0, 1.0])) for _ in range(RECENT + 1)]
    assert found[: RECENT - 1] == [None] * (RECENT - 1)
    latest = dict(each for each in found if each is not None)
    assert latest["still"] < 0.12
    assert latest["moved"] > 0.25


def test_what_moved_and_came_back_is_stable_again() -> None:
    columns = Columns(("one",))
    for _ in range(REFERENCE):
        columns.add(RNG.normal(size=1))
    psi = [found[1] for mean in (1.0, 0.0) for _ in range(RECENT) if (found := columns.add(RNG.normal(mean, size=1)))]
    assert max(psi) > 0.25
    assert psi[-1] < 0.12


async def test_the_first_report_of_progress_is_compared_with_the_forecast() -> None:
    async with running_engine() as engine:
        answer = await ask_place(engine, place(known("a")))
        assert await logged(engine)
        predicted = answer.decisions[0].predicted_speed
        assert predicted > 0.0
        for speed in (0.7 * predicted, 5.0 * predicted):  # the second report counts for nothing
            await report(engine, "a", speed)
        bundle = engine._parts.registry.bundle.name
        assert shown(engine, "placewise_forecast_ratio_count") == {(bundle, CLUSTER): 1.0}
        assert shown(engine, "placewise_forecast_ratio_sum")[bundle, CLUSTER] == pytest.approx(0.7)


async def test_the_watch_reads_logged_entries_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("placewise_service.engine.reporting.drift._READ_INTERVAL_S", 0.001)
    async with running_engine() as engine:
        await ask_place(engine, place(replace(known("a"), model="Llama-3")))
        engine._parts.telemetry.afterwards.run()
        assert await engine._parts.sink.flush()
        async with asyncio.timeout(10):
            while not shown(engine, "placewise_unseen_jobs_total"):  # noqa: ASYNC110 - nothing tells of a metric
                await asyncio.sleep(0.001)
        assert not engine._parts.sink.logged


async def test_dry_runs_jobs_of_others_and_speeds_in_samples_are_no_forecasts() -> None:
    async with running_engine() as engine:
        await ask_place(engine, place(known("dry"), is_dry_run=True))
        await ask_place(engine, place(make_job("in-samples")))
        assert await logged(engine)
        for job in ("dry", "in-samples", "never-asked"):
            await report(engine, job, 1.0)
        assert shown(engine, "placewise_forecast_ratio_count") == {}


async def test_models_and_gpu_types_that_the_bundle_has_no_profile_of_are_counted_once_per_job() -> None:
    async with running_engine(nodes=0) as engine:
        nodes = [make_node(f"n{i}", 4) for i in range(12)]
        nodes = [replace(n, gpus=tuple(replace(g, model="B200") for g in n.gpus)) for n in nodes]
        await engine.report_nodes(CLUSTER, nodes, full=True)
        for name in ("a", "a", "b"):  # asked about twice
            await ask_place(engine, place(replace(known(name), model="Llama-3")))
        await ask_place(engine, place(known("c")))
        assert await logged(engine)
        assert shown(engine, "placewise_unseen_jobs_total") == {
            (CLUSTER, "model", "llama3"): 2.0,
            (CLUSTER, "gpu_type", "b200"): 3.0,
        }


async def test_callers_names_make_a_bounded_number_of_series() -> None:
    async with running_engine(nodes=8) as engine:
        for i in range(25):
            await ask_place(engine, place(replace(known(f"j{i}"), model=f"net-{i:02}")))
        assert await logged(engine)
        found = shown(engine, "placewise_unseen_jobs_total")
        of_models = {key[2]: count for key, count in found.items() if key[1] == "model"}
        assert len(of_models) == 21
        assert of_models["(others)"] == 5.0


async def test_inputs_come_from_decisions_that_the_log_has_with_their_alternatives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("placewise_service.engine.reporting.drift.REFERENCE", 3)
    monkeypatch.setattr("placewise_service.engine.reporting.drift.RECENT", 1)
    async with running_engine(nodes=8, alternatives_share=1.0) as engine:
        for i in range(6):
            await ask_place(engine, place(known(f"j{i}")))
            assert await logged(engine)
            engine._studying._rests_until_s = 0.0
        assert shown(engine, "placewise_input_psi").keys() <= {(CLUSTER, name) for name in TOKEN_COLUMNS}
        assert len(shown(engine, "placewise_input_psi")) == 3
        await engine.delete_cluster(CLUSTER)
        engine._parts.telemetry.forget_all_but(())
        assert shown(engine, "placewise_input_psi") == {}


async def test_a_fault_of_the_watch_costs_no_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("placewise_service.engine.reporting.drift.DriftWatch._note_placed", lambda *_: 1 / 0)
    async with running_engine() as engine:
        await ask_place(engine, place(known("a")))
        assert await asyncio.wait_for(logged(engine), 10)
        assert len(await engine._parts.store.read_decisions(CLUSTER, "0", 10)) == 1
