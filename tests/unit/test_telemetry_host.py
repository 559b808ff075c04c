"""ONNX Runtime's own telemetry is off before it is imported, regardless of the environment."""

import ast
import os
import subprocess
import sys

import pytest
from tests.fakes.quick.sources import ROOT, nodes, parsed

RUNTIME = "onnxruntime"
# Their first file, which Python runs before any other of them, sets the variable.
GUARDED = ("placewise_models", "placewise_training")


def imported(tree: ast.Module) -> set[str]:
    """Top-level names of the packages that a file imports, wherever in it."""
    names: set[str] = set()
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names


def test_only_packages_that_switch_it_off_import_the_runtime() -> None:
    users = [path for path, tree in parsed(RUNTIME) if RUNTIME in imported(tree)]
    assert len(users) > 5
    assert [str(path) for path in users if not set(GUARDED) & set(path.parts)] == []


@pytest.mark.process
@pytest.mark.parametrize("package", GUARDED)
@pytest.mark.parametrize("printed", ["", "0"])
def test_a_package_switches_it_off_before_its_first_module(package: str, printed: str) -> None:
    program = f"import sys, os, {package}; print(os.environ['ORT_DISABLE_TELEMETRY'], '{RUNTIME}' in sys.modules)"
    environment = {**os.environ, "ORT_DISABLE_TELEMETRY": printed}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "False"]


def test_the_image_and_the_compose_file_say_it_too() -> None:
    assert "ORT_DISABLE_TELEMETRY=1" in (ROOT / "deploy/Dockerfile").read_text()
    assert 'ORT_DISABLE_TELEMETRY: "1"' in (ROOT / "docker-compose.yml").read_text()
