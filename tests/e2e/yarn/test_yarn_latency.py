"""What Placewise adds to the time from an ask to its last container, on an empty cluster. `make e2e-yarn` runs this.

The same gangs run by turns with and without Placewise on one ResourceManager, so that other load falls on both.
Asynchronous scheduling is on in both. An ApplicationMaster polls every 2 ms.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable

from tests.e2e.machine import processor_times, stolen_pct
from tests.e2e.yarn.yarn_gangs import Driver, Spec, account
from tests.e2e.yarn.yarn_world import MARKS, yarn_world

pytestmark = MARKS
GANGS = 64
_WARM_UP = 4
_EVERY_MS = 800
_SETTINGS = {"placewise.decide-budget-ms": 3000, "yarn.scheduler.capacity.schedule-asynchronously.enable": "true"}


def turns() -> list[Spec]:
    """1 to 4 containers of 1 to 8 GPUs, each gang once without and once with Placewise."""
    specs: list[Spec] = []
    for number in range(_WARM_UP + GANGS):
        ask = {"count": 1 + number % 4, "gpus": 1 << number // 4 % 4}
        for tag in ("placewise=off", "placewise"):
            name = f"{number} {tag}"
            delay_ms = len(specs) * _EVERY_MS
            specs.append(
                {"name": name, "tags": [tag], "delayMs": delay_ms, "waves": [[ask]], "seconds": 0.1, "pollMs": 2}
            )
    return specs


def test_added_time_per_gang(record_property: Callable[[str, object], None]) -> None:
    before = processor_times()
    with yarn_world(_SETTINGS) as world:
        results = Driver(world).start(turns()).results(300)
        found = account(world, results)
    waits_ms: dict[str, list[int]] = {"placewise": [], "placewise=off": []}
    for result in results:
        number, tag = result["name"].split()
        if int(number) >= _WARM_UP:
            waits_ms[tag] += [wave["allocatedMs"] - wave["askedMs"] for wave in result["waves"]]
    (placed, p90), (alone, p90_alone) = (
        (statistics.median(values), statistics.quantiles(values, n=10)[-1]) for values in waits_ms.values()
    )
    words = (
        f"asynchronous scheduling, ask to last container: p50 {placed - alone:+.1f} ms against YARN alone "
        f"(p50 {alone:.0f} ms, p90 {p90_alone:.0f} ms; placed {placed:.0f} ms, {p90:.0f} ms; n {GANGS} each, load "
        f"average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {stolen_pct(before):.0f} % of them stolen)"
    )
    record_property("added time", words)
    print(words)
    assert (found.as_decided, len(found.never_decided)) == (_WARM_UP + GANGS,) * 2, found
    assert all(len(values) == GANGS for values in waits_ms.values())
