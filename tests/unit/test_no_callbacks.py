"""Calls go down the layers and answers come back up: nobody hands a function to a layer below."""

import collections.abc
import dataclasses
import inspect
import typing
from collections.abc import Iterator
from typing import Any

import pytest

from placewise_service.api.calls.ports import Bundles, DecisionEngine
from placewise_service.engine import Engine
from placewise_service.engine.bundles import SharedBundles
from placewise_service.engine.pending import Pending
from placewise_service.state.redis.redis_store import RedisStore
from placewise_service.state.reference.memory import MemoryStore
from placewise_service.state.store import StateStore

API_INTO_ENGINE = (DecisionEngine, Bundles, Engine, SharedBundles, Pending)
ENGINE_INTO_STATE = (StateStore, RedisStore, MemoryStore)


def _parameters(owner: type) -> Iterator[tuple[str, Any]]:
    """(name, type) of every parameter of the public methods. How an object is made is not asked: main does that."""
    for name, method in inspect.getmembers(owner, inspect.isfunction):
        if name.startswith("_"):
            continue
        hints = typing.get_type_hints(method)
        for parameter in inspect.signature(method).parameters.values():
            if parameter.name != "self":
                assert parameter.name in hints, f"{owner.__name__}.{name}: {parameter.name} has no type"
                yield f"{owner.__name__}.{name}({parameter.name})", hints[parameter.name]


def _has_function(hint: Any, seen: set[Any]) -> bool:
    """True for a function type, also inside another type or in a field of a record."""
    if hint is collections.abc.Callable or typing.get_origin(hint) is collections.abc.Callable:
        return True
    if any(_has_function(part, seen) for part in typing.get_args(hint)):
        return True
    if not dataclasses.is_dataclass(hint) or not isinstance(hint, type) or hint in seen:
        return False
    seen.add(hint)
    return any(_has_function(field, seen) for field in typing.get_type_hints(hint).values())


@pytest.mark.parametrize("owner", [*API_INTO_ENGINE, *ENGINE_INTO_STATE], ids=lambda owner: owner.__name__)
def test_no_layer_hands_a_function_to_the_one_below(owner: type) -> None:
    assert [name for name, hint in _parameters(owner) if _has_function(hint, set())] == []


def test_the_check_finds_functions_wherever_they_hide() -> None:
    @dataclasses.dataclass
    class Request:
        on_sent: collections.abc.Callable[[], None] | None

    assert _has_function(collections.abc.Callable[[], None], set())
    assert _has_function(tuple[Request, ...], set())
    assert not _has_function(tuple[int, ...], set())
