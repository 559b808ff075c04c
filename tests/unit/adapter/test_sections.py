"""The one reader of configuration sections: each value by the type of its field, each error by its key."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from placewise_client.adapter.sections import ConfigError, read_section


@dataclass(frozen=True)
class Example:
    name: str
    count: int = 4
    wait_s: float = 0.5
    is_on: bool = True
    hosts: tuple[str, ...] = ()
    words: Mapping[str, str] = field(default_factory=dict)
    after_s: float = field(default=0.0, metadata={"least": -1.0})


def test_values_are_read_and_lists_become_tuples() -> None:
    values = {"name": "a", "wait_s": 2, "hosts": ["x"], "words": {"k": "v"}, "after_s": -1}
    read = read_section(Example, values, "part")
    assert read == Example("a", wait_s=2, hosts=("x",), words={"k": "v"}, after_s=-1)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (None, "part.name is missing"),
        (["name"], "part: give a section"),
        ({"nam": "a"}, "part.nam is an unknown key: give one of name, count"),
        ({"name": 1}, "part.name: 1 does not fit: give a text"),
        ({"count": 1}, "part.count: 1 does not fit: give a whole number, 2 or more"),
        ({"count": True}, "part.count"),
        ({"count": 2.0}, "part.count"),
        ({"wait_s": float("nan")}, "part.wait_s"),
        ({"wait_s": 61}, "part.wait_s"),
        ({"wait_s": -1}, "part.wait_s: -1 does not fit: give a number, 0 or more"),
        ({"after_s": -1.5}, "part.after_s: -1.5 does not fit: give a number, -1 or more"),
        ({"is_on": 1}, "part.is_on: 1 does not fit: give true or false"),
        ({"hosts": "x"}, "part.hosts: 'x' does not fit: give a list of texts"),
        ({"words": {"k": 1}}, "part.words"),
    ],
)
def test_an_error_names_the_key_and_the_remedy(values: object, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read_section(Example, values, "part", least=2, most=60.0)
