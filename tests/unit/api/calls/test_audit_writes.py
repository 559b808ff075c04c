"""A call is on record exactly if it wrote to the store, or failed: the engine on a store that notes its writes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from tests.fakes.engine import CLUSTER, running_engine
from tests.fakes.servers.faces import faces

from placewise_core.basics.clock import ManualClock
from placewise_core.domain.cluster import ClusterSettings
from placewise_log.audit import AuditRecord
from placewise_service.api.calls.call_audit import CallAudit
from placewise_service.state.reference.memory import MemoryStore

NOW_S = 1_000_000.0
# Every method that a decision may write by. The log of decisions is none: it is a record itself.
WRITES = ("reserve", "remember", "expire", "commit_queue")


class Noting(MemoryStore):
    """Notes the names of the methods that wrote."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.written: list[str] = []
        for name in WRITES:
            setattr(self, name, self._noted(name))

    def _noted(self, name: str) -> Any:
        method = getattr(super(), name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self.written.append(name)
            return method(*args, **kwargs)

        return call


@asynccontextmanager
async def deciding(host_clock: bool) -> AsyncIterator[tuple[Noting, list[AuditRecord], httpx.AsyncClient, Any]]:
    clock = ManualClock(NOW_S)
    store, records = Noting(clock), list[AuditRecord]()
    audit = CallAudit(records.append, lambda: NOW_S)
    async with running_engine(1, store=store, clock=clock) as engine:
        if host_clock:
            await engine.update_settings(CLUSTER, ClusterSettings(host_clock=True))
        async with faces(engine, audit=audit) as running:  # type: ignore[arg-type]
            store.written.clear()
            yield store, records, running.http, running.gateway.telemetry.afterwards.run


def job(gpus: float) -> dict[str, Any]:
    return {"id": "j", "groups": [{"role": "WORKER", "count": 1, "demand": {"gpus": gpus}}]}


PLACE, PARTITION = f"/v1/clusters/{CLUSTER}/jobs:place", f"/v1/clusters/{CLUSTER}/tasks:partition"
ADMIT = f"/v1/clusters/{CLUSTER}/jobs:admitOrWait"
FITS, TOO_LARGE, TASK = {"jobs": [job(1)]}, {"jobs": [job(100)]}, {"task": {"id": "t", "parallelScale": 10}}


@pytest.mark.parametrize("host_clock", [False, True])
@pytest.mark.parametrize("is_dry", [False, True])
@pytest.mark.parametrize("request_id", ["", "r"])
@pytest.mark.parametrize(
    ("path", "body"), [(PLACE, FITS), (PLACE, TOO_LARGE), (PARTITION, TASK), (ADMIT, {"jobs": [{"id": "a"}]})]
)
async def test_a_decision_is_on_record_exactly_if_it_wrote(
    path: str, body: dict[str, Any], request_id: str, is_dry: bool, host_clock: bool
) -> None:
    more = {"now": "2030-01-01T00:00:00Z"} if host_clock else {}
    asked = {**body, **more, "dryRun": is_dry, "requestId": request_id}
    async with deciding(host_clock) as (store, records, http, settle):
        answer = await http.post(path, json=asked)
        assert answer.status_code == 200, answer.text
        settle()
        assert len(records) == bool(store.written), store.written


async def test_another_question_under_a_known_id_is_on_record() -> None:
    async with deciding(False) as (_, records, http, settle):
        for task in ("t", "u"):
            answer = await http.post(PARTITION, json={"task": {"id": task, "parallelScale": 10}, "requestId": "r"})
        assert answer.status_code == 409
        settle()
        assert [(each.call, each.result) for each in records] == [("Partition", "OK"), ("Partition", "ALREADY_EXISTS")]
