"""Builds the adapter's jar and fetches Hadoop by Maven, for the tests against a real YARN.

    python -m tests.e2e.yarn.yarn_artefacts

Ends with 75 where a JDK or Maven is missing, or Maven cannot fetch: the reason is printed. Nothing of Hadoop is kept
in the repository.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[3] / "clients" / "yarn"
JAR = PROJECT / "target" / "placewise-yarn.jar"
HADOOP = PROJECT / "target" / "hadoop"
SHELL = PROJECT / "target" / "shell"
DRIVER = PROJECT / "target" / "test-classes"
CANNOT = 75
_TIMEOUT_S = 420
# The application of Hadoop that runs a shell command in containers; its last release needs clients that Hadoop dropped.
_SHELL = (
    "org.apache.hadoop:hadoop-yarn-applications-distributedshell:3.4.2",
    "com.sun.jersey:jersey-client:1.19.4",
    "com.sun.jersey:jersey-core:1.19.4",
)


class MissingError(Exception):
    """The tests cannot run here; the message tells the reason."""


def missing() -> str:
    """The programs that are not here, or ""."""
    lacking = [name for name in ("java", "javac", "mvn") if shutil.which(name) is None]
    return f"not installed: {', '.join(lacking)}" if lacking else ""


def _maven(*arguments: str) -> None:
    command = ["mvn", "-q", "-B", "-Dstyle.color=never", *arguments]
    try:
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise MissingError(f"mvn {arguments[0]} took longer than {_TIMEOUT_S} s") from None
    if done.returncode != 0:
        text = (done.stdout + done.stderr).strip()
        if "Could not transfer" in text or "could not be resolved" in text or "Cannot access" in text:
            raise MissingError(f"Maven cannot fetch: {text[:300]}")
        raise SystemExit(text)


def build(hadoop: str = "") -> None:
    """The jar, its driver for tests, and what YARN's daemons and clients need. Raises MissingError."""
    if reason := missing():
        raise MissingError(reason)
    version = [f"-Dhadoop.version={hadoop}"] if hadoop else []
    if not (HADOOP / ".complete").exists():
        _maven("dependency:copy-dependencies", "-DincludeScope=provided", f"-DoutputDirectory={HADOOP}", *version)
        for artefact in _SHELL:
            _maven("dependency:copy", f"-Dartifact={artefact}", f"-DoutputDirectory={SHELL}")
        (HADOOP / ".complete").touch()
    _maven("package", *version)


def main() -> int:
    """Returns the exit code: 75 if the tests cannot run here."""
    try:
        build(os.environ.get("PLACEWISE_TEST_HADOOP", ""))
    except MissingError as reason:
        print(f"YARN cannot be tested here: {reason}")
        return CANNOT
    return 0


if __name__ == "__main__":
    sys.exit(main())
