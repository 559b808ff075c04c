"""The key schema, the scripts and their documentation agree."""

import re
from importlib import resources
from pathlib import Path

import pytest
from redis.cluster import key_slot  # type: ignore[attr-defined]

from placewise_service.state.keys import REGISTRY, keys_of
from placewise_service.state.redis.scripts import NAMES, script

LUA = Path(str(resources.files("placewise_service.state.redis"))) / "lua"
DOCS = Path(__file__).parents[3] / "docs" / "state.md"


def test_all_keys_of_a_cluster_are_in_one_slot() -> None:
    keys = keys_of("north/eu-1").all
    assert len({key_slot(key.encode()) for key in keys}) == 1
    assert all(key.startswith("pw:{north/eu-1}:") for key in keys)
    assert len(set(keys)) == len(keys)


def test_clusters_spread_over_slots() -> None:
    assert len({key_slot(keys_of(f"c{i}").meta.encode()) for i in range(50)}) > 40


@pytest.mark.parametrize("name", ["", "{", "}", "a}{b"])
def test_names_that_would_break_the_hash_tag_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="braces"):
        keys_of(name)


def test_the_documentation_names_every_key_and_no_other() -> None:
    table = re.findall(r"^\| `(\w+)` \| (?:hash|stream|string|sorted set) \|", DOCS.read_text(), flags=re.MULTILINE)
    assert table == [key.rpartition(":")[2] for key in keys_of("c").all]
    assert REGISTRY in DOCS.read_text()


def test_the_documentation_names_every_reason_of_a_conflict() -> None:
    reasons = re.findall(r"'([A-Z]+_[A-Z_]+)'", script("reserve").text)
    assert len(set(reasons)) == 15
    assert all(f"`{reason}`" in DOCS.read_text() for reason in reasons)


def test_every_script_file_is_known() -> None:
    assert sorted(NAMES) == sorted(path.stem for path in LUA.glob("*.lua"))


@pytest.mark.parametrize("name", NAMES)
def test_every_script_says_what_it_does(name: str) -> None:
    lines = (LUA / f"{name}.lua").read_text().splitlines()
    header = []
    for line in lines:
        if not line.startswith("--"):
            break
        header.append(line)
    assert header[0].startswith(f"-- {name}.lua: ")
    for word in ("KEYS ", "Returns ", "Cost "):
        assert any(line.startswith(f"-- {word}") for line in header), word
    assert "ARGV[" not in script(name).text or any(line.startswith("-- ARGV ") for line in header)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_script_includes_is_what_its_header_says(name: str) -> None:
    text = (LUA / f"{name}.lua").read_text()
    printed = re.search(r"Includes: ([a-z, ]+)\.", text)
    included = set(printed.group(1).split(", ")) if printed else set()
    whole = script(name).text
    assert included == {path.stem for path in LUA.glob("shared/*.lua") if path.read_text() in whole}
