"""What Placewise adds to the time from an ask to its last container, on an empty cluster. `make e2e-yarn` runs this.

The same gangs run by turns with and without Placewise on one ResourceManager, so that other load falls on both.
Asynchronous scheduling is on in both. An ApplicationMaster polls every 2 ms.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable

from tests.e2e.machine import processor_times, stolen_pct
from tests.e2e.yarn.yarn_cluster import wait_for
from tests.e2e.yarn.yarn_gangs import Driver, Spec, account
from tests.e2e.yarn.yarn_world import MARKS, yarn_world

pytestmark = MARKS
GANGS = 64
_WARM_UP = 4
_EVERY_MS = 800
_MOST_ADDED_MS = 10
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
    assert placed - alone <= _MOST_ADDED_MS


def test_the_first_question_of_a_fresh_resource_manager_is_in_time(
    record_property: Callable[[str, object], None],
) -> None:
    """Three times, with the default budget of 100 ms."""
    took_ms = []
    with yarn_world() as world:
        for number in range(3):
            world.yarn.kill("rm")
            world.yarn.start_rm()
            wait_for(lambda: world.yarn.running_nodes() == world.known_nodes() == 4, "four nodes to return", 60)
            wait_for(lambda: world.counted("Asked") == 0, "the counters of the new one", 60)
            spec = {"name": f"first-{number}", "waves": [[{"count": 2, "gpus": 2}]], "seconds": 0.5}
            found = account(world, Driver(world, f"first-{number}").start([spec]).results(120))
            assert found.as_decided == found.total == 1, (found, world.released())
            wait_for(lambda: world.counted("Asked") > 0, "YARN to sample its metrics, as it does every ten seconds", 15)
            took_ms.append(world.counted("DecideMsAvgTime"))
    words = f"first question of a fresh ResourceManager: {took_ms} ms, load average {os.getloadavg()[0]:.1f}"
    record_property("added time", words)
    print(words)
