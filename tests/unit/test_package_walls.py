"""What import-linter cannot see: packages named by strings, and resources that another package reads."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest
from tests.fakes.quick.sources import ROOT, nodes, parsed

FOLDERS = [
    path.parent
    for parent in ("service", "training", "clients/python", "clients/slurm", "clients/kubernetes")
    for path in sorted((ROOT / parent).glob("placewise_*/__init__.py"))
]
PACKAGES = [folder.name for folder in FOLDERS]
NAMED = re.compile(rf"({'|'.join(PACKAGES)})(\.[\w.]*)?")
# The command line is a client of the service; it recognises the SDK's errors by their module.
ALLOWED = {("placewise_service", "placewise_client")}
# Further packages that an installation of the nets would need.
OF_MODELS = {"cryptography", "msgspec", "numpy", "onnxruntime", "placewise_core", "placewise_models", "structlog"}
# Further packages that a reader of the log would need.
OF_LOG = {"msgspec", "numpy", "placewise_core", "placewise_log", "pyarrow"}


READERS = ("files", "resources.files", "importlib.resources.files")


def strings_across(package: str, tree: ast.Module) -> list[str]:
    """Strings that name another package of ours or a module of it, as an import by name or a reader of files does."""
    found = []
    for node in nodes(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            match = NAMED.fullmatch(node.value)
            if match and match[1] != package and (package, match[1]) not in ALLOWED:
                found.append(f"{node.lineno}: {node.value}")
    return found


def foreign_resources(package: str, tree: ast.Module) -> list[str]:
    """Calls of `importlib.resources.files` on anything but a literal of the own package, `__name__` or
    `__package__`."""
    found = []
    for node in nodes(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in READERS:
            given = ast.unparse(node.args[0])
            if given not in ("__name__", "__package__") and not given.startswith((f"'{package}'", f"'{package}.")):
                found.append(f"{node.lineno}: {given}")
    return found


def test_every_package_is_looked_at() -> None:
    assert {"placewise_core", "placewise_log", "placewise_models", "placewise_service", "placewise_training"} < set(
        PACKAGES
    )
    assert len(PACKAGES) >= 8


@pytest.mark.parametrize("folder", FOLDERS, ids=PACKAGES)
def test_no_package_reaches_another_by_a_string(folder: Path) -> None:
    found = {str(path): strings_across(folder.name, tree) for path, tree in parsed("[\"']placewise_", folder)}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize("folder", FOLDERS, ids=PACKAGES)
def test_every_package_reads_its_own_files_alone(folder: Path) -> None:
    found = {str(path): foreign_resources(folder.name, tree) for path, tree in parsed(r"\bfiles\(", folder)}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "line",
    [
        'files("placewise_service").joinpath("bundles")',
        'resources.files("placewise_service.data")',
        'importlib.resources.files("placewise_service").joinpath("data")',
        'import_module("placewise_service.settings")',
        'NAME = "placewise_service"; resources.files(NAME)',
    ],
)
def test_a_wall_with_a_hole_is_seen(line: str) -> None:
    tree = ast.parse(line)
    assert strings_across("placewise_core", tree)
    assert foreign_resources("placewise_core", tree) or "import_module" in line
    assert not foreign_resources("placewise_service", ast.parse(line.replace("files(NAME)", "files(__name__)")))


@pytest.mark.parametrize(("package", "others"), [("placewise_models", OF_MODELS), ("placewise_log", OF_LOG)])
def test_nets_and_log_need_nothing_of_a_server(package: str, others: set[str]) -> None:
    imported: set[str] = set()
    for _, tree in parsed("import", ROOT / "service" / package):
        for node in nodes(tree):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.partition(".")[0])
    assert imported - sys.stdlib_module_names <= others


def test_import_linter_looks_at_every_package_and_forgives_no_import() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    assert set(PACKAGES) < set(config["root_packages"])
    assert not config.get("exclude_type_checking_imports", False)
    for contract in config["contracts"]:
        assert not {"ignore_imports", "unmatched_ignore_imports_alerting"} & contract.keys(), contract["name"]
