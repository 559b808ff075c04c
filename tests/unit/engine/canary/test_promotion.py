"""A canary that the gate did not let pass: face and command refuse it, and promote it when the caller says so."""

import asyncio
from pathlib import Path

import pytest
from tests.fakes.bundles import copy_bundle
from tests.fakes.cluster import make_node
from tests.fakes.servers.faces import faces

from placewise_core.basics.clock import ManualClock
from placewise_core.policies.trial.arms import Arms
from placewise_service.cli import invoke
from placewise_service.engine import EngineOptions
from placewise_service.engine.build import build_engine
from placewise_service.state.reference.memory import MemoryStore
from placewise_service.telemetry import Telemetry


async def test_a_canary_started_by_hand_is_promoted_with_a_flag_and_the_refusal_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("default", "next"):
        copy_bundle(tmp_path / name, created=f"2026-01-0{len(name) - 3}T00:00:00Z")
    clock = ManualClock(1e6)
    engine = build_engine(MemoryStore(clock), clock, Telemetry(), EngineOptions(), tmp_path)
    await engine.report_nodes("lab", [make_node("n0", 4)], full=True)
    await engine.bundles.set_canary("next", "lab", Arms("", 0.3))
    async with faces(engine, clock=clock) as running:  # type: ignore[arg-type]
        refused = await running.http.post("/v1/bundles:promote", json={"cluster": "lab"})
        assert (refused.status_code, refused.json()["reason"]) == (400, "INVALID_REQUEST")
        assert "the bundle 'next' has no verdict of the gate" in refused.json()["detail"]
        command = ["bundle", "promote", "next", "-c", "lab", "--target", f"127.0.0.1:{running.grpc.port}"]
        assert await asyncio.to_thread(invoke, command) != 0
        assert "--ungated" in capsys.readouterr().err
        assert engine.bundles.canaries
        assert await asyncio.to_thread(invoke, [*command, "--ungated"]) == 0
        assert "next: ACTIVE" in capsys.readouterr().out
        await engine.bundles.set_canary("default", "lab", Arms("", 0.3))
        done = await running.http.post("/v1/bundles:promote", json={"cluster": "lab", "allowUngated": True})
        assert done.json()["bundle"]["name"] == "default"
    await engine.close()
