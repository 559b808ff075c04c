"""Explorers through a running service, asked over REST: draws from Harmony's net, and a bundle by its name."""

from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.fakes.bundles import copy_bundle

from placewise_log.record import DecisionRecord, decode_entry
from placewise_models.folder import DEFAULT_BUNDLE
from placewise_service.bench.processes import free_port, service_process
from placewise_service.state.redis.connection import RedisOptions
from placewise_service.state.redis.embedded import embedded_url
from placewise_service.state.redis.redis_store import RedisStore

pytestmark = pytest.mark.e2e

PATH = "/v1/clusters/lab"
RATE, JOBS = 0.9, 40
EXPLORERS = ("harmony-sample", "site-1", "load-balance")
SHARE = RATE / len(EXPLORERS)


def node(name: str, gpus: int) -> dict[str, Any]:
    capacity = {"cpuCores": 64, "gpus": gpus, "memoryGib": 512}
    return {"id": name, "capacity": capacity, "gpus": [{"index": i, "model": "V100"} for i in range(gpus)]}


def job(name: str) -> dict[str, Any]:
    return {
        "id": name,
        "model": "ResNet-50",
        "groups": [{"count": 2, "demand": {"cpuCores": 1, "gpus": 1, "memoryGib": 4}}],
    }


async def answered(http: httpx.AsyncClient, method: str, path: str, body: dict[str, Any], status: int = 200) -> Any:
    answer = await http.request(method, PATH + path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


async def records(state: Path, count: int) -> list[DecisionRecord]:
    """The decisions in the log, once there are so many."""
    store = RedisStore(RedisOptions(embedded_url(state), timeout_s=30.0))
    found: list[DecisionRecord] = []
    while len(found) < count:
        entries = [decode_entry(data) for _, data in await store.read_decisions("lab", "0", 1000)]
        found = [entry for entry in entries if isinstance(entry, DecisionRecord)]
    await store.close()
    return found


async def test_draws_from_the_net_and_a_bundle_by_name_explore(tmp_path: Path) -> None:
    copy_bundle(tmp_path / "bundles" / DEFAULT_BUNDLE)
    copy_bundle(tmp_path / "bundles" / "site-1", created="2026-02-02T00:00:00Z")
    environment = {
        "PLACEWISE_BUNDLE_DIR": str(tmp_path / "bundles"),
        "PLACEWISE_STATE_DIR": str(tmp_path / "state"),
        "PLACEWISE_SERVER__REST_PORT": str(port := free_port()),
    }
    settings = {"explorationRate": RATE, "explorers": [{"policy": name} for name in EXPLORERS]}
    async with (
        service_process(environment),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60.0) as http,
    ):
        await answered(http, "PUT", "/nodes", {"nodes": [node(f"n{i}", 40) for i in range(4)], "full": True})
        refusal = await answered(http, "PATCH", "/settings", {"explorers": [{"policy": "site-2"}]}, 400)
        assert "no policy 'site-2'" in refusal["detail"]
        await answered(http, "PATCH", "/settings", settings)
        answers = [await answered(http, "POST", "/jobs:place", {"jobs": [job(f"j{i}")]}) for i in range(JOBS)]
        logged = await records(tmp_path / "state", JOBS)
    draws = {record.draws[0].job_id: record.draws[0] for record in logged}
    assert {draw.explorer for draw in draws.values()} >= set(EXPLORERS)
    assert Counter(draw.rate for draw in draws.values()) == {RATE: JOBS}
    of_sample = []
    for answer in answers:
        (decided,) = answer["decisions"]
        draw, p = draws[decided["jobId"]], answer["meta"]["propensity"]
        least = 0.0 if draw.explorer in ("", "harmony-sample") else SHARE
        assert max(least, (1.0 - RATE) * draw.own_propensity) - 1e-9 <= p <= 1.0
        of_sample.append((p - (1.0 - RATE) * draw.own_propensity) % SHARE)
    assert any(0.001 < rest < SHARE - 0.001 for rest in of_sample), "the others give each placement with 0 or 1"
