"""What admission needs to know of the whole platform: N, G, its usual GPU model, its bandwidth. Never of one job."""

import numpy as np

from placewise_core.admit.pool import Pool
from placewise_core.basics.frozen import frozen
from placewise_core.speed.proteus_cost import Bandwidth
from placewise_core.view.view import NETWORK, ClusterView


@frozen
class PlatformFacts:
    """P = ⟨N, G, Comm⟩ of the QoS-aware paper (1): nodes with GPUs, most GPUs on one, and BW of Proteus (5)."""

    nodes: int
    gpus_per_node: int
    total_gpus: int
    gpu_model: str
    bandwidth: Bandwidth


class FactsCache:
    """The facts of the view last asked about, or a fork of it; worked out again when its inventory changed."""

    def __init__(self) -> None:
        self._of: tuple[object, int] | None = None  # lineage and layout
        self._facts: PlatformFacts | None = None
        self._whole: tuple[object, int, int, Pool] | None = None

    def of(self, view: ClusterView) -> PlatformFacts:
        """Facts of this view."""
        if self._facts is None or self._of != (view.lineage, view.nodes.layout_stamp):
            self._facts = platform_facts(view)
            self._of = (view.lineage, view.nodes.layout_stamp)
        return self._facts

    def whole(self, view: ClusterView) -> Pool:
        """Pool.whole of this view, with the shapes computed so far; a new one when nodes report. It asks this very view
        for its columns: another of its lineage may have got new ones since."""
        kept, stamps = self._whole, (view.lineage, view.nodes.layout_stamp, view.nodes.telemetry_stamp)
        if kept is None or kept[:3] != stamps:
            kept = self._whole = (*stamps, Pool.whole(view))
        elif kept[3].view is not view:
            kept = self._whole = (*stamps, kept[3].of(view))
        return kept[3]


def platform_facts(view: ClusterView) -> PlatformFacts:
    per_node = view.nodes.gpu_exists.sum(axis=1)
    network = view.nodes.capacity[NETWORK]
    reported = network[network > 0]
    default = Bandwidth()
    return PlatformFacts(
        nodes=max(1, int((per_node > 0).sum())),
        gpus_per_node=max(1, int(per_node.max(initial=0))),
        total_gpus=int(per_node.sum()),
        gpu_model=_usual_gpu_model(view),
        bandwidth=Bandwidth(default.node_gbps, float(np.median(reported)) if len(reported) else default.network_gbps),
    )


def _usual_gpu_model(view: ClusterView) -> str:
    counts: dict[str, int] = {}
    for node in view.nodes.records:
        for gpu in node.gpus:
            counts[gpu.model] = counts.get(gpu.model, 0) + 1
    return max(counts, key=lambda model: (counts[model], model)) if counts else ""
