"""Nets for Harmony and the search that are functions of two lines: what they like is easy to tell."""

from dataclasses import dataclass, field

import numpy as np

from placewise_core.basics.arrays import Float32
from placewise_core.inputs.cluster import NODE_COLUMNS, STEP_COLUMNS, Observation
from placewise_core.inputs.reward import PartTokens
from placewise_core.policies.harmony import ClusterState, PolicyState
from placewise_core.policies.search import SpeedScorer

STEP = {column.name: i for i, column in enumerate(STEP_COLUMNS)}
LOAD = [column.name for column in NODE_COLUMNS].index("load")


@dataclass
class Spreads:
    """Likes nodes with few tasks of the gang, then little load; workers before servers."""

    sharpness: float = 10.0
    looked: list[Observation] = field(default_factory=list)
    encoded: list[Float32] = field(default_factory=list)
    decoded: list[int] = field(default_factory=list)

    def look(self, seen: Observation) -> ClusterState:
        self.looked.append(seen)
        return ClusterState(seen.nodes, ())

    def read(self, cluster: ClusterState, jobs: Float32) -> PolicyState:
        self.encoded.append(jobs)
        return PolicyState(cluster.nodes, jobs)

    def decode(self, state: PolicyState, job: int, step: Float32) -> Float32:
        self.decoded.append(job)
        likes = -self.sharpness * (
            step[:, STEP["workers_here"]] + step[:, STEP["servers_here"]] + step[:, STEP["load"]]
        )
        return np.concatenate([likes + 1.0, likes]).astype(np.float32)


class FirstIsBest(SpeedScorer):
    """A reward model that scores the first proposal highest."""

    def speeds(self, tokens: PartTokens) -> Float32:
        ranks = np.arange(len(tokens.job), 0.0, -1.0)[:, None]
        return np.broadcast_to(ranks, tokens.job.shape).astype(np.float32)
