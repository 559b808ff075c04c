"""Runs every release and every suite against schedulers, and writes docs/callers.json and docs/callers.md.

`make e2e-all` runs this; `ONLY="contract scale"` takes some of the suites, and leaves the others' last results as they
are. The record says "not run" of a scheduler that cannot be had. All take about two hours on two cores.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

from tests.callers import page, record
from tests.callers.suites import COMMANDS
from tests.e2e.machine import processor_times, stolen_pct

ROOT = Path(__file__).parents[2]


def run(name: str) -> record.Json:
    """The suite's entry of the record."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "junit.xml"
        options = f"{os.environ.get('PYTEST_ADDOPTS', '')} -o junit_family=xunit1 --junitxml={path}"
        before = processor_times()
        environment = {**os.environ, "PYTEST_ADDOPTS": options}
        code = subprocess.run(COMMANDS[name], cwd=ROOT, env=environment, check=False).returncode
        machine = {
            "commit": _git("rev-parse", "--short=8", "HEAD")
            + ("+changes" if _git("status", "--porcelain", "--", ".", ":!docs/callers.*") else ""),
            "command": " ".join(Path(word).name if word == sys.executable else word for word in COMMANDS[name]),
            "exit_code": code,
            "cores": os.cpu_count(),
            "nice": os.getpriority(os.PRIO_PROCESS, 0),
            "load_average": round(os.getloadavg()[1], 1),
            "stolen_pct": round(stolen_pct(before), 1),
        }
        try:
            return {**machine, **record.read_suite(path)}
        except (OSError, ET.ParseError):
            nothing = {"versions": [], "counts": {}, "failed": [], "skipped_for": {}, "tests": {}, "figures": []}
            return {**machine, "date": datetime.datetime.now(datetime.UTC).date().isoformat(), "took_s": 0, **nothing}


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def main(names: list[str]) -> int:
    """Returns 1 if a suite failed."""
    known = json.loads(record.PATH.read_text()) if record.PATH.exists() else {"suites": {}}
    for name in names or COMMANDS:
        known["suites"][name] = run(name)
        record.PATH.write_text(json.dumps(known, indent=1) + "\n")
        page.PATH.write_text(page.text(known))
    return int(any(known["suites"][name]["exit_code"] for name in names or COMMANDS))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
