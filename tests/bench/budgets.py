"""Runs the benchmarks and compares them with their budgets; ends with 1 if one is missed.

    python tests/bench/budgets.py [--policy NAME] [--learned [--bundles DIR]]

Latencies are ratios to a bare gRPC echo in the same run, so that they mean the same on every machine; only the time to
ready and the memory are absolute.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class BudgetLine:
    """One budget: the figure, and its limit."""

    name: str
    measured: float
    limit: float

    @property
    def is_kept(self) -> bool:
        return self.measured <= self.limit

    def __str__(self) -> str:
        return f"{'ok    ' if self.is_kept else 'MISSED'}  {self.name:<52} {self.measured:>8.2f}  ≤ {self.limit:g}"


def bench(*words: str) -> dict[str, Any]:
    """The figures of one `placewise bench` run."""
    command = [sys.executable, "-m", "placewise_service.cli", "bench", *words, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def budgets(policy: Sequence[str]) -> list[BudgetLine]:
    """Every budget, measured."""
    place = bench("place", *policy)
    large = bench("place", "--nodes", "10000", *policy)
    rows = [
        BudgetLine("Place p50 / echo p50, 30 nodes", place["p50_ratio"], 2.5),
        BudgetLine("Place p99 / p50, 30 nodes", place["p99_over_p50"], 4.0),
        BudgetLine("Place p50, 10 000 nodes / 30 nodes (in echoes)", large["p50_ratio"] / place["p50_ratio"], 3.0),
        BudgetLine("memory of the service at 10 000 nodes, MiB", large["memory_mib"], 400.0),
        BudgetLine("start to ready, seconds", place["ready_s"], 3.0),
    ]
    for rpc in ("admit", "partition"):
        figures = bench(rpc)
        rows.append(BudgetLine(f"{figures['rpc']} p50 / echo p50, 30 nodes", figures["p50_ratio"], 2.5))
        rows.append(BudgetLine(f"{figures['rpc']} p99 / p50, 30 nodes", figures["p99_over_p50"], 4.0))
    return rows


def learned_budgets(bundles: Sequence[str]) -> list[BudgetLine]:
    """Those of the learned policies, which need a bundle with a policy net; decisions per second as ms of each."""
    figures = bench("learned", *bundles)
    large = bench("place", "--policy", "harmony", "--nodes", "10000", *bundles)
    return [
        BudgetLine("harmony p50 / echo p50, 30 nodes", figures["harmony_p50_ratio"], 4.0),
        BudgetLine("harmony p99 / p50", figures["harmony_p99_over_p50"], 4.0),
        BudgetLine(
            "harmony p50, 10 000 nodes / 30 nodes (in echoes)", large["p50_ratio"] / figures["harmony_p50_ratio"], 3.0
        ),
        BudgetLine("search p50 / echo p50, 30 nodes", figures["search_p50_ratio"], 8.0),
        BudgetLine("search p99 / p50", figures["search_p99_over_p50"], 4.0),
        BudgetLine("ms per learned decision, 256 in a request", 1000.0 / figures["decisions_per_s_request"], 1.0),
    ]


def main() -> int:
    """Prints the table; returns 1 if a budget is missed."""
    parser = argparse.ArgumentParser(description="Benchmarks against their budgets.")
    parser.add_argument("--policy", default="", help="Placement policy; empty: the service's default.")
    parser.add_argument("--learned", action="store_true", help="The learned policies instead.")
    parser.add_argument("--bundles", default="", help="Folder of bundles for them; empty: the shipped one.")
    args = parser.parse_args()
    if args.learned:
        rows = learned_budgets(["--bundles", args.bundles] if args.bundles else [])
    else:
        rows = budgets(["--policy", args.policy] if args.policy else [])
    print("\n".join(str(row) for row in rows))
    return 0 if all(row.is_kept for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
