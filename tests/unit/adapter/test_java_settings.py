"""The YARN adapter's settings are those of AdapterSettings: the same names, defaults and meaning, in Java's units."""

import dataclasses
import re
from pathlib import Path

from placewise_client.adapter.native import AdapterSettings

YARN = Path(__file__).parents[3] / "clients" / "yarn"
SOURCE = YARN / "src" / "main" / "java" / "placewise" / "yarn" / "Settings.java"
_SET = re.compile(r"(text|number|positive|flag)\(\"placewise\.([a-z-]+)\", (.+)\);")
_HADOOP_NAMES = {"is_no_fit_released": "release-no-fit", "is_unshapeable_released": "release-unshapeable"}
_ELSEWHERE = {"cluster", "ask_admission"}  # has a default here; one call asks both


def _java() -> dict[str, str]:
    found = {name: default for _, name, default in _SET.findall(SOURCE.read_text())}
    assert len(found) >= 15
    return found


def _java_name(name: str) -> str:
    return _HADOOP_NAMES.get(name, name.removeprefix("is_").replace("_", "-").removesuffix("-s"))


def test_names_and_defaults_are_the_sdks() -> None:
    java = _java()
    for item in dataclasses.fields(AdapterSettings):
        if item.name in _ELSEWHERE:
            continue
        name = _java_name(item.name)
        if item.name.endswith("_s"):
            assert float(java[f"{name}-ms"].replace("_", "")) == item.default * 1000, name
        elif isinstance(item.default, bool):
            assert java[name] == str(item.default).lower(), name
        elif isinstance(item.default, int):
            assert int(java[name].replace("_", "")) == item.default, name
        else:
            assert java[name].strip('"') == item.default, name


def test_only_the_time_to_release_may_be_below_0() -> None:
    """There it means never, as in the SDK."""
    below = [item.name for item in dataclasses.fields(AdapterSettings) if item.metadata.get("least", 0) < 0]
    assert below == ["release_after_s"]
    kinds = {name: kind for kind, name, _ in _SET.findall(SOURCE.read_text())}
    times = {name: kind for name, kind in kinds.items() if name.endswith("-ms")}
    assert [name for name, kind in times.items() if kind == "number"] == ["release-after-ms"]


def test_the_readme_has_each_setting_with_its_default() -> None:
    readme = (YARN / "README.md").read_text()
    for name in _java():
        assert f"placewise.{name}" in readme or f"`{name}" in readme, name
