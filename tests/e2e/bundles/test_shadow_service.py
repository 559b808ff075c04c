"""A shadow in running services on one Redis: chosen by the command, kept over a restart, and seen in the log."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.bundles import copy_bundle

from placewise.v1.cluster_pb2 import Node, ReportNodesRequest
from placewise.v1.decision_pb2 import PlaceRequest, PlaceResponse
from placewise.v1.job_pb2 import Job, Resources, TaskGroup
from placewise_client.aio import AsyncClient
from placewise_log.record import DecisionRecord, decode_entry
from placewise_models.folder import DEFAULT_BUNDLE
from placewise_service.bench.processes import redis_process, service_process
from placewise_service.cli import invoke
from placewise_service.state.redis.connection import RedisOptions
from placewise_service.state.redis.redis_store import RedisStore

pytestmark = pytest.mark.e2e

CLUSTER = "c"
PATIENCE_S = 60.0


async def place(client: AsyncClient, name: str, policy: str, workers: int = 2) -> PlaceResponse:
    demand = Resources(cpu_cores=1, gpus=1, memory_gib=4)
    group = TaskGroup(role=TaskGroup.WORKER, count=workers, demand=demand)
    job = Job(id=name, model="ResNet-50", groups=[group], single_gpu_seconds=3600, total_epochs=10)
    return await client.place(PlaceRequest(cluster=CLUSTER, jobs=[job], policy=policy))


async def command(capsys: pytest.CaptureFixture[str], *args: object) -> Any:
    assert await asyncio.to_thread(invoke, ["bundle", *(str(arg) for arg in args), "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


async def shadows(store: RedisStore) -> Sequence[DecisionRecord]:
    entries = [decode_entry(data) for _, data in await store.read_decisions(CLUSTER, "0", 1000)]
    return [entry for entry in entries if isinstance(entry, DecisionRecord) and entry.shadow_of]


async def shadow_of(store: RedisStore, client: AsyncClient, policy: str, by: tuple[str, str]) -> DecisionRecord:
    """The first decision of this bundle and policy in the shadow of new ones: a service follows within a second."""
    answered: set[str] = set()
    async with asyncio.timeout(PATIENCE_S):
        while True:
            answer = await place(client, f"j{len(answered)}-{policy}-{by[0]}", policy)
            answered.add(answer.meta.decision_id)
            await asyncio.sleep(0.3)
            for record in await shadows(store):
                if record.shadow_of in answered and (record.meta.bundle, record.meta.policy) == by:
                    return record


async def test_a_shadow_in_every_service_and_after_a_restart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_bundle(tmp_path / DEFAULT_BUNDLE)
    copy_bundle(tmp_path / "next", created="2026-02-02T00:00:00Z")
    with redis_process() as redis:
        environment = {"PLACEWISE_BUNDLE_DIR": str(tmp_path), "PLACEWISE_REDIS_URL": redis.url}
        store = RedisStore(RedisOptions(redis.url, timeout_s=30.0))
        async with service_process(environment) as one, AsyncClient(one.target) as client:
            nodes = [Node(id=f"n{n}", capacity=Resources(cpu_cores=640, gpus=128, memory_gib=9000)) for n in range(4)]
            await client.report_nodes(ReportNodesRequest(cluster=CLUSTER, nodes=nodes))
            answer = await command(capsys, "shadow", "next", "--target", one.target)
            assert answer["bundle"]["state"] == "SHADOW"
            record = await shadow_of(store, client, "consolidate", ("next", "harmony"))
            (compared,) = record.compared
            assert compared.by_active is not None
            assert compared.by_shadow is not None
            assert record.latency_ms > 0
            assert len(compared.shadow_nodes) == 2
            monkeypatch.setenv("PLACEWISE_REDIS_URL", redis.url)
            assert await asyncio.to_thread(invoke, ["log", "export", str(tmp_path / "log")]) == 0
            capsys.readouterr()
            for source in ((), ("--log", tmp_path / "log")):
                figures = await command(capsys, "compare", "consolidate", "next", *source)
                assert figures["jobs"] >= 1
                assert figures["forecasts"]["b"]["all"]["jobs"] == figures["jobs"]
                assert 0 < figures["latency_ms"]["b"]["p50"] < 1000
            await command(capsys, "shadow", "-c", CLUSTER, "--policy", "search", "--target", one.target)
            listed = await command(capsys, "list", "--target", one.target)
            assert listed["shadows"] == [{"bundle": "next"}, {"cluster": CLUSTER, "policy": "search"}]
            async with service_process(environment) as two, AsyncClient(two.target) as other:
                await shadow_of(store, other, "harmony", (DEFAULT_BUNDLE, "search"))
        (tmp_path / "next" / "manifest.json").write_text("{}")
        async with service_process(environment) as again, AsyncClient(again.target) as client:
            await shadow_of(store, client, "tetris", (DEFAULT_BUNDLE, "search"))
            await command(capsys, "shadow", "--off", "-c", CLUSTER, "--target", again.target)
            before = len(await shadows(store))
            assert (await place(client, "after", "consolidate")).decisions[0].assignments
            await asyncio.sleep(0.5)
            assert len(await shadows(store)) == before, "the bundle for all clusters is damaged: nobody decides"
            assert invoke(["bundle", "shadow", "--policy", "nothing", "--target", again.target]) == 4
            assert invoke(["bundle", "shadow", "-c", "none", "--policy", "search", "--target", again.target]) == 4
            assert invoke(["bundle", "shadow", "--target", again.target]) == 2
        await store.close()
