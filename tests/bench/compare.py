"""Two source trees in one sitting, by turns: is the newer one slower?

    python -m tests.bench.compare --before TREE [--rounds 5] [--json FILE]

Each round runs every benchmark on the earlier tree and on this one, the order swapped from round to round. Every figure
is a ratio to a bare echo of the same run. A tree's figure is the median of its rounds; the program ends with 1 where
this tree's median is more than 3 % above the earlier one's.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

from tests.attack.source import Source

ROOT = Path(__file__).parent.parent.parent
_BENCHES: dict[str, tuple[tuple[str, ...], str]] = {
    "Place": (("place",), "p50_ratio"),
    "Place, 10 000 nodes": (("place", "--nodes", "10000", "--rounds", "15"), "p50_ratio"),
    "AdmitOrWait": (("admit",), "p50_ratio"),
    "Partition": (("partition",), "p50_ratio"),
    "harmony": (("place", "--policy", "harmony"), "p50_ratio"),
    "search": (("place", "--policy", "search"), "p50_ratio"),
}
_MOST = 1.03


def main() -> int:
    parser = argparse.ArgumentParser(description="Benchmarks of two source trees by turns.")
    parser.add_argument("--before", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="")
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    trees = [Source(Path(args.before).resolve(), "before"), Source(ROOT, "now")]
    benches = {name: bench for name, bench in _BENCHES.items() if args.only in name}
    figures: dict[str, dict[str, list[float]]] = {name: {"before": [], "now": []} for name in benches}
    for i in range(args.rounds):
        for name, (words, key) in benches.items():
            for tree in trees if i % 2 == 0 else reversed(trees):
                figures[name][tree.name].append(_ratio(tree, words, key))
                print(f"round {i + 1}, {name}, {tree.name}: {figures[name][tree.name][-1]:.3f}", flush=True)
    if args.json:
        Path(args.json).write_text(json.dumps(figures, indent=1))
    return _verdict(figures)


def _ratio(tree: Source, words: tuple[str, ...], key: str) -> float:
    done = tree.run(["-m", "placewise_service.cli", "bench", *words, "--json"], timeout_s=600.0)
    if done.returncode:
        raise SystemExit(f"{tree.name}: bench {' '.join(words)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return float(json.loads(done.stdout)[key])


def _verdict(figures: dict[str, dict[str, list[float]]]) -> int:
    is_slower = False
    for name, by_tree in figures.items():
        before, now = statistics.median(by_tree["before"]), statistics.median(by_tree["now"])
        is_slower |= now > _MOST * before
        mark = "SLOWER" if now > _MOST * before else "ok"
        print(f"{mark:<7} {name:<22} before {before:.3f}  now {now:.3f}  ({now / before - 1.0:+.1%})")
    return 1 if is_slower else 0


if __name__ == "__main__":
    sys.exit(main())
