"""Reports of nodes as measurements of how they warm up. Pure; speed/learned/heat.py estimates.

Two reports of a node that follow each other count if they are at most a minute apart and its load is the same in both:
then it was so all the time in between, which is an assumption. The load of a GPU is the node's power over its GPUs,
that of a CPU the node's power, as nobody reports how much of it the CPU takes. A node that reports no power has a load
of `_IDLE` when idle, and 1 at full utilisation. A unit that is used by half or more is busy.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

from placewise_core.basics.frozen import frozen
from placewise_core.domain.cluster import Node, NodeTelemetry
from placewise_core.speed.learned.heat import HeatGroup, HeatStep, row_of_busy, rows_of_step
from placewise_core.speed.learned.sums import Addition, Sums

UNITS = ("gpu", "cpu")
USUAL_AMBIENT_CELSIUS = 25.0  # of nodes that report none
_LEAST_S, _MOST_S = 0.5, 60.0
_SAME = 0.1  # most relative difference of two loads that count as the same
_IDLE = 0.2  # of the power at full load: a GPU takes some 60 of 300 W when idle
_BUSY = 0.5
_COLDEST, _HOTTEST = -50.0, 200.0  # °C: beyond, a sensor is broken
_LEAST_LOAD, _MOST_LOAD = 1e-3, 1e6


@frozen
class _Reading:
    celsius: float
    ambient: float
    load: float
    is_busy: bool
    is_power: bool


def type_of(node: Node) -> str:
    """Nodes of a name have the same GPUs and cores."""
    models = ", ".join(sorted({gpu.model or "GPU" for gpu in node.gpus}))
    cores = f"{node.capacity.cpu_cores:g} cores"
    return f"{len(node.gpus)} {models}, {cores}" if node.gpus else cores


def heat_additions(pairs: Iterable[tuple[Node, Node]]) -> list[Addition]:
    """What nodes, each before and after a report, add to the sums: at most two additions to each row."""
    found: dict[str, Sums] = {}
    for before, after in pairs:
        for kind, x, weight in _rows(before, after):
            found[kind] = found.get(kind, Sums()).added(x, 0.0, 1.0, weight)
    return [addition for kind, sums in found.items() for addition in _two_points(kind, sums)]


def _two_points(kind: str, sums: Sums) -> Sequence[Addition]:
    """Additions of the same number, sum and sum of squares."""
    sd = math.sqrt(sums.within / sums.count)
    if sd == 0.0:
        return (Addition(kind, sums.mean, sums.count),)
    half = 0.5 * sums.count
    return Addition(kind, sums.mean - sd, half), Addition(kind, sums.mean + sd, half)


def _rows(before: Node, after: Node) -> Iterator[tuple[str, float, float]]:
    seconds = after.telemetry.observe_time_s - before.telemetry.observe_time_s
    if seconds < _LEAST_S or before.telemetry.observe_time_s <= 0 or type_of(before) != type_of(after):
        return
    for unit in UNITS[not after.gpus :]:
        last = _reading(after, unit)
        if last is None:
            continue
        group = HeatGroup(type_of(after), unit, last.is_power)
        if last.is_busy:
            yield row_of_busy(group, last.load)
        first = _reading(before, unit) if seconds <= _MOST_S else None
        if first is None or first.is_power != last.is_power:
            continue
        if abs(last.load - first.load) <= _SAME * max(last.load, first.load):
            load, ambient = 0.5 * (first.load + last.load), 0.5 * (first.ambient + last.ambient)
            step = HeatStep(seconds, load, first.celsius - ambient, last.celsius - ambient)
            yield from rows_of_step(group, step)


def _reading(node: Node, unit: str) -> _Reading | None:
    """None if its temperature or its load is unknown, or cannot be true."""
    now = node.telemetry
    is_gpu = unit == "gpu"
    celsius = max(_known(now.gpu_celsius, now.cpu_celsius), default=math.nan) if is_gpu else now.cpu_celsius
    util = now.gpu_util if is_gpu else now.cpu_util
    is_power = not math.isnan(now.power_watts)
    load = now.power_watts / (len(node.gpus) if is_gpu else 1) if is_power else _IDLE + (1.0 - _IDLE) * util
    ambient = _ambient(now)
    if not (_COLDEST <= celsius <= _HOTTEST and _COLDEST <= ambient <= _HOTTEST and _LEAST_LOAD <= load <= _MOST_LOAD):
        return None
    return _Reading(celsius, ambient, load, util >= _BUSY, is_power)


def _ambient(telemetry: NodeTelemetry) -> float:
    return USUAL_AMBIENT_CELSIUS if math.isnan(telemetry.ambient_celsius) else telemetry.ambient_celsius


def _known(*values: float) -> list[float]:
    return [value for value in values if not math.isnan(value)]
