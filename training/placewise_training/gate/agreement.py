"""Whether a log agrees with itself: outcomes that were mixed up contradict the placements beside them. Fits nothing.

Jobs never hold more of a node than it has, and a reward follows from the runs of the job and of its neighbourhood.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from placewise_core.domain.cluster import Node
from placewise_core.domain.realised import HORIZONS_MIN, reward_h
from placewise_training.log.index import Logged, LogIndex
from placewise_training.log.places import Placed

HORIZONS_S: Final = {f"reward_{minutes}min": 60.0 * minutes for minutes in HORIZONS_MIN}
_ROUNDING: Final = 1e-6


class Stay(NamedTuple):
    """Cores and GPUs of one node that a job holds, and how long."""

    node: str
    cpu_cores: float
    gpus: float
    start_s: float
    until_s: float


@dataclass(frozen=True, slots=True)
class Agreement:
    """Node seconds for which jobs held a node, and for which they held more than it has; rewards that were worked out
    again from the runs, and those of them that came out otherwise."""

    held_s: float
    beyond_s: float
    rewards: int
    differing: int


def stays_of(placed: Placed, logged: Logged) -> list[Stay]:
    """None of a job that the host put elsewhere, or that may share its GPUs."""
    if placed.outcome.is_overridden or placed.job.gpu_sharing.allowed:
        return []
    return [
        Stay(task.node, task.demand.cpu_cores, task.demand.gpus, logged.run.start_s, logged.known_s)
        for task in placed.decided.assignments
    ]


def held(stays: Iterable[Stay], nodes: Sequence[Node]) -> tuple[float, float]:
    """Node seconds held, and those held beyond the node's capacity. Nodes that are not given are left out."""
    changes: dict[str, list[tuple[float, float, float]]] = {node.id: [] for node in nodes}
    for stay in stays:
        if stay.node in changes and stay.until_s > stay.start_s:
            changes[stay.node].append((stay.start_s, stay.cpu_cores, stay.gpus))
            changes[stay.node].append((stay.until_s, -stay.cpu_cores, -stay.gpus))
    held_s = beyond_s = 0.0
    for node in nodes:
        cpu_cores = gpus = last_s = 0.0
        for time_s, more_cores, more_gpus in sorted(changes[node.id]):
            is_beyond = cpu_cores > node.capacity.cpu_cores + _ROUNDING or gpus > node.capacity.gpus + _ROUNDING
            is_held = cpu_cores > _ROUNDING or gpus > _ROUNDING
            held_s += (time_s - last_s) * is_held
            beyond_s += (time_s - last_s) * is_beyond
            cpu_cores, gpus, last_s = cpu_cores + more_cores, gpus + more_gpus, time_s
    return held_s, beyond_s


def reward_differs(placed: Placed, logged: Logged, index: LogIndex, horizon_s: float) -> bool:
    """Whether the reward of `joined` is another one than its runs give."""
    nodes = {node for one in placed.record.alternatives or () if one.job_id == placed.job.id for node in one.nodes}
    others = index.beside(placed.record.cluster, nodes, logged.run.start_s, placed.job.id)
    before = [other.run for other in others if other.decision_id < logged.decision_id]
    again = reward_h(logged.run, before, horizon_s, index.end_s)
    return again is None or placed.outcome.reward is None or abs(again - placed.outcome.reward) > _ROUNDING
