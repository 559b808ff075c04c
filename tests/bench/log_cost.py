"""Cost of the decision log for a Place: logging off, and on with observations and alternatives of 0, 1 and 100 %.

    python -m tests.bench.log_cost [--rounds 5] [--batches 40] [--json FILE]

Each round starts new services, one per side and a second one without a log (the control), and a bare echo. One client
asks them by turns in random order, a batch of up to 32 calls each, first one call after the other, then by 16 callers.
A figure is over that of the service without a log in the same round; the mean of the rounds has its 95 % interval. The
control shows how far two equal processes differ. The program ends with 1 if the log with the share of 1 %, which is the
default, costs more than 3 % of p50 or of rps, by the mean.
"""

import argparse
import json
import math
import random
import statistics
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import uvloop
from scipy import special

from placewise_core.basics.frozen import frozen
from placewise_service.bench.load import Bench, LoadPlan, set_up
from placewise_service.bench.processes import echo_process, service_process
from placewise_service.bench.workload import Workload

_OFF, _CONTROL, _ECHO = "off", "off again", "echo"
SHARES = {_OFF: "", _CONTROL: "", "0 %": "0", "1 %": "0.01", "100 %": "1"}  # "": no log
_UNLOGGED = "tests.bench.unlogged"
_HELD_TO, _MOST = "1 %", 1.03
_WARM_UP, _CALLERS = 2, 16


@frozen
class Sitting:
    """One round: p50 and calls per second by who was asked, the echo among them."""

    p50_ms: dict[str, float]
    rps: dict[str, float]


def main() -> int:
    parser = argparse.ArgumentParser(description="Cost of the decision log.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--nodes", type=int, default=30)
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    sittings = []
    for i in range(args.rounds):
        sittings.append(uvloop.run(sitting(Workload("bench", args.nodes, 32, 4), args.batches)))
        print(f"round {i + 1}: {line_of(sittings[-1])}", flush=True)
    if args.json:
        Path(args.json).write_text(json.dumps([{"p50_ms": s.p50_ms, "rps": s.rps} for s in sittings], indent=1))
    return verdict(sittings)


async def sitting(workload: Workload, batches: int) -> Sitting:
    """All sides by turns, on new processes."""
    async with AsyncExitStack() as stack:
        targets = {}
        for name, share in SHARES.items():
            settings = {f"PLACEWISE_DECLOG__{which}_SHARE": share or "0" for which in ("OBSERVE", "ALTERNATIVES")}
            settings["PLACEWISE_DECLOG__VIEWS"] = str(bool(share))
            module = {} if share else {"module": _UNLOGGED}
            targets[name] = (await stack.enter_async_context(service_process(settings, **module))).target
        samples = [await set_up(target, "Place", workload) for target in targets.values()]
        echo = stack.enter_context(echo_process("Place", samples[-1]))
        benches = {name: Bench(LoadPlan("Place", workload, (to,), echo, batches, 1)) for name, to in targets.items()}
        alone, _ = await _by_turns(benches, batches, 1)
        _, per_s = await _by_turns(benches, batches, _CALLERS)
        for bench in benches.values():
            await bench.close()
    return Sitting(alone, per_s)


async def _by_turns(benches: dict[str, Bench], batches: int, callers: int) -> tuple[dict[str, float], dict[str, float]]:
    """(milliseconds of a call, calls per second) of each, medians of calls and batches.

    Each batch has an order of its own: a service writes its log a moment after its answers, while the next one is
    asked. In a fixed order one side alone came after the echo, which rests: two equal services then differed by
    3.4 ± 2.2 % of rps.
    """
    turns = [*benches, _ECHO]
    rng = random.Random(len(turns))
    times_ms: dict[str, list[float]] = {who: [] for who in turns}
    rates: dict[str, list[float]] = {who: [] for who in turns}
    for index in range(_WARM_UP + batches):
        for who in rng.sample(turns, len(turns)):
            some_ms, spent_s = await benches.get(who, benches[_OFF]).round(who == _ECHO, callers)
            if index >= _WARM_UP:
                times_ms[who] += some_ms
                rates[who].append(len(some_ms) / spent_s)
    return {who: statistics.median(times_ms[who]) for who in turns}, {
        who: statistics.median(rates[who]) for who in turns
    }


def line_of(one: Sitting) -> str:
    """Ratios to the echo."""
    parts = [f"{who} p50 {one.p50_ms[who] / one.p50_ms[_ECHO]:.2f}" for who in SHARES]
    return ", ".join([*parts, *(f"{who} rps {one.rps[who] / one.rps[_ECHO]:.3f}" for who in SHARES)])


def interval(values: list[float]) -> tuple[float, float]:
    """Mean and half of its 95 % interval by Student's t; no interval for one value."""
    if len(values) < 2:
        return statistics.fmean(values), math.nan
    spread = statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values), float(special.stdtrit(len(values) - 1, 0.975)) * spread


def verdict(sittings: list[Sitting]) -> int:
    """Prints each side against no log; 1 if 1 % costs too much."""
    is_slower = False
    for who in [name for name in SHARES if name != _OFF]:
        p50, p50_half = interval([one.p50_ms[who] / one.p50_ms[_OFF] for one in sittings])
        rps, rps_half = interval([one.rps[who] / one.rps[_OFF] for one in sittings])
        if who == _HELD_TO:
            is_slower = p50 > _MOST or rps < 1.0 / _MOST
        changes = f"p50 {p50 - 1.0:+.1%} ± {p50_half:.1%}, rps {rps - 1.0:+.1%} ± {rps_half:.1%}"
        middle = [statistics.median(one.p50_ms[who] / one.p50_ms[_ECHO] for one in sittings)]
        middle.append(statistics.median(one.rps[who] / one.rps[_ECHO] for one in sittings))
        print(f"{who:<10} {changes}   (of the echo: p50 {middle[0]:.2f}, rps {middle[1]:.3f})")
    print("SLOWER" if is_slower else "ok", f"{_HELD_TO} against no log, {_MOST - 1.0:.0%} allowed")
    return int(is_slower)


if __name__ == "__main__":
    sys.exit(main())
