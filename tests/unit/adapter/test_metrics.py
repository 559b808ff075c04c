"""The adapters' metrics keep their names, types, labels, texts and buckets: dashboards and alerts rely on them."""

from __future__ import annotations

from typing import Any, cast

import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from placewise_client.adapter.metrics import AdapterMetrics
from placewise_kubernetes.config import ListenConfig
from placewise_kubernetes.faces.extender import Extender
from placewise_kubernetes.faces.server import Face
from placewise_kubernetes.faces.volcano import VolcanoExtender
from placewise_kubernetes.gang.spec import GangRules
from placewise_kubernetes.host import KubernetesHost
from placewise_kubernetes.kube.nodes import NodeReader

BOUNDS = ("0.001", "0.002", "0.005", "0.01", "0.02", "0.05", "0.1", "0.2", "0.5", "1.0", "5.0", "+Inf")

# As the adapters showed them on 23 November 2026: name → type, label, text.
EVERY_ADAPTER = {
    "placewise_adapter_verdicts": ("counter", "verdict", "Answers of the service, by kind"),
    "placewise_adapter_undecided": ("counter", "", "Questions that got no decision within the budget"),
    "placewise_adapter_applied": ("counter", "result", "Attempts to apply a placement, by what came of them"),
    "placewise_adapter_released": ("counter", "reason", "Jobs left to the host's own scheduling, by reason"),
    "placewise_adapter_withdrawn": ("counter", "", "Applied placements taken back because they did not start"),
    "placewise_adapter_events": ("counter", "kind", "Job events acknowledged by the service"),
    "placewise_adapter_events_dropped": (
        "counter",
        "",
        "Job events lost: too many waited, or the service refused it",
    ),
    "placewise_adapter_overrides": ("counter", "", "Jobs that did not start where the service placed them"),
    "placewise_adapter_shares": ("counter", "result", "Shares of finished divisible jobs, by what came of their time"),
    "placewise_adapter_host_errors": ("counter", "", "Looks at the host that failed"),
    "placewise_adapter_passes": ("counter", "", "Passes of the loop"),
    "placewise_adapter_decide_seconds": ("histogram", "", "One pass of questions, per queue"),
    "placewise_adapter_apply_seconds": ("histogram", "", "One placement applied to the host"),
}
KUBERNETES = {
    "placewise_kubernetes_refused": ("counter", "reason", "Calls of schedulers refused, by reason"),
    "placewise_kubernetes_not_decided": (
        "counter",
        "reason",
        "Pods that lost their gate without a decision, or whose claims are not evaluated, by reason",
    ),
    "placewise_kubernetes_filter_seconds": ("histogram", "", "Time to answer /filter"),
    "placewise_kubernetes_prioritize_seconds": ("histogram", "", "Time to answer /prioritize"),
    "placewise_kubernetes_bind_seconds": ("histogram", "", "Time to answer /bind"),
    "placewise_kubernetes_volcano_jobenqueueable_seconds": (
        "histogram",
        "",
        "Time to answer /volcano/jobEnqueueable",
    ),
    "placewise_kubernetes_volcano_prioritize_seconds": ("histogram", "", "Time to answer /volcano/prioritize"),
}


def exposed(text: str) -> dict[str, tuple[str, str, str]]:
    """Each family of an exposition; its samples are checked on the way."""
    found = {}
    for family in text_string_to_metric_families(text):
        if family.type == "histogram":
            (label,) = {""}
            bounds = tuple(sample.labels["le"] for sample in family.samples if sample.name == f"{family.name}_bucket")
            assert bounds == BOUNDS
            assert {sample.name.removeprefix(family.name) for sample in family.samples} == {"_bucket", "_sum", "_count"}
        else:
            (sample,) = family.samples
            assert sample.name == f"{family.name}_total"
            label = next(iter(sample.labels), "")
        found[family.name] = (family.type, label, family.documentation)
    return found


def count(counter: Any, label: str) -> None:
    """Counts once; a labelled counter shows its label only then."""
    (counter.labels("x") if label else counter).inc()


def counted(metrics: AdapterMetrics) -> AdapterMetrics:
    for name, (kind, label, _) in EVERY_ADAPTER.items():
        if kind == "counter":
            count(getattr(metrics, name.removeprefix("placewise_adapter_")), label)
    return metrics


def test_every_adapter_shows_the_same() -> None:
    assert exposed(counted(AdapterMetrics()).text()) == EVERY_ADAPTER


async def test_the_kubernetes_adapter_shows_its_calls_as_well() -> None:
    rules = GangRules()
    host = KubernetesHost(cast(Any, None), rules, NodeReader(rules.gpu_resources))
    count(host.refused, "reason")
    count(host.opener.undecided, "reason")
    face = Face(Extender(host, 0.1), VolcanoExtender(host, 0.1), counted(AdapterMetrics()), host.is_synced)
    face.server(ListenConfig(is_bind_served=True, is_volcano_served=True))
    page = face._pages()["GET", "/metrics"]
    response = await page(cast(web.BaseRequest, None))
    assert exposed(cast(web.Response, response).text or "") == EVERY_ADAPTER | KUBERNETES


@pytest.mark.parametrize(
    ("seconds", "bound"), [(0.0, "0.001"), (0.001, "0.001"), (0.0011, "0.002"), (5.0, "5.0"), (99.0, "+Inf")]
)
def test_a_time_falls_into_the_first_bucket_that_holds_it(seconds: float, bound: str) -> None:
    metrics = AdapterMetrics()
    metrics.decide_s.observe(seconds)
    samples = {
        sample.labels.get("le", sample.name): sample.value
        for family in text_string_to_metric_families(metrics.text())
        if family.name == "placewise_adapter_decide_seconds"
        for sample in family.samples
    }
    assert [samples[each] for each in BOUNDS] == [float(i >= BOUNDS.index(bound)) for i in range(len(BOUNDS))]
    assert samples["placewise_adapter_decide_seconds_sum"] == seconds
