"""Sections of an adapter's configuration file, read into frozen records. Opens no file."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class ConfigError(ValueError):
    """The configuration file cannot be used; the message names the key."""


def read_section(kind: type[T], values: object, name: str, *, least: int = 0, most: float = math.inf) -> T:
    """A dataclass from the section `name` of a file ("" for the whole file), its values checked against the types of
    the fields: whole numbers from `least`, other numbers from 0 to `most`. A field whose metadata name another `least`
    begins there. None is an empty section.

    Raises:
        ConfigError: this is no section, a key is unknown or missing, or a value is of another type.
    """
    if not isinstance(values, Mapping | None):
        raise ConfigError(f"{name}: give a section of keys and values")
    fields = {item.name: item for item in dataclasses.fields(kind)}  # type: ignore[arg-type]
    types, prefix, found = typing.get_type_hints(kind), f"{name}." if name else "", {}
    for key, value in (values or {}).items():
        if key not in fields:
            raise ConfigError(f"{prefix}{key} is an unknown key: give one of {', '.join(fields)}")
        lowest = fields[key].metadata.get("least", least if types[key] is int else 0)
        found[key] = _checked(types[key], value, f"{prefix}{key}", lowest, most)
    for key, item in fields.items():
        if key not in found and item.default is item.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{prefix}{key} is missing: give it")
    return kind(**found)


def _checked(kind: Any, value: Any, key: str, least: float, most: float) -> Any:
    """The value, a list as a tuple; fields of further types are the caller's to check."""
    if kind is int and not (_is_number(value) and isinstance(value, int) and value >= least):
        raise ConfigError(f"{key}: {value!r} does not fit: give a whole number, {least} or more")
    if kind is float and not (_is_number(value) and least <= value <= most):
        raise ConfigError(f"{key}: {value!r} does not fit: give a number, {least:g} or more")
    wanted, fits = _KINDS.get(kind, ("", _anything))
    if not fits(value):
        raise ConfigError(f"{key}: {value!r} does not fit: give {wanted}")
    return tuple(value) if isinstance(value, list) else value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _anything(_: Any) -> bool:
    return True


_KINDS: Mapping[Any, tuple[str, Callable[[Any], bool]]] = {
    str: ("a text", lambda value: isinstance(value, str)),
    bool: ("true or false", lambda value: isinstance(value, bool)),
    tuple[str, ...]: (
        "a list of texts",
        lambda value: isinstance(value, list | tuple) and all(isinstance(item, str) for item in value),
    ),
    Mapping[str, str]: (
        "a section of texts",
        lambda value: isinstance(value, Mapping) and all(isinstance(item, str) for item in value.values()),
    ),
}
