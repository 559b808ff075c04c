"""GPU models of nodes, from the snapshots in the log of views. Rebuilds no view."""

from collections.abc import Mapping
from typing import NamedTuple

import pyarrow.compute as pc

from placewise_log.record import CorruptEntryError
from placewise_log.store import LogStore
from placewise_log.views import SNAPSHOT, Snapshot, decode_view_entry


class NodeKey(NamedTuple):
    cluster: str
    node: str


def gpu_models(store: LogStore) -> Mapping[NodeKey, str]:
    """The model of a node's first GPU, as its latest snapshot has it; nodes without GPUs are left out. Empty for a log
    without views. Raises LogError."""
    found: dict[NodeKey, str] = {}
    if not store.has("views"):
        return found
    for batch in store.batches("views", ("cluster", "kind", "record"), pc.field("kind") == SNAPSHOT, rows=1):
        for cluster, data in zip(batch.column("cluster"), batch.column("record"), strict=True):
            try:
                entry = decode_view_entry(data.as_py())
            except CorruptEntryError as error:
                raise store.error(error) from error
            assert isinstance(entry, Snapshot)
            nodes = entry.records.nodes
            found |= {NodeKey(cluster.as_py(), node.id): node.gpus[0].model for node in nodes if node.gpus}
    return found


def nodes_of(store: LogStore) -> Mapping[str, Mapping[str, str]]:
    """The GPU models by cluster and node. Raises LogError."""
    found: dict[str, dict[str, str]] = {}
    for key, model in sorted(gpu_models(store).items()):
        found.setdefault(key.cluster, {})[key.node] = model
    return found
