"""Settings reach their parts: the engine that main.py builds from them."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.fakes.cluster import make_job, make_node
from tests.fakes.engine import CLUSTER, ask_place

from placewise_core.basics.clock import ManualClock
from placewise_core.domain.cluster import ClusterSettings
from placewise_core.domain.commands import PlaceCommand
from placewise_core.domain.errors import InvalidRequestError, StateUnavailableError
from placewise_core.domain.job import Architecture, Job, JobId, Subtask
from placewise_log.logs import Log
from placewise_service.engine import EngineOptions
from placewise_service.engine.build import build_engine
from placewise_service.main import _store, make_engine
from placewise_service.settings import load_settings
from placewise_service.state.reference.memory import MemoryStore
from placewise_service.telemetry import Telemetry


class NoLog(MemoryStore):
    """A store whose decision log does not answer."""

    is_cut_off = True

    async def append_decisions(
        self, cluster: str, records: Sequence[bytes], log: Log = Log.DECISIONS, lost: int = 0
    ) -> int:
        if self.is_cut_off:
            raise StateUnavailableError("cut off by the test")
        return await super().append_decisions(cluster, records, log, lost)


async def test_the_log_buffer_is_as_long_as_configured_and_counts_what_it_drops() -> None:
    clock = ManualClock(1_000_000.0)
    telemetry = Telemetry()
    store = NoLog(clock)
    engine = build_engine(store, clock, telemetry, EngineOptions(log_buffer_records=3))
    await engine.start()
    await engine.report_nodes(CLUSTER, [], full=True)
    for i in range(10):
        await ask_place(engine, PlaceCommand(CLUSTER, (make_job(f"j{i}"),)))
    await asyncio.sleep(0)  # records are written after the answers
    text = telemetry.render().decode()
    dropped = next(line for line in text.splitlines() if line.startswith("placewise_decision_log_dropped_total"))
    assert float(dropped.split()[-1]) == 7
    store.is_cut_off = False  # to close would wait five seconds for it
    await engine.drain(0.0)
    await engine.close()


async def test_every_bound_of_the_decision_log_is_a_setting() -> None:
    log = {"ring_records": 11, "ring_bytes": 2 << 20, "buffer_records": 13}
    settings = load_settings(declog=log)
    engine = make_engine(settings, _store(settings, "unix:///nowhere/redis.sock"), ManualClock(), Telemetry())
    parts = engine._parts
    assert parts.options.log_buffer_records == parts.sink._capacity == 13
    assert (parts.store._options.ring_records, parts.store._options.ring_bytes) == (11, 2 << 20)  # type: ignore[attr-defined]
    await engine.close()


async def test_every_bound_of_growth_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = {
        "CLUSTERS": 11,
        "QUEUES_PER_CLUSTER": 12,
        "PROFILES_PER_CLUSTER": 13,
        "QUEUE_IDLE_S": 61.0,
        "PROFILE_IDLE_S": 62.0,
        "QUEUE_SERIES": 14,
    }
    for name, value in bounds.items():
        monkeypatch.setenv(f"PLACEWISE_LIMITS__{name}", str(value))
    clock, telemetry = ManualClock(1_000_000.0), Telemetry()
    engine = make_engine(load_settings(), MemoryStore(clock), clock, telemetry)
    options = engine._parts.options
    assert (options.most_clusters, options.most_queues, options.most_profiles) == (11, 12, 13)
    assert (options.queue_idle_s, options.profile_idle_s, options.queue_series) == (61.0, 62.0, 14)
    assert engine._reporter._most_profiles == 13
    await engine.start()
    assert telemetry._queues.most == 14
    await engine.drain(0.0)
    await engine.close()


@pytest.mark.parametrize(
    ("section", "values", "printed"),
    [
        (
            "place",
            {"policy": "consolidat"},
            "PLACEWISE_PLACE__POLICY: no policy 'consolidat', did you mean 'consolidate'?",
        ),
        ("place", {"policy": ""}, "PLACEWISE_PLACE__POLICY: no policy ''; there are: .*harmony"),
        ("place", {"pipeline_policy": "edt"}, "PLACEWISE_PLACE__PIPELINE_POLICY: no policy 'edt', did you mean 'ect'?"),
        ("place", {"fallback_policy": "harmony"}, "PLACEWISE_PLACE__FALLBACK_POLICY: no policy 'harmony'"),
        ("admit", {"policy": "protheus"}, "PLACEWISE_ADMIT__POLICY: no policy 'protheus', did you mean 'proteus'?"),
    ],
)
def test_a_policy_that_does_not_exist_is_a_reason_not_to_start(
    section: str, values: dict[str, str], printed: str
) -> None:
    clock = ManualClock(1_000_000.0)
    settings = load_settings({}, **{section: values})
    with pytest.raises(InvalidRequestError, match=printed.replace("?", "[?]")):
        make_engine(settings, MemoryStore(clock), clock, Telemetry())


async def test_requests_for_pipelines_alone_have_a_default_policy_of_their_own() -> None:
    clock = ManualClock(1_000_000.0)
    settings = load_settings({}, place={"policy": "load-balance", "pipeline_policy": "ect"})
    engine = make_engine(settings, MemoryStore(clock), clock, Telemetry())
    await engine.start()
    await engine.report_nodes(CLUSTER, [make_node("n0", 1)], full=True)
    pipeline = Job(JobId("p"), architecture=Architecture.PIPELINE, subtasks=(Subtask("s", "k"),))

    async def policy(*jobs: Job, name: str = "") -> str:
        decision = await ask_place(engine, PlaceCommand(CLUSTER, jobs, policy=name, is_dry_run=True))
        return decision.meta.policy

    assert await policy(pipeline, replace(pipeline, id=JobId("q"))) == "ect"
    assert await policy(make_job("j")) == await policy(pipeline, make_job("j")) == "load-balance"
    assert await policy(pipeline, name="pats") == "pats"
    await engine.update_settings(CLUSTER, ClusterSettings(place_policy="tetris"))
    assert await policy(pipeline) == "tetris"
    await engine.drain(0.0)
    await engine.close()


async def test_with_a_bundle_without_its_net_the_fallback_policy_is_the_default() -> None:
    clock = ManualClock(1_000_000.0)
    settings = load_settings({}, place={"fallback_policy": "tetris"})
    engine = make_engine(settings, MemoryStore(clock), clock, Telemetry())
    await engine.start()
    await engine.report_nodes(CLUSTER, [make_node("n0", 1)], full=True)
    policies, used = dict(engine._placing.placer.policies), list[str]()
    for _ in range(2):
        decision = await ask_place(engine, PlaceCommand(CLUSTER, (make_job("j"),), is_dry_run=True))
        used.append(decision.meta.policy)
        policies.pop("adaptive", None)
        engine._placing.placer.policies = policies
    assert used == ["adaptive", "tetris"]
    await engine.drain(0.0)
    await engine.close()


@pytest.mark.parametrize("policy", ["adaptive", "harmony", "ldwp", "search", "tetris"])
def test_every_policy_may_be_the_default(policy: str) -> None:
    clock = ManualClock(1_000_000.0)
    settings = load_settings({}, place={"policy": policy})
    assert policy in make_engine(settings, MemoryStore(clock), clock, Telemetry()).place_policies
