"""What `placewise simulate` answers for five small runs of every placement policy and of every admission policy:
event hashes, and the results of the runs. And hashes of pipelines and of divisible tasks."""

import contextlib
import io
import json
from typing import Any

from tests.golden.net import rows
from tests.golden.net.rows import Row
from tests.golden.net.seams import admit_policies, place_policies, simulate, simulate_heat, simulate_pipelines

FILES = {"avx512": "simulations.jsonl", "avx2": "simulations-avx2.jsonl"}
FILE = FILES.get(rows.VECTOR_UNITS, "")
"""A hash has no margin, so each way of rounding has a file; "" where there is none."""
SEEDS = 5
_RUN = ("--workload", "harmony", "--gpus-per-node", "4", "--nodes", "3", "--jobs", "60", "--seeds", str(SEEDS))
_ELASTIC = ("--workload", "elastic", "--gpus-per-node", "4", "--nodes", "3", "--jobs", "25", "--seeds", str(SEEDS))
_CLOCKED = frozenset({"decisions_per_s", "decisions_per_s_ci95", "wall_s", "wall_s_ci95"})
# `ldwp` places pipelines, which `placewise simulate` has none of; the shipped bundle has no nets for the others.
_NOT_SIMULATED = frozenset({"ldwp", "harmony-paper", "ldwp-paper"})
_PIPING = (
    *(("load-balance", units) for units in ("iawp", "ect", "pats", "random")),
    *((policy, "iawp") for policy in ("ldwp", "pats", "random")),
)


def contenders() -> list[str]:
    """Names of the rows: every placement policy, and every admission policy."""
    placing = [f"place/{name}" for name in place_policies() if name not in _NOT_SIMULATED]
    piping = [f"pipelines/{policy}+{units}" for policy, units in _PIPING]
    return [*placing, *(f"admit/{name}" for name in admit_policies()), *piping, "heat"]


def simulated(contender: str) -> Row:
    """One row: hashes of the runs, and their results, without those that depend on the machine."""
    kind, _, policy = contender.partition("/")
    if kind == "heat":
        return {"id": contender, "event_hashes": simulate_heat(SEEDS)}
    if kind == "pipelines":
        placing, units = policy.split("+")
        return {"id": contender, "event_hashes": simulate_pipelines(placing, units, SEEDS)}
    args = [*_RUN, "--policy", policy] if kind == "place" else [*_ELASTIC, "--admit", policy]
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        simulate([*args, "--json"])
    return {"id": contender, "run": _timeless(json.loads(shown.getvalue()))}


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(item) for key, item in value.items() if key not in _CLOCKED}
    return value
