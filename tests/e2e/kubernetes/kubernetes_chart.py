"""Renders the Helm chart: with Helm if installed, else with Go's own template engine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from tests.e2e.kubernetes.kubernetes_scenario import REPOSITORY

CHART = REPOSITORY / "deploy" / "kubernetes" / "chart"
RENDERER = REPOSITORY / "tests" / "e2e" / "kubernetes" / "kubernetes_render"
RELEASE, NAMESPACE = "placewise-kubernetes", "placewise"


class RendererUnavailableError(Exception):
    """Neither Helm nor Go is installed."""


def render(overrides: Mapping[str, Any], scratch: Path) -> str:
    """The chart's manifests, as one stream of YAML documents.

    Raises:
        RendererUnavailableError: see there.
        subprocess.CalledProcessError: the chart does not render.
    """
    values = _merged(yaml.safe_load((CHART / "values.yaml").read_text()), overrides)
    path = scratch / "values.json"
    path.write_text(json.dumps(values))
    if helm := shutil.which("helm"):
        command = [helm, "template", RELEASE, str(CHART), "--namespace", NAMESPACE, "--values", str(path)]
        return _run(command, "")
    return _run([str(_go_renderer(scratch)), str(CHART), RELEASE, NAMESPACE], path.read_text())


def documents(text: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(text) if document]


def _go_renderer(scratch: Path) -> Path:
    go = shutil.which("go") or next((str(path) for path in sorted(Path("/usr/lib").glob("go-1.*/bin/go"))), None)
    if go is None:
        raise RendererUnavailableError("neither helm nor go is installed")
    binary = scratch / "render"
    if not binary.exists():
        environ = {**os.environ, "GO111MODULE": "off", "GOCACHE": str(scratch / "gocache"), "CGO_ENABLED": "0"}
        subprocess.run([go, "build", "-o", str(binary), "."], cwd=RENDERER, env=environ, check=True)
    return binary


def _run(command: list[str], standard_input: str) -> str:
    return subprocess.run(command, input=standard_input, capture_output=True, text=True, check=True).stdout


def _merged(values: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in overrides.items():
        inner = values.get(key)
        values[key] = _merged(inner, value) if isinstance(inner, dict) and isinstance(value, Mapping) else value
    return values
