"""How far a reader walks from the handler of Place to the line that chooses a node, traced on real calls.

A file is on the stack at the choice if one of its functions stands there while a policy, a net or the gang that takes
the node is at work. A file is run if one of its functions is called between the handler and the choice, helpers too.
"""

import gc
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from tests.golden.net import messages as m
from tests.golden.net.seams import serving

ROOT = Path(__file__).parents[2] / "service"
MOST_ON_THE_WAY = 15
# By family: files on the stack at the choice, and files run.
FILES = {"load-balance": (8, 40), "random": (8, 41), "harmony": (10, 42), "search": (11, 42), "ldwp": (9, 41)}
FILES_OF_SEARCH_AND_ITS_CANDIDATES = (23, 57)  # its candidates are placements by the other families
# Objects that callees modify: the live view and its arrays count as one.
HANDED_OVER = {"LiveView": "view", "ClusterView": "view", "Gang": "gang", "PlaceContext": "notes"}
MOST_HANDED_OVER = 3
# Memories: an answer is the same without them. A generator takes the place of its seed.
KEPT = {
    "PlaceContext": {"first_offers", "randomness"},  # its notes tell `harmony-paper` the other jobs of the batch
    "Offer": None,  # every lazy attribute
    "PolicyState": {"beside"},
    "LeastInterference": {"_kept", "_last"},
    "Encoder": {"_running_last"},
    "MeasuredInterference": {"_answers"},
}


def name_of(frame: FrameType) -> str:
    """Path below `service/`, or "" for code of others."""
    path = frame.f_code.co_filename
    return path.removeprefix(f"{ROOT}/placewise_") if path.startswith(f"{ROOT}/placewise_") else ""


def stack(frame: FrameType | None) -> Iterator[FrameType]:
    """The frame and its callers, up to the handler."""
    while frame is not None:
        if name_of(frame):
            yield frame
        if is_handler(frame):
            return
        frame = frame.f_back


def is_handler(frame: FrameType) -> bool:
    return frame.f_code.co_name == "_place" and name_of(frame) == "service/api/calls/rpcs.py"


def is_choosing(frame: FrameType) -> bool:
    """A policy, a net, or the gang that takes a node."""
    name, function = name_of(frame), frame.f_code.co_name
    if name == "core/gang/gang.py":
        return function in ("take", "take_all")
    return name.startswith(("core/policies/", "models/"))


def state_of(value: object) -> dict[str, Any]:
    """The parts of an object that may change in place: fields, members of collections, bytes of arrays."""
    names = [*getattr(value, "__dict__", ()), *(s for k in type(value).__mro__ for s in getattr(k, "__slots__", ()))]
    found: dict[str, Any] = {}
    for name in names:
        each = getattr(value, name, None) if name in getattr(value, "__dict__", {}) or name[:2] != "__" else None
        found[name] = (id(each), content(each))
    return found


def content(value: object) -> object:
    """Bytes of an array, members of a collection."""
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, dict):
        return [(id(key), id(each)) for key, each in value.items()]
    return sorted(map(id, value)) if isinstance(value, list | set | deque) else None


@dataclass
class Walk:
    """One traced Place. Files count from its handler until every job has its node, changed objects until the answer."""

    policy: str
    way: set[str] = field(default_factory=set)
    run: set[str] = field(default_factory=set)
    way_with_candidates: set[str] = field(default_factory=set)
    run_with_candidates: set[str] = field(default_factory=set)
    changed: dict[str, set[str]] = field(default_factory=dict)
    is_begun: bool = False
    is_decided: bool = False
    _given: dict[int, list[tuple[Any, dict[str, Any]]]] = field(default_factory=dict)

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        name = name_of(frame)
        if not name:
            return
        self.is_begun = self.is_begun or is_handler(frame)
        if not self.is_begun:
            return
        if event == "call":
            self._count(frame, name, self.way_with_candidates, self.run_with_candidates)
        if self._is_candidate(frame):
            return
        if event == "call":
            self._called(frame, name)
        elif event == "return":
            self._compare(frame)
            self.is_decided |= frame.f_code.co_name == "_draft" and name.endswith("placing.py")

    def _is_candidate(self, frame: FrameType) -> bool:
        """`search` asks the other policies for candidates: each is a family of its own."""
        if self.policy != "search":
            return False
        names = [name_of(each) for each in stack(frame)]
        return any(name.startswith("core/policies/") and not name.endswith(("search.py", "explore.py"))
                   for name in names)  # fmt: skip

    def _count(self, frame: FrameType, name: str, way: set[str], run: set[str]) -> None:
        if self.is_decided:
            return
        run.add(name)
        if is_choosing(frame):
            way.update(name_of(each) for each in stack(frame))

    def _called(self, frame: FrameType, name: str) -> None:
        self._count(frame, name, self.way, self.run)
        if frame.f_back is not None and name_of(frame.f_back) not in ("", name):
            code = frame.f_code
            given = [
                frame.f_locals.get(each)
                for each in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
                if each != "self"  # a method that changes its own object is handed nothing
            ]
            own = [each for each in given if type(each).__module__.startswith("placewise_")]
            self._given[id(frame)] = [(each, state_of(each)) for each in own]

    def _compare(self, frame: FrameType) -> None:
        for value, before in self._given.pop(id(frame), ()):
            now, kind = state_of(value), type(value).__name__
            differing = {name for name in now if now[name] != before.get(name)}
            kept = KEPT.get(kind, set())
            if kept is not None and differing - kept:
                self.changed.setdefault(kind, set()).update(differing - kept)


@pytest.fixture
async def walk(request: pytest.FixtureRequest) -> Walk:
    """The second of two calls, so that nothing is made for the first time."""
    policy: str = request.param
    rng = m.drawn(f"way/{policy}")
    nodes = [m.node(f"n{i}", 4, "V100", rng, 64) for i in range(6)]
    traced = Walk(policy)
    async with serving() as service:
        await service.ask("ReportNodes", m.nodes_request("c", nodes))
        for i, hears in enumerate((None, traced)):
            more = {"subtasks": m.subtasks(rng, 3)} if policy == "ldwp" else {}
            job = m.job(f"j{i}", [m.group(1 if more else 2, m.demand())], rng, **more)
            gc.disable()  # it may close a generator of an earlier test, in a file that is not on the way
            sys.setprofile(hears)
            try:
                answer = await service.ask("Place", m.place("c", [job], policy, i))
            finally:
                sys.setprofile(None)
                gc.enable()
            assert answer.decisions[0].assignments
            assert answer.meta.fallback_reason in ("", "search: uncertain")
    return traced


@pytest.mark.parametrize("walk", FILES, indirect=True)
async def test_the_way_of_a_place_is_short(walk: Walk) -> None:
    assert {"service/api/calls/rpcs.py", "service/engine/place/placing.py"} < walk.way
    assert any(name.startswith("core/policies/") for name in walk.way)
    assert len(walk.way) <= MOST_ON_THE_WAY, sorted(walk.way)
    way, most_run = FILES[walk.policy]  # a file that only fills a cache does not run where it is filled already
    assert len(walk.way) == way, sorted(walk.way)
    assert most_run - 2 <= len(walk.run) <= most_run, sorted(walk.run)
    is_search = walk.policy == "search"
    way, most_run = FILES_OF_SEARCH_AND_ITS_CANDIDATES if is_search else FILES[walk.policy]
    assert len(walk.way_with_candidates) == way, sorted(walk.way_with_candidates)
    assert most_run - 2 <= len(walk.run_with_candidates) <= most_run, sorted(walk.run_with_candidates)
    assert walk.changed.keys() <= HANDED_OVER.keys(), walk.changed
    assert len({HANDED_OVER[kind] for kind in walk.changed}) <= MOST_HANDED_OVER, walk.changed


def test_architecture_has_the_same_numbers() -> None:
    text = (ROOT.parent / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = {f"`{policy}`": numbers for policy, numbers in FILES.items()}
    rows["`search`, with the policies that it asks for candidates"] = FILES_OF_SEARCH_AND_ITS_CANDIDATES
    for name, (on_the_stack, run) in rows.items():
        assert f"| {name} | {on_the_stack} | {run} |" in text
