"""An observation as the exported encoder of the policy net takes it. Knows no runtime and decides nothing."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from placewise_core.feature_tables import JOB_COLUMNS
from placewise_core.features import Observation

ENCODER_INPUTS = ("nodes", "jobs", "edges", "sizes", "kept")
ENCODER_OUTPUTS = ("node_state", "job_state", "minutes")
DECODER_INPUTS = ("node_state", "job_state", "step")

IS_NEW = [column.name for column in JOB_COLUMNS].index("is_new")


def encoder_inputs(seen: Observation) -> dict[str, NDArray[Any]]:
    """M nodes, J jobs of which the first N are new, and the tokens of both in that order, P = M + J.

    nodes (M, NODE_FEATURES) · jobs (J, JOB_FEATURES) · edges (P, P, 2) float32, the placement between nodes and jobs,
    both ways · sizes = (M, N) and kept = (M + N,) int64: only these tokens have a state, as nobody asks for one of a
    job that runs.
    """
    nodes, new = len(seen.nodes), int(np.count_nonzero(seen.jobs[:, IS_NEW]))
    tokens = nodes + len(seen.jobs)
    edges = np.zeros((tokens, tokens, 2), dtype=np.float32)
    edges[nodes:, :nodes] = seen.placement
    edges[:nodes, nodes:] = seen.placement.swapaxes(0, 1)
    sizes, kept = np.array((nodes, new)), np.array((nodes + new,))
    return {"nodes": seen.nodes, "jobs": seen.jobs, "edges": edges, "sizes": sizes, "kept": kept}
