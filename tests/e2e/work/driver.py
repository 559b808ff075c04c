"""`placewise` with its work done in one of several ways: python -m tests.e2e.work.driver here|processes|ADDRESS …

The command line has no option for processes of this machine alone: this has, so that all ways can be compared.
"""

import sys
from typing import Any

from placewise_service.cli import invoke
from placewise_training.evaluate import command as evaluate
from placewise_training.gate import command as gate
from placewise_training.lab.work.processes import Processes
from placewise_training.policy import train


def main(way: str, *arguments: str) -> int:
    if way == "processes":
        for module in (evaluate, gate, train):
            patched: Any = module
            patched.workers_of = lambda ray: Processes(2)
    given = [*arguments] if way in ("here", "processes") else [*arguments, "--ray", way]
    sys.argv = ["placewise", *given]
    return invoke(given)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
