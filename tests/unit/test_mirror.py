"""tests/unit follows the folders of the source: a test stands in the folder of the package that it tests.

tests/unit/core/gang is placewise_core/gang. The package's name may be left out, as of engine/, unless two packages have
such a folder. A large module may have a folder of tests too: engine/bundles is engine/bundles.py.
"""

import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "tests/unit"
SOURCES = ("service", "training", "clients/python", "clients/slurm", "clients/kubernetes")
PACKAGES = {path.name: path for source in SOURCES for path in (ROOT / source).glob("placewise*") if path.is_dir()}
LINTER = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
LAYERS = [contract for contract in LINTER["contracts"] if contract["type"] == "layers"]
# Tests of programs that no package holds: tools/, tests/bench, tests/attack, tests/e2e.
NO_PACKAGE = "tools"
# Every test says its inputs in these.
WORDS = {"placewise/v1", "placewise_core/basics", "placewise_core/domain"}
ELSEWHERE = {
    "adapter/test_metrics.py": "what every adapter shows; of one it needs most of its parts to start it",
    "core/policies/test_place_policies.py": "asks every policy of the registry, those with measured tables too",
    "core/view/test_view_held.py": "the amounts held, shown by the start of a head that admission finds on them",
    "declog/test_log_api_memory.py": "the log as a client reads it through the face",
    "training/log/test_dataset_volume.py": "imports nothing of ours: the processes that it starts do",
}


def source_folder(folder: Path) -> str:
    """The folder of a package that a folder of tests/unit stands for; "" if there is none, or more than one."""
    name, *rest = folder.relative_to(UNIT).parts
    within = [f"{package}/{name}" for package in PACKAGES if is_package(f"{package}/{name}")]
    found, *more = [f"placewise_{name}"] if f"placewise_{name}" in PACKAGES else within or [""]
    for part in rest:
        if is_package(f"{found}/{part}"):
            found = f"{found}/{part}"
        elif not path_of(f"{found}/{part}.py").exists():
            return ""
    return "" if more else found


def is_package(folder: str) -> bool:
    return (path_of(folder) / "__init__.py").exists()


def path_of(folder: str) -> Path:
    return PACKAGES.get(folder.partition("/")[0], ROOT).parent / folder


def imported(text: str) -> Counter[str]:
    """How many names a test imports from each folder of a package, in programs that it hands to processes too."""
    found: Counter[str] = Counter()
    for module, names in re.findall(r"^ *from ([\w.]+) import (\([^)]+\)|.+)", text, re.MULTILINE):
        package, *parts = module.split(".")
        for name in re.findall(r"(\w+)(?: as \w+)?,?", names.partition("#")[0]) if package in PACKAGES else ():
            folder = package
            for part in (*parts, name):
                if not (path_of(folder) / part).is_dir():
                    break
                folder += f"/{part}"
            found[folder] += 1
    return found


def is_below(folder: str, other: str) -> bool:
    """Whether import-linter lets the other folder build on this one."""
    for contract in LAYERS:
        for container in contract.get("containers", [""]):
            at = f"{container.replace('.', '/')}/".lstrip("/")
            if folder.startswith(at) and other.startswith(at):
                names = [each.removeprefix(at).partition("/")[0] for each in (folder, other)]
                levels = [
                    i for name in names for i, layer in enumerate(contract["layers"]) if name in layer.split(" | ")
                ]
                if len(levels) == 2 and levels[0] > levels[1]:
                    return True
    return False


def is_misplaced(path: Path, text: str) -> bool:
    """Whether a test imports nothing of its folder, or more from another one. Folders above it count as its own, and so
    does the fake of that name. Files beside all of a package's folders do not count, nor what import-linter lets the
    folder build on."""
    own, counts = source_folder(path.parent), imported(text)
    package, *parts = own.split("/")
    mine = {"/".join((package, *parts[:end])) for end in range(1, len(parts) + 1)} or {own}
    others = {folder for folder in set(counts) - mine - WORDS - {package} if not is_below(folder, own)}
    fakes = re.findall(rf"^from tests\.fakes\.{path.relative_to(UNIT).parts[0]} import (.+)", text, re.MULTILINE)
    count = sum(counts[folder] for folder in mine) + sum(len(names.split(",")) for names in fakes)
    return count == 0 or max((counts[folder] for folder in others), default=0) > count


def files() -> dict[str, Path]:
    found = {path.relative_to(UNIT).as_posix(): path for path in UNIT.rglob("test_*.py")}
    return {name: path for name, path in found.items() if "/" in name and not name.startswith(f"{NO_PACKAGE}/")}


def test_a_folder_of_tests_stands_for_a_folder_of_a_package() -> None:
    folders = {path.parent: source_folder(path.parent) for path in files().values()}
    assert len(folders) > 30
    assert [str(folder.relative_to(ROOT)) for folder, source in folders.items() if not source] == []


def test_a_test_stands_in_the_folder_that_it_tests() -> None:
    found = {name for name, path in files().items() if is_misplaced(path, path.read_text("utf-8"))}
    assert found - set(ELSEWHERE) == set()
    assert set(ELSEWHERE) - found == set()  # those that need no exception any more


def test_a_test_of_a_program_outside_imports_no_package() -> None:
    found = {path.name: imported(path.read_text("utf-8")) for path in (UNIT / NO_PACKAGE).glob("test_*.py")}
    assert len(found) > 3
    assert {name for name, counts in found.items() if counts} == set()


@pytest.mark.parametrize(
    ("folder", "line", "misplaced"),
    [
        ("declog", "from placewise_service.declog.sink import LogSink", False),
        ("service", "from placewise_service.declog.sink import LogSink", True),
        ("engine", "from placewise_service.declog.sink import LogSink", True),
        ("state", "from placewise_service.state.redis.aof import (\n    Soundness,\n    soundness,\n)", True),
        ("state/redis", "from placewise_service.state.keys import keys_of", False),
        ("engine/bundles", "from placewise_service.engine.bundles import Bundles", False),
        ("engine", "from tests.fakes.engine import CLUSTER, running_engine", False),
        ("declog", "from tests.fakes.engine import CLUSTER, running_engine", True),
        ("core/view", "from placewise_core.domain.job import Job", True),
    ],
)
def test_imports_show_where_a_test_belongs(folder: str, line: str, misplaced: bool) -> None:
    assert is_misplaced(UNIT / folder / "test_made_up.py", f"{line}\n") == misplaced


def test_a_test_may_use_what_its_folder_builds_on() -> None:
    used = "from placewise_service.engine import Engine\nfrom placewise_core.gang.gang import Gang, Offer\n"
    assert not is_misplaced(UNIT / "engine/test_made_up.py", used)
    assert is_misplaced(
        UNIT / "core/gang/test_made_up.py", used.replace("Gang, Offer", "Gang").replace("Engine", "A, B")
    )
    assert is_below("placewise_core/view", "placewise_core/gang")
    assert not is_below("placewise_core/gang", "placewise_core/view")
    assert not is_below("placewise_core/gang", "placewise_core/admit")
