"""What Placewise adds to the time from a pod's creation to its binding, against the scheduler alone, in one run.

Each gang is a batch Job, and its pods are made right after it, one, two and one at once, as
the Job controller makes them; for all ways alike. `extender_pods` and `own_pods` are gangs of pods that nobody made:
they are decided when the first is there, and bound by the adapter when all are. The figures `last_pod` are from the
last pod's creation to the gang's last binding.

The ways take turns, so that other load on the machine falls on all of them. The service is the real one.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import statistics
from collections.abc import Callable, Mapping

import pytest
from tests.e2e.kubernetes.cpu_requests import are_kept
from tests.e2e.kubernetes.kubernetes_cluster import ControlPlane, free_port, gang
from tests.e2e.kubernetes.kubernetes_fixtures import placewise, plane, watched
from tests.e2e.kubernetes.kubernetes_scenario import AdapterProcess, Watched, names_of, remove_pods
from tests.e2e.kubernetes.kubernetes_service import PlacewiseServer
from tests.e2e.machine import processor_times, stolen_pct

pytestmark = [pytest.mark.e2e, pytest.mark.e2e_heavy, pytest.mark.timeout(600)]

__all__ = ["placewise", "plane", "watched"]

# How the adapter asks the service: "http", as shipped, or "grpc".
CARRIER = os.environ.get("PLACEWISE_TEST_CARRIER", "http")
ROUNDS = 12
GANGS_PER_ROUND = 4
PODS_PER_GANG = 4
# Work that one way leaves for later (events are written 50 ms after a binding) must not fall on the next.
PAUSE_S = 0.15
NUMBERS = itertools.count()
# The scheduler alone knows nothing of gangs: the same pods, of a scheduler without the extender.
PLAIN, ASKS, OWN = "plain-scheduler", "default-scheduler", "placewise"
MOST_ADDED_MS = 5.0
WAYS = {"alone": PLAIN, "extender": ASKS, "own": OWN, "extender_pods": ASKS, "own_pods": OWN}


@pytest.fixture(scope="module")
def adapter(plane: ControlPlane) -> AdapterProcess:
    """The adapter's address, and the two schedulers."""
    process = AdapterProcess(plane, free_port())
    plane.start_scheduler("with-extender", {"extenders": [process.extender()]})
    plane.start_scheduler("plain", {"profiles": [{"schedulerName": PLAIN}]})
    return process


@pytest.mark.parametrize("asks", ["AdmitOrWait and Place", "Place"])
async def test_added_latency_per_pod(
    asks: str,
    adapter: AdapterProcess,
    placewise: PlacewiseServer,
    watched: Watched,
    record_property: Callable[[str, object], None],
) -> None:
    plane = adapter.plane
    settings = {"ask_admission": asks != "Place"}
    target = placewise.target if CARRIER == "grpc" else placewise.http_target
    adapter.start(target, cluster=asks.replace(" ", "-").lower(), adapter=settings)
    await adapter.ready()
    before = processor_times()
    figures, of_gangs = await latencies_ms(plane, watched, WAYS)
    decided_ms = 1e3 * adapter.metric("placewise_adapter_decide_seconds_sum")
    decisions = adapter.metric("placewise_adapter_decide_seconds_count")
    adapter.stop()
    others = {"decide_mean_ms": round(decided_ms / decisions, 2), "stolen_pct": round(stolen_pct(before), 1)}
    others |= {"carrier": CARRIER, "cpu_requests": are_kept()}
    summary = summary_of(figures)
    record_property("added time", f"{asks}: {in_words(summary, PLAIN)}")
    print(json.dumps({"asks": asks} | summary | _last_pods(of_gangs) | others))
    assert all(len(values) == ROUNDS * GANGS_PER_ROUND * PODS_PER_GANG for values in figures.values())
    if asks != "Place":  # as shipped
        check_added(summary, MOST_ADDED_MS)


Ways = Mapping[str, str]
Figures = dict[str, list[float]]


async def latencies_ms(plane: ControlPlane, watched: Watched, ways: Ways) -> tuple[Figures, Figures]:
    """Of each pod by way, and of each gang. `ways` have their schedulers; "alone" has no adapter."""
    figures: Figures = {way: [] for way in ways}
    of_gangs: Figures = {way: [] for way in ways}
    await _round(watched, ways)  # warms every process up; not counted
    for _ in range(ROUNDS):
        for way, names in (await _round(watched, ways)).items():
            figures[way] += watched.latencies_ms(names)
            of_gangs[way] += watched.gang_latencies_ms(names)
        await asyncio.to_thread(remove_pods, plane)
        await asyncio.sleep(0.3)
    return figures, of_gangs


async def _round(watched: Watched, ways: Ways) -> dict[str, list[str]]:
    made: dict[str, list[str]] = {way: [] for way in ways}
    for _ in range(GANGS_PER_ROUND):
        for way, scheduler in ways.items():
            name = f"{way.replace('_', '-')}-{next(NUMBERS)}"
            pods = gang(name, PODS_PER_GANG, scheduler=scheduler)
            if way == "alone":
                for document in pods:
                    document["metadata"]["labels"] = {}
            if not way.endswith("_pods"):
                await watched.make_job(name, pods)
            await watched.create(pods)
            await watched.until_bound(names_of(pods))
            made[way] += names_of(pods)
            await asyncio.sleep(PAUSE_S)
    return made


def check_added(summary: dict[str, float], most_ms: float) -> None:
    """No way adds more to the median."""
    added = {key: value for key, value in summary.items() if key.endswith("_added_p50_ms")}
    assert added
    assert max(added.values()) <= most_ms, added


def in_words(summary: dict[str, float], alone: str) -> str:
    """The time that each way adds to that of the scheduler `alone`."""
    ways = [key.removesuffix("_added_p50_ms") for key in summary if key.endswith("_added_p50_ms")]
    added = ", ".join(f"{way} {summary[f'{way}_added_p50_ms']:+.1f}" for way in ways)
    pods = ROUNDS * GANGS_PER_ROUND * PODS_PER_GANG
    return f"creation to binding, p50 in ms against {alone} alone: {added} (n {pods})"


def summary_of(figures: Figures) -> dict[str, float]:
    p50 = {way: statistics.median(values) for way, values in figures.items()}
    p95 = {way: statistics.quantiles(values, n=20)[-1] for way, values in figures.items()}
    return {
        **{f"{way}_p50_ms": round(value, 2) for way, value in p50.items()},
        **{f"{way}_p95_ms": round(value, 2) for way, value in p95.items()},
        **{f"{way}_added_p50_ms": round(p50[way] - p50["alone"], 2) for way in p50 if way != "alone"},
    }


def _last_pods(of_gangs: Figures) -> dict[str, float]:
    p50 = {way: statistics.median(values) for way, values in of_gangs.items()}
    return {f"{way}_last_pod_p50_ms": round(value, 2) for way, value in p50.items()}
