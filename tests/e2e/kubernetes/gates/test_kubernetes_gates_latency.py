"""Time that gates add between a pod's creation and its binding, against the scheduler alone, in one run.

The gangs and the turns are those of test_kubernetes_latency. `gates_pods` are gangs of pods that nobody made.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from tests.e2e.kubernetes.gates.kubernetes_gates import gates_of, plane
from tests.e2e.kubernetes.kubernetes_cluster import ControlPlane, free_port
from tests.e2e.kubernetes.kubernetes_fixtures import cluster, placewise, watched
from tests.e2e.kubernetes.kubernetes_scenario import AdapterProcess, Watched
from tests.e2e.kubernetes.kubernetes_service import PlacewiseServer
from tests.e2e.kubernetes.test_kubernetes_latency import check_added, in_words, latencies_ms, summary_of
from tests.e2e.machine import processor_times, stolen_pct

pytestmark = [pytest.mark.e2e, pytest.mark.e2e_heavy, pytest.mark.timeout(600)]

__all__ = ["cluster", "placewise", "plane", "watched"]

SCHEDULER = "default-scheduler"
MOST_ADDED_MS = 40.0
WAYS = dict.fromkeys(("alone", "gates", "gates_pods"), SCHEDULER)


async def test_added_latency_per_pod(
    plane: ControlPlane,
    placewise: PlacewiseServer,
    watched: Watched,
    cluster: str,
    record_property: Callable[[str, object], None],
) -> None:
    assert gates_of(plane, "alone", {}) == []
    adapter = AdapterProcess(plane, free_port())
    adapter.start(placewise.http_target, cluster=cluster, gates={"is_enabled": True})
    try:
        await adapter.ready()
        before = processor_times()
        figures, _ = await latencies_ms(plane, watched, WAYS)
        assert adapter.metric("placewise_kubernetes_not_decided_total") == 0
    finally:
        adapter.stop()
    summary = summary_of(figures)
    record_property("added time", in_words(summary, SCHEDULER))
    print(json.dumps(summary | {"stolen_pct": round(stolen_pct(before), 1)}))
    check_added(summary, MOST_ADDED_MS)
