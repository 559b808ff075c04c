"""`python requirements/wheels.py LOCK…`: every package of a lock has a wheel for each Python and processor we support.

Asks the package index; nothing is installed. Exit code 1 if a wheel is missing. If no index can be reached, it prints
SKIPPED and exits 0.
"""

import itertools
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PYTHONS = ("3.11", "3.12", "3.13")
PROCESSORS = ("x86_64", "aarch64")


def main(locks: Sequence[str]) -> int:
    if resolve("-", PYTHONS[0], PROCESSORS[0], "pip"):
        print("SKIPPED: lock-check: no package index can be reached")
        return 0
    failed = 0
    for lock, python, processor in itertools.product(locks, PYTHONS, PROCESSORS):
        problem = resolve(lock, python, processor)
        if problem:
            failed += 1
            print(f"{lock}: Python {python} on {processor}: {problem}")
    combinations = len(PYTHONS) * len(PROCESSORS)
    print(f"{len(locks)} locks for {combinations} platforms each: {failed} cannot be installed from wheels")
    return 1 if failed else 0


def resolve(lock: str, python: str, processor: str, text: str = "") -> str:
    """Why the lock cannot be installed there from wheels alone; "" if it can."""
    command = [Path(sys.executable).with_name("uv"), "pip", "compile", "--quiet", "--no-config", "--no-deps"]
    platform = [
        "--only-binary",
        ":all:",
        "--python-platform",
        f"{processor}-manylinux_2_28",
        "--python-version",
        python,
    ]
    done = subprocess.run(  # noqa: S603 - our own command
        [*command, *platform, lock], input=text, capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else done.stderr.strip().replace("\n", " ")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
