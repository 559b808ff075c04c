"""What callers may invent, names of queues, takes no room without bound."""

import asyncio

import pytest
from tests.fakes.cluster import make_job
from tests.fakes.engine import CLUSTER, running_engine

from placewise_core.commands import AdmitCommand
from placewise_core.decision import Verdict
from placewise_core.errors import InvalidRequestError
from placewise_service.engine import admitting


def command(queue: str, policy: str = "proteus", is_dry_run: bool = False) -> AdmitCommand:
    return AdmitCommand(CLUSTER, queue, (make_job("a"),), policy=policy, is_dry_run=is_dry_run)


async def test_a_cluster_has_room_for_so_many_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admitting, "_MOST_QUEUES", 2)
    async with running_engine() as engine:
        for queue in ("q0", "q1", "q0"):
            await engine.admit_or_wait(command(queue))
        with pytest.raises(InvalidRequestError, match="2 queues"):
            await engine.admit_or_wait(command("q2"))
        assert set((await engine.get_cluster(CLUSTER)).view.queues) == {"q0", "q1"}
        admitted = await engine.admit_or_wait(command("q2", "fifo"))
        assert admitted.plan.admissions[0].verdict is Verdict.ADMIT, "what keeps no queue needs no room"


async def test_a_queue_that_is_not_kept_leaves_no_lock_and_no_gauge() -> None:
    async with running_engine() as engine:
        await engine.admit_or_wait(command("kept"))
        for i in range(50):
            await engine.admit_or_wait(command(f"fleeting-{i}", "fifo"))
        await asyncio.sleep(0)  # gauges move when the answer is on its way
        assert len(engine._admitting.locks) == 0
        text = engine._common.telemetry.render().decode()
        assert ('queue="kept"' in text, "fleeting" in text) == (True, False)
