"""Inputs and outputs of the graphs of the exported policy net. Knows no runtime and decides nothing.

Three graphs: the encoder reads the cluster, without the jobs to place; the second reads new jobs beside the encoder's
output, so that a cluster need not be read again for each of them; the decoder scores nodes for one task.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from placewise_core.inputs.cluster import Observation
from placewise_core.inputs.tables import JOB_COLUMNS

ENCODER_INPUTS = ("nodes", "jobs", "edges")
NODE_STATE, JOB_STATE, STRETCH, LOGITS = "node_state", "job_state", "stretch", "logits"
DECODER_INPUTS = ("states", "step")

IS_NEW = [column.name for column in JOB_COLUMNS].index("is_new")


def memory_names(layers: int) -> tuple[str, ...]:
    """Outputs of the encoder besides the states of nodes, for new jobs to attend to: keys and values of each layer."""
    return tuple(f"{what}_{layer}" for layer in range(layers) for what in ("key", "value"))


def encoder_inputs(seen: Observation) -> dict[str, NDArray[Any]]:
    """M nodes, J jobs that run on them, and the tokens of both in that order, P = M + J.

    nodes (M, NODE_FEATURES) · jobs (J, JOB_FEATURES) · edges (P, P, 2), the placement between nodes and jobs, both
    ways. All float32.
    """
    nodes = len(seen.nodes)
    tokens = nodes + len(seen.jobs)
    edges = np.zeros((tokens, tokens, 2), dtype=np.float32)
    edges[nodes:, :nodes] = seen.placement
    edges[:nodes, nodes:] = seen.placement.swapaxes(0, 1)
    return {"nodes": seen.nodes, "jobs": seen.jobs, "edges": edges}
