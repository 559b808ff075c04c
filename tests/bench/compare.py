"""Two source trees in one sitting: is the newer one slower?

    python -m tests.bench.compare --before TREE [--now TREE] [--rounds 5] [--only WORD] [--json FILE]

Each round starts, for every benchmark, one service of either tree and one bare echo. One client asks the three by
turns, a batch of up to 32 calls each, so that other load on the machine falls on all of them. A tree's figure of a
round is the median latency of its calls over that of the echo's. Its figure is the median of its rounds: each has new
processes, as two processes of one tree differ by several percent. The service's resident memory after each round is
compared, too. The program ends with 1 if a figure of this tree is more than 3 % above the earlier one's.
"""

import argparse
import itertools
import json
import math
import statistics
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import uvloop
from tests.attack.source import Source

from placewise_service.bench.load import Bench, LoadPlan, set_up
from placewise_service.bench.processes import echo_process, service_process
from placewise_service.bench.workload import Workload

ROOT = Path(__file__).parent.parent.parent
_Policies = dict[str, str]
_DEFAULT: _Policies = {}
_PACKED: _Policies = {"before": "consolidate", "now": "consolidate"}  # 0ce0bd2's default; today's is learned
_PRINTED: _Policies = {"before": "proteus", "now": "proteus-paper"}  # one method: `proteus` conserves work now
_BENCHES: dict[str, tuple[str, int, _Policies, int]] = {  # the call, nodes, policy of each tree, batches
    "Place": ("Place", 30, _PACKED, 40),
    "Place, 10 000 nodes": ("Place", 10_000, _PACKED, 15),
    "AdmitOrWait": ("AdmitOrWait", 30, _DEFAULT, 40),
    "AdmitOrWait as printed": ("AdmitOrWait", 30, _PRINTED, 40),
    "Partition": ("Partition", 30, _DEFAULT, 40),
    "harmony": ("Place", 30, {"before": "harmony", "now": "harmony"}, 40),
    "search": ("Place", 30, {"before": "search", "now": "search"}, 40),
}
_WARM_UP, _ECHO = 2, "echo"
_MOST = 1.03

Figures = dict[str, dict[str, list[float]]]
"""By benchmark and tree: the ratio of each round, or the memory in MiB."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Benchmarks of two source trees by turns.")
    parser.add_argument("--before", required=True)
    parser.add_argument("--now", default=str(ROOT))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="")
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    trees = [Source(Path(args.before).resolve(), "before"), Source(Path(args.now).resolve(), "now")]
    names = [name for name in _BENCHES if args.only in name]
    figures: Figures = {row: {"before": [], "now": []} for name in names for row in (name, _memory_of(name))}
    for i in range(args.rounds):
        for name in names:
            for tree, (ratio, memory_mib) in uvloop.run(_round(name, trees)).items():
                figures[name][tree].append(ratio)
                figures[_memory_of(name)][tree].append(memory_mib)
            before, now = (figures[name][tree][-1] for tree in ("before", "now"))
            print(f"round {i + 1}, {name}: before {before:.3f}, now {now:.3f} ({now / before - 1.0:+.1%})", flush=True)
    if args.json:
        Path(args.json).write_text(json.dumps(figures, indent=1))
    return _verdict(figures)


def _memory_of(name: str) -> str:
    return f"{name}, MiB"


async def _round(name: str, trees: list[Source]) -> dict[str, tuple[float, float]]:
    """The ratio of each tree and the memory of its service in MiB, all on new processes."""
    rpc, nodes, policies, batches = _BENCHES[name]
    workloads = {tree.name: Workload("bench", nodes, 32, 4, policies.get(tree.name, "")) for tree in trees}
    async with AsyncExitStack() as stack:
        services = {}
        for tree in trees:
            path = {"PYTHONPATH": tree.environment()["PYTHONPATH"]}
            services[tree.name] = await stack.enter_async_context(service_process(path))
        samples = [await set_up(each.target, rpc, workloads[tree]) for tree, each in services.items()]
        echo = stack.enter_context(echo_process(rpc, samples[-1]))
        plans = {
            tree: LoadPlan(rpc, workloads[tree], (each.target,), echo, batches, 1) for tree, each in services.items()
        }
        benches = {tree: Bench(plan) for tree, plan in plans.items()}
        times_ms = await _measure(benches, batches)
        memory_mib = {tree: each.memory_mib() for tree, each in services.items()}
        for bench in benches.values():
            await bench.close()
    middle = {who: statistics.median(times) for who, times in times_ms.items()}
    return {tree: (middle[tree] / middle[_ECHO], memory_mib[tree]) for tree in benches}


async def _measure(benches: dict[str, Bench], batches: int) -> dict[str, list[float]]:
    """Milliseconds of every call, by the tree and of the echo.

    All orders of the three take turns: a service writes its log a moment after its answers, while the next one is
    asked, so each has to come after each other as often.
    """
    orders = list(itertools.permutations([*benches, _ECHO]))
    times_ms: dict[str, list[float]] = {who: [] for who in orders[0]}
    for index in range(_WARM_UP + batches):
        for who in orders[index % len(orders)]:
            some_ms, _ = await benches.get(who, benches["now"]).round(who == _ECHO, 1)
            times_ms[who] += some_ms if index >= _WARM_UP else ()
    return times_ms


def _verdict(figures: Figures) -> int:
    is_worse = False
    for name, by_tree in figures.items():
        before, now = statistics.median(by_tree["before"]), statistics.median(by_tree["now"])
        is_worse |= now > _MOST * before
        mark = "WORSE" if now > _MOST * before else "ok"
        each = [y / x - 1.0 for x, y in zip(by_tree["before"], by_tree["now"], strict=True)]
        spread = statistics.stdev(each) / math.sqrt(len(each)) if len(each) > 1 else math.nan
        mean = f"mean of the rounds {statistics.fmean(each):+.1%}, its standard error {spread:.1%}"
        print(f"{mark:<7} {name:<27} before {before:.3f}  now {now:.3f}  ({now / before - 1.0:+.1%}; {mean})")
    return 1 if is_worse else 0


if __name__ == "__main__":
    sys.exit(main())
