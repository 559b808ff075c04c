"""Nets read the same bytes on the view from the log as when they decided, and the log's observations are those bytes.

Two replicas on one Redis, every decision observed. The inputs of each call of a net are noted during a decision, and
once more while the decision is repeated from its record.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from threading import current_thread, main_thread
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pytest
from tests.contract.log.replicas import EXPLORING, NODES, Host, policies_of, write_log
from tests.fakes.explored import PrintedHarmony, PrintedLdwp
from tests.fakes.servers.redis_server import RedisServer

from placewise_core.domain.cluster import RunningJob
from placewise_core.gang.policy import PlacementPolicy
from placewise_log.reading import ExportedLog
from placewise_log.record import Choice
from placewise_log.repeating import decide_again
from placewise_models.learned import LEARNED_POLICIES
from placewise_service.engine import Engine
from placewise_service.engine.place.drafting import Draft, Placer

RECORDS: Final = 30
AGAIN: Final = "again"
NAMES: Final = [f"n{i}" for i in range(NODES)]
PRINTED: Final = MappingProxyType({"harmony-paper": PrintedHarmony(NAMES), "ldwp-paper": PrintedLdwp(NAMES)})


def arrays(given: object) -> Iterator[object]:
    """Type, shape and bytes of every array in the arguments of a call, and their numbers."""
    if isinstance(given, np.ndarray):
        yield given.dtype.str, given.shape, given.tobytes()
    elif isinstance(given, int | float):
        yield given
    elif is_dataclass(given):
        for each in fields(given):
            yield from arrays(getattr(given, each.name))
    elif isinstance(given, list | tuple):
        for item in given:
            if not isinstance(item, RunningJob):  # whose model reads its tokens, not the job
                yield from arrays(item)


def is_run_of(wanted: Sequence[object], read: Sequence[object]) -> bool:
    """True if these follow one another somewhere in `read`."""
    return any(list(wanted) == list(read[i : i + len(wanted)]) for i in range(len(read)))


def is_as_read(choice: Choice, calls: Sequence[Any]) -> bool:
    """True if the observation has the arrays of some call that read this job beside a cluster."""
    found = {name: tensor.unpack() for name, tensor in choice.observation.items()}
    (token,), seen = arrays(found["jobs"][:1]), [*arrays((found["nodes"], found["jobs"][1:], found["placement"][1:]))]
    return any(call[1] == "read" and call[-2] == token and call[-1][:3] == seen for call in calls)


def are_steps_read(choice: Choice, calls: Sequence[Any]) -> bool:
    """True if the steps are the inputs of calls that follow one another. `harmony-paper` asks its net the same again if
    the GPUs of a node turn out too slow to share."""
    found = {name: tensor.unpack() for name, tensor in choice.observation.items()}
    steps, rows = found["steps"], found.get("step_rows")
    written = [step if rows is None else step[rows[i] >= 0] for i, step in enumerate(steps)]
    read = [call[-1] if call[1] == "decode" else call[2] for call in calls if call[1] in ("decode", "logits", "values")]
    once = [given for given, _ in itertools.groupby(read)]
    return is_run_of([*arrays(written)], once)


class Notes:
    """The calls of nets by the decision that made them."""

    def __init__(self) -> None:
        self.decision = ""
        self.calls: dict[str, list[object]] = defaultdict(list)
        self.steps: dict[str, list[bytes]] = defaultdict(list)
        self.looks: dict[int, tuple[object, object]] = {}  # a state and the inputs that it encodes, by its identity

    def note(self, net: str, method: str, given: Sequence[object], found: object) -> None:
        if method == "look":  # kept from one decision to the next: it belongs to those that read it
            self.looks[id(found)] = found, list(arrays(given))
        elif self.decision and current_thread() is main_thread():  # studies run models in threads
            looked = [self.looks[id(each)][1] for each in given if id(each) in self.looks]
            self.calls[self.decision].append((net, method, *arrays(given), *looked))
            if method == "decode":
                self.steps[self.decision].append(np.asarray(given[2]).tobytes())


class Noting:
    """A net whose calls are noted."""

    def __init__(self, net: Any, name: str, notes: Notes) -> None:
        self._net, self._name, self._notes = net, name, notes

    def __getattr__(self, name: str) -> object:
        found = getattr(self._net, name)
        if not callable(found):
            return found

        def call(*given: object) -> object:
            answer = found(*given)
            self._notes.note(self._name, name, given, answer)
            return answer

        return call


def watch(policy: PlacementPolicy, notes: Notes) -> None:
    slot = "_scorer" if policy.name in ("search", "adaptive") else "_net"
    net = PRINTED.get(policy.name) or getattr(policy, slot)
    setattr(policy, slot, Noting(net, policy.name, notes))


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Notes:
    found, draft = Notes(), Placer.draft

    def noting(placer: Placer, *given: Any) -> Draft:
        found.decision = given[4]
        try:
            return draft(placer, *given)
        finally:
            found.decision = ""

    monkeypatch.setattr(Placer, "draft", noting)
    return found


def watched(notes: Notes) -> type[Host]:
    """A host of two replicas whose nets are watched, and which observe and study every decision."""

    class WatchedHost(Host):
        options = MappingProxyType({"alternatives_share": 1.0, "observe_share": 1.0})
        deadlines_s = (10.0,)  # a policy that the clock stopped calls other nets when it is repeated

        def __init__(self, replicas: Sequence[Engine], policy: str, seed: int) -> None:
            super().__init__(replicas, policy, seed)
            for engine in replicas:
                engine._studying._rest = 0.0
                for name in LEARNED_POLICIES:
                    watch(engine._placing.placer.policies[name], notes)

    return WatchedHost


# Not `adaptive`, which asks no net until jobs have reported: test_view_at.py has it on a cluster that learns.
ASKING = [name for name in LEARNED_POLICIES if name != "adaptive"]


@pytest.mark.parametrize("policy", [*ASKING, EXPLORING])
async def test_nets_read_the_same_bytes_on_the_view_from_the_log(policy: str, tmp_path: Path, notes: Notes) -> None:
    server, replicas = RedisServer().start(), ()
    try:
        replicas = await write_log(server.url, policy, RECORDS, tmp_path, host_type=watched(notes))
        log, asked, compared, observed = ExportedLog(tmp_path), 0, 0, 0
        for record in log.records():
            if len(record.reads) > 1:
                continue  # decided in slices, between which other decisions call the same nets
            assert not any(draw.stops for draw in record.draws)
            before, notes.decision = notes.calls[record.decision_id], AGAIN
            decide_again(record, log.views_of(record), policies_of(replicas[0]))
            notes.decision = ""
            assert notes.calls.pop(AGAIN, []) == before, record.decision_id
            asked += bool(before)
            for choice in record.choices:
                draw = record.draw_of(choice.job_id)
                if "steps" in choice.observation and (draw is None or not draw.fallback_reason):
                    assert are_steps_read(choice, before), record.decision_id
                    assert is_as_read(choice, before) or policy in ("ldwp", *PRINTED), record.decision_id
                    observed += 1
            for steps in record.steps if policy == "harmony" else ():
                if not (draw := record.draw_of(steps.job_id)) or draw.fallback_reason:
                    continue
                written = [tokens.tobytes() for tokens in steps.tokens.unpack()]
                assert is_run_of(written, notes.steps[record.decision_id])
                compared += 1
    finally:
        for engine in replicas:
            await engine.close()
        server.stop()
    assert asked > RECORDS / 5
    assert compared > RECORDS / 5 or policy != "harmony"
    assert observed
