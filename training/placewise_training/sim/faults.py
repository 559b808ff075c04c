"""Events of nodes during a run: failure, return, drain, removal, addition. Plain data."""

import enum
from dataclasses import dataclass

from placewise_training.sim.hardware import NodeSpec


class FaultKind(enum.StrEnum):
    DOWN = "down"
    UP = "up"
    DRAIN = "drain"
    REMOVE = "remove"
    ADD = "add"


@dataclass(frozen=True, slots=True)
class Fault:
    """`spec` is needed for ADD alone. Jobs on a lost node restart, from their last progress if `keeps_progress`."""

    time_s: float
    kind: FaultKind
    node: str
    spec: NodeSpec | None = None
    keeps_progress: bool = False

    def __post_init__(self) -> None:
        if (self.kind is FaultKind.ADD) != (self.spec is not None):
            raise ValueError(f"{self.kind} of {self.node}: a node's specification goes with ADD and only there")


def added(time_s: float, spec: NodeSpec) -> Fault:
    """The node joins at `time_s`."""
    return Fault(time_s, FaultKind.ADD, spec.id, spec)
