"""The adapters' conformance suite on Kubernetes by gates: kube-scheduler as it comes, and pods that our gate holds."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Sequence
from typing import Any, ClassVar

import pytest
from tests.contract.adapters.test_kubernetes_conformance import (
    RULES,
    KubernetesConformance,
    KubernetesScheduler,
    KubernetesWorld,
)

from placewise_client.adapter.native import End
from placewise_kubernetes.gang.gates.opening import GateRules


class GatedScheduler(KubernetesScheduler):
    """A scheduler without an extender: a pod without gates goes to the node that it prefers, else to the first."""

    gates: ClassVar = GateRules(is_enabled=True, scale_up_after_s=0.0)

    def __init__(self) -> None:
        super().__init__("default-scheduler")
        self.rules = dataclasses.replace(RULES, is_whole=True)
        self.kube.has_gates = True

    async def _offered(self, document: dict[str, Any]) -> list[str]:
        preferred = preferred_nodes(document)
        return sorted(self._feasible(document), key=lambda node: node not in preferred)

    async def start_at(self, key: str, nodes: Sequence[str]) -> None:
        """Its user takes the gates away."""
        for path in self._paths[key]:
            self.kube.pods[path]["spec"].pop("schedulingGates", None)
        await super().start_at(key, nodes)


def preferred_nodes(document: dict[str, Any]) -> list[str]:
    """Nodes that a pod's soft node affinity names."""
    affinity = document["spec"].get("affinity", {}).get("nodeAffinity", {})
    terms = affinity.get("preferredDuringSchedulingIgnoredDuringExecution", ())
    return [node for term in terms for field in term["preference"]["matchFields"] for node in field["values"]]


ELSEWHERE = "a soft pin: its scheduler takes another node at once; the start is reported as elsewhere"


class TestGates(KubernetesConformance):
    not_here: ClassVar = {
        "test_a_node_drained_before_the_start_is_left_for_another": ELSEWHERE,
        "test_a_placement_that_is_taken_back_says_why": ELSEWHERE,
    }

    @pytest.fixture
    async def host(self) -> AsyncIterator[GatedScheduler]:
        host = GatedScheduler()
        yield host
        host.stop()
        await host.native.writer.drain()

    async def taken_after_release(self, world: KubernetesWorld, key: str) -> None:  # type: ignore[override]
        """A gate goes at the next look, and only then does the scheduler take the pod."""
        assert await world.host.where(key) == []
        await world.step()

    async def test_what_somebody_took_since_the_decision_is_not_used_twice(self, world: KubernetesWorld) -> None:  # type: ignore[override]
        """With the first gang of some rules nodes are reported again; here the service hangs, so one comes before."""
        first = await world.host.submit(1, 1)
        await world.step()
        await world.host.end(first, End.FINISHED)
        await world.step()
        world.oracle.calls.clear()
        await super().test_what_somebody_took_since_the_decision_is_not_used_twice(world)
