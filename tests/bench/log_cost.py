"""Cost of the decision log for a Place: logging off, and on with observations and alternatives of 0, 1 and 100 %.

    python -m tests.bench.log_cost [--rounds 5] [--batches 40] [--stretch 1] [--shares "1 %"] [--json FILE]

Each round starts new services, one per side and a second one without a log (the control), and a bare echo. One client
asks them by turns in random order, a batch of up to 32 calls each, first one call after the other, then by 16 callers.
`--shares` names the sides with a log, all by default: fewer take less time for as many turns.
`--stretch N` makes a turn N batches in a row. In a turn of one batch, most of a service's log is written while others
have their turns, and the service has rested long enough for each of its studies. Only longer stretches show throughput
with the log's work. `cpu` is the service's CPU time per call, whenever it was spent, that of Redis apart.

A figure is over that of the service without a log in the same round; the mean of the rounds has its 95 % interval. The
control shows how far two equal processes differ. The program ends with 1 if the log with the share of 1 %, which is the
default, costs more than 3 % of p50 or of rps, by the mean.
"""

import argparse
import asyncio
import math
import os
import random
import statistics
import sys
from collections.abc import Collection
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import uvloop
from scipy import special

from placewise_core.basics.frozen import frozen
from placewise_service.bench.load import Bench, LoadPlan, set_up
from placewise_service.bench.processes import Service, echo_process, service_process
from placewise_service.bench.workload import Workload

_OFF, _CONTROL, _ECHO = "off", "off again", "echo"
SHARES = {_OFF: "", _CONTROL: "", "0 %": "0", "1 %": "0.01", "100 %": "1"}  # "": no log
_UNLOGGED = "tests.bench.unlogged"
_HELD_TO, _MOST = "1 %", 1.03
_WARM_UP, _CALLERS = 2, 16
_LAST_STUDIES_S = 0.5  # the log of the last calls is written, and their studies are done


@frozen
class Sitting:
    """One round: p50 and calls per second by who was asked, the echo among them; CPU time per call by service."""

    p50_ms: dict[str, float]
    rps: dict[str, float]
    cpu_ms: dict[str, float]


def main() -> int:
    parser = argparse.ArgumentParser(description="Cost of the decision log.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--stretch", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=30)
    parser.add_argument("--shares", nargs="+", choices=[*SHARES][2:], default=[*SHARES][2:])
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    sittings, sides = [], (_OFF, _CONTROL, *args.shares)
    for i in range(args.rounds):
        workload = Workload("bench", args.nodes, 32, 4)
        sittings.append(uvloop.run(sitting(workload, args.batches, args.stretch, sides)))
        print(f"round {i + 1}: {line_of(sittings[-1])}", flush=True)
    if args.json:
        Path(args.json).write_text(msgspec.json.encode(sittings).decode())
    return verdict(sittings)


async def sitting(workload: Workload, batches: int, stretch: int = 1, sides: Collection[str] = (*SHARES,)) -> Sitting:
    """These sides by turns, on new processes."""
    async with AsyncExitStack() as stack:
        services = {}
        for name in sides:
            share = SHARES[name]
            settings = {f"PLACEWISE_DECLOG__{which}_SHARE": share or "0" for which in ("OBSERVE", "ALTERNATIVES")}
            settings["PLACEWISE_DECLOG__VIEWS"] = str(bool(share))
            module = {} if share else {"module": _UNLOGGED}
            services[name] = await stack.enter_async_context(service_process(settings, **module))
        samples = [await set_up(service.target, "Place", workload) for service in services.values()]
        echo = stack.enter_context(echo_process("Place", samples[-1]))
        benches = {
            name: Bench(LoadPlan("Place", workload, (service.target,), echo, batches, 1))
            for name, service in services.items()
        }
        began_s = {name: _cpu_s(service) for name, service in services.items()}
        alone, _, one_by_one = await _by_turns(benches, batches, 1, stretch)
        _, per_s, beside = await _by_turns(benches, batches, _CALLERS, stretch)
        await asyncio.sleep(_LAST_STUDIES_S)
        cpu_ms = {
            name: 1000.0 * (_cpu_s(service) - began_s[name]) / (one_by_one[name] + beside[name])
            for name, service in services.items()
        }
        for bench in benches.values():
            await bench.close()
    return Sitting(alone, per_s, cpu_ms)


def _cpu_s(service: Service) -> float:
    """CPU time of the process so far, with that of the kernel for it."""
    fields = Path(f"/proc/{service.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _by_turns(
    benches: dict[str, Bench], batches: int, callers: int, stretch: int
) -> tuple[dict[str, float], dict[str, float], dict[str, int]]:
    """(milliseconds of a call, calls per second, calls) of each: medians of calls and turns, and all calls.

    Each batch has an order of its own: a service writes its log a moment after its answers, while the next one is
    asked. In a fixed order one side alone came after the echo, which rests: two equal services then differed by
    3.4 ± 2.2 % of rps.
    """
    turns = [*benches, _ECHO]
    rng = random.Random(len(turns))
    times_ms: dict[str, list[float]] = {who: [] for who in turns}
    rates: dict[str, list[float]] = {who: [] for who in turns}
    calls = dict.fromkeys(turns, 0)
    for index in range(_WARM_UP + batches // stretch):
        for who in rng.sample(turns, len(turns)):
            bench = benches.get(who, benches[_OFF])
            found = [await bench.round(who == _ECHO, callers) for _ in range(stretch)]
            some_ms = [each for times, _ in found for each in times]
            calls[who] += len(some_ms)
            if index >= _WARM_UP:
                times_ms[who] += some_ms
                rates[who].append(len(some_ms) / sum(spent_s for _, spent_s in found))
    p50_ms, per_s = [{who: statistics.median(of[who]) for who in turns} for of in (times_ms, rates)]
    return p50_ms, per_s, calls


def line_of(one: Sitting) -> str:
    """Ratios to the echo."""
    parts = [f"{who} p50 {one.p50_ms[who] / one.p50_ms[_ECHO]:.2f}" for who in one.cpu_ms]
    return ", ".join([*parts, *(f"{who} rps {one.rps[who] / one.rps[_ECHO]:.3f}" for who in one.cpu_ms)])


def interval(values: list[float]) -> tuple[float, float]:
    """Mean and half of its 95 % interval by Student's t; no interval for one value."""
    if len(values) < 2:
        return statistics.fmean(values), math.nan
    spread = statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values), float(special.stdtrit(len(values) - 1, 0.975)) * spread


def verdict(sittings: list[Sitting]) -> int:
    """Prints each side against no log; 1 if 1 % costs too much."""
    is_slower = False
    for who in [name for name in sittings[0].cpu_ms if name != _OFF]:
        p50, p50_half = interval([one.p50_ms[who] / one.p50_ms[_OFF] for one in sittings])
        rps, rps_half = interval([one.rps[who] / one.rps[_OFF] for one in sittings])
        if who == _HELD_TO:
            is_slower = p50 > _MOST or rps < 1.0 / _MOST
        cpu, cpu_half = interval([one.cpu_ms[who] / one.cpu_ms[_OFF] for one in sittings])
        changes = f"p50 {p50 - 1.0:+.1%} ± {p50_half:.1%}, rps {rps - 1.0:+.1%} ± {rps_half:.1%}"
        changes += f", cpu {cpu - 1.0:+.1%} ± {cpu_half:.1%}"
        middle = [statistics.median(one.p50_ms[who] / one.p50_ms[_ECHO] for one in sittings)]
        middle.append(statistics.median(one.rps[who] / one.rps[_ECHO] for one in sittings))
        print(f"{who:<10} {changes}   (of the echo: p50 {middle[0]:.2f}, rps {middle[1]:.3f})")
    print("SLOWER" if is_slower else "ok", f"{_HELD_TO} against no log, {_MOST - 1.0:.0%} allowed")
    return int(is_slower)


if __name__ == "__main__":
    sys.exit(main())
