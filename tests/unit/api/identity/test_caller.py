"""Who asked: in each answer, in the decision's record, and in the tables made of it."""

import math
from typing import Any

import pytest
from google.protobuf import json_format
from tests.fakes.engine import CLUSTER, logged, running_engine

from placewise_core.basics.clock import SystemClock
from placewise_log.record import decode, encode
from placewise_service.api.calls.gateway import Gateway
from placewise_service.api.calls.rpcs import RPCS
from placewise_service.api.docs import examples
from placewise_service.api.identity.auth import AccessScope, Credentials, Method, Open, Principal
from placewise_service.declog.tables import row_of
from placewise_service.settings import LimitSettings
from placewise_service.telemetry import Telemetry

CALLER = "jwt:ann\n"


class Ann(Open):
    """Everybody is Ann."""

    def authenticate(self, credentials: Credentials) -> Principal:
        return Principal(CALLER, frozenset(AccessScope), None, Method.JWT)


PLACE = {**examples.PLACE, "policy": ""}
ADMIT = {**examples.ADMIT, "policy": "", "place": {"reserveTtl": "60s"}}
PARTITION = {**examples.PARTITION, "units": []}


@pytest.mark.parametrize(("name", "question"), [("Place", PLACE), ("AdmitOrWait", ADMIT), ("Partition", PARTITION)])
async def test_the_caller_is_named(name: str, question: dict[str, Any]) -> None:
    async with running_engine() as engine:
        gateway = Gateway(engine, SystemClock(), LimitSettings(), Ann(), Telemetry())
        rpc = RPCS[name]
        request = rpc.request()
        json_format.ParseDict({**question, "cluster": CLUSTER}, request)
        answer: Any = await gateway.call(rpc, request, Credentials(), math.inf)
        assert answer.meta.caller == CALLER
        if name == "AdmitOrWait":
            assert answer.placed.meta.caller in ("", CALLER)
        assert await logged(engine)
        record = await engine.get_decision(CLUSTER, answer.meta.decision_id)
        assert decode(encode(record)).meta.caller == CALLER
        table, _, row = row_of(CLUSTER, "1-0", encode(record))
        assert (table, row["caller"]) == ("decisions", CALLER)
