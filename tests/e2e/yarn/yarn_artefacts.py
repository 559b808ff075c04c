"""Builds the adapter's jar and fetches Hadoop by Maven, for the tests against a real YARN.

    python -m tests.e2e.yarn.yarn_artefacts

Ends with 75 where a JDK or Maven is missing, or Maven cannot fetch in time: the reason is the one line on standard
output. PLACEWISE_TEST_MAVEN_LIMIT_S bounds all that Maven does in one go. PLACEWISE_TEST_HADOOP=3.4.2 runs the same jar
on another release. Nothing of Hadoop is kept in the repository.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

PROJECT = Path(__file__).parents[3] / "clients" / "yarn"
JAR = PROJECT / "target" / "placewise-yarn.jar"
# A release to run on instead; the jar is always built against that of pom.xml.
RELEASE = os.environ.get("PLACEWISE_TEST_HADOOP", "")
HADOOP = PROJECT / "target" / (f"hadoop-{RELEASE}" if RELEASE else "hadoop")
SHELL = PROJECT / "target" / "shell"
DRIVER = PROJECT / "target" / "test-classes"
CANNOT = 75
_LIMIT_S = float(os.environ.get("PLACEWISE_TEST_MAVEN_LIMIT_S", "900"))
# The application of Hadoop that runs a shell command in containers; its last release needs clients that Hadoop dropped.
_SHELL = (
    "org.apache.hadoop:hadoop-yarn-applications-distributedshell:3.4.2",
    "com.sun.jersey:jersey-client:1.19.4",
    "com.sun.jersey:jersey-core:1.19.4",
)
MAPREDUCE = PROJECT / "target" / "mapreduce"
_MAPREDUCE = [
    *(
        f"org.apache.hadoop:hadoop-mapreduce-client-{part}:3.5.0"
        for part in ("app", "common", "core", "jobclient", "shuffle")
    ),
    "org.apache.hadoop:hadoop-mapreduce-client-jobclient:3.5.0:jar:tests",  # a job whose tasks sleep
    "io.netty:netty-codec-http:4.1.130.Final",
]
_NOT_FETCHED = ("Could not transfer", "could not be resolved", "Cannot access", "Unknown host")


class MissingError(Exception):
    """The tests cannot run here; the message tells the reason."""


def missing() -> str:
    """The programs that are not here, or ""."""
    lacking = [name for name in ("java", "javac", "mvn") if shutil.which(name) is None]
    return f"not installed: {', '.join(lacking)}" if lacking else ""


def _maven(began_s: float, *arguments: str) -> None:
    command = ["mvn", "-q", "-B", "-Dstyle.color=never", *arguments]
    left = max(1.0, began_s + _LIMIT_S - time.monotonic())
    try:
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False, timeout=left)
    except subprocess.TimeoutExpired:
        raise MissingError(f"Maven did not end within {_LIMIT_S:.0f} s") from None
    if done.returncode != 0:
        text = (done.stdout + done.stderr).strip()
        if any(sign in text for sign in _NOT_FETCHED):
            raise MissingError(f"Maven cannot fetch: {' '.join(text.split())[:300]}")
        raise SystemExit(text)


def build() -> None:
    """The jar, its driver for tests, and what YARN's daemons and clients need. Raises MissingError."""
    if reason := missing():
        raise MissingError(reason)
    version = [f"-Dhadoop.version={RELEASE}"] if RELEASE else []
    began_s = time.monotonic()
    if not (HADOOP / ".complete").exists():
        _maven(
            began_s, "dependency:copy-dependencies", "-DincludeScope=provided", f"-DoutputDirectory={HADOOP}", *version
        )
        for artefact in _SHELL:
            _maven(began_s, "dependency:copy", f"-Dartifact={artefact}", f"-DoutputDirectory={SHELL}")
        (HADOOP / ".complete").touch()
    _maven(began_s, "package")


def fetch_mapreduce() -> None:
    """MapReduce, for the one test that needs it. Raises MissingError."""
    began_s = time.monotonic()  # not that of the suite, which may take longer than the limit
    if not (MAPREDUCE / ".complete").exists():
        for artefact in _MAPREDUCE:
            _maven(began_s, "dependency:copy", f"-Dartifact={artefact}", f"-DoutputDirectory={MAPREDUCE}")
        (MAPREDUCE / ".complete").touch()


def main() -> int:
    """Returns the exit code: 75 if the tests cannot run here."""
    try:
        build()
    except MissingError as reason:
        print(f"YARN cannot be tested here: {reason}")
        return CANNOT
    return 0


if __name__ == "__main__":
    sys.exit(main())
