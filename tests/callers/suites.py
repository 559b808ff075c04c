"""The suites of `make e2e-all` and their commands: every release, and every scheduler that can be had."""

from __future__ import annotations

import sys

_PYTEST = [sys.executable, "-m", "pytest", "-q"]
_OTHER_HADOOPS = {
    f"yarn-{release}": [f"PLACEWISE_TEST_HADOOP={release}", "YARN_TESTS=-k 'twenty or manager_killed'"]
    for release in ("3.4.2", "3.4.3")
}
OF_SOME_TESTS = {*_OTHER_HADOOPS, "yarn-scale"}
COMMANDS = {
    "contract": [*_PYTEST, "tests/contract/adapters"],
    "scale": [*_PYTEST, "-m", "e2e_heavy", "tests/bench/test_slurm_scale.py", "tests/bench/test_kubernetes_scale.py"],
    **{f"slurm-{release}": ["make", "e2e-slurm", f"SLURM={release}"] for release in ("22.05", "24.11", "26.05")},
    "kubernetes": ["make", "e2e-kubernetes"],
    "volcano": ["make", "e2e-volcano"],
    "yarn": ["make", "e2e-yarn"],
    **{name: ["make", "e2e-yarn", *variables] for name, variables in _OTHER_HADOOPS.items()},
    "yarn-scale": [*_PYTEST, "-m", "e2e_heavy", "tests/bench/test_yarn_scale.py"],
}
