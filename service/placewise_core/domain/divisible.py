"""Tasks that are split over several units, and how far their parts are."""

from placewise_core.basics.frozen import frozen
from placewise_core.domain.job import Resources


@frozen
class DivisibleTask:
    """A task of computing scale T = serial + parallel (T_s, T_p). `overhead_s` = 0 means learned from its kind."""

    id: str
    parallel_scale: float
    serial_scale: float = 0.0
    overhead_s: float = 0.0
    kind: str = ""
    demand: Resources = Resources()


@frozen
class ShareProgress:
    """A share that was handed out: as answered (scale, predicted seconds, capability), and how far it is.

    `done` in [0, 1]; 1 means finished.
    """

    node: str
    unit: str
    scale: float
    predicted_s: float
    capability: float
    done: float = 0.0
    elapsed_s: float = 0.0
    is_move_requested: bool = False
