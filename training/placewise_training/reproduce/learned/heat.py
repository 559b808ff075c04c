"""How well the thermal constants of nodes are learned from their reports, and whether Partition gains by it.

    python -m placewise_training.reproduce.learned.heat --out docs/learning/heat.json [--part errors|tasks] [--choose]

The truth's constants are drawn anew for each seed, about those of the heat-island experiment (reproduce/heat/lab.py),
and the estimator starts empty: thermal resistance ± 20 % and heat capacity ± 50 % for each type of node, power at load
± 10 %, and the resistance of each node ± 16 % about its type's, as measured among V100s of one cluster
(data/open/gpu_variability_thermal.csv); all are standard deviations of a logarithm.

Errors: a node reports every 5 s, its temperature to a whole degree and its power ± 2 %, while stretches of work and of
rest take turns, a minute long in the mean. After 1, 3, 10, 30 and 100 reports that count, the constants forecast the
temperature of another node of the type after a minute of full load, from a start drawn between its idle temperature and
the limit. Beside the estimate stand the mean of the same reports (mean θ/P as resistance, the mean power of busy
reports, the shipped time constant), and the shipped constants. `--choose` runs the seeds that the estimator's constants
were chosen on.

Tasks: streams of divisible tasks of that experiment with the setting off and on, under equal seeds. The setting is on
by default only if, in every reading, the share of time above the limit falls and completion does not rise, both by
95 % intervals; that was written down before the judged seeds were run.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from placewise_core.domain.cluster import ClusterSettings, Gpu, Node, NodeTelemetry
from placewise_core.domain.job import NodeId, Resources
from placewise_core.partition.thermal import ThermalModel, peak_celsius, thermal_state
from placewise_core.speed.learned.heat import HALVING_S, HeatGroup, NodeHeat
from placewise_core.speed.learned.sums import sums_of
from placewise_core.view.learned.heat import heat_additions, type_of
from placewise_models.bundle import CAPABILITY
from placewise_training.reproduce.heat.lab import READINGS, Lab
from placewise_training.reproduce.heat.splitters import OneAtATime, Patient, served_policy
from placewise_training.reproduce.learned.switched import mean, off_and_on, report
from placewise_training.sim.divisible import HeatNode, HeatResult, HeatSimulation
from placewise_training.sim.policies import shipped
from placewise_training.sim.thermal import ThermalSpec, ThermalState

REPORTS = (1, 3, 10, 30, 100)
CHOSEN_ON = tuple(range(61_000, 61_008))
ERROR_SEEDS = tuple(range(96_000, 96_200))
CHOOSE_ERROR_SEEDS = tuple(range(61_000, 61_100))
SEEDS = tuple(range(97_000, 97_012))
_R_SD, _C_SD, _POWER_SD, _NODE_SD = 0.2, 0.5, 0.1, 0.16
_EVERY_S, _STRETCH_S, _LOAD_S = 5.0, 60.0, 60.0
_TASKS = 100
VALUES = ("learned", "mean", "shipped")


def drawn(spec: ThermalSpec, rng: np.random.Generator) -> ThermalSpec:
    """The constants of a type of node."""
    r, c, power = np.exp(rng.standard_normal(3) * (_R_SD, _C_SD, _POWER_SD))
    return replace(
        spec,
        resistance_k_per_w=spec.resistance_k_per_w * r,
        capacity_j_per_k=spec.capacity_j_per_k * c,
        busy_w=spec.busy_w * power,
    )


def of_node(spec: ThermalSpec, rng: np.random.Generator) -> ThermalSpec:
    """One node of the type."""
    return replace(spec, resistance_k_per_w=spec.resistance_k_per_w * float(np.exp(_NODE_SD * rng.standard_normal())))


@dataclass(frozen=True, slots=True)
class HeatGuess:
    """After so many reports: °C by which three forecasts err, |ln| errors of three rises and of the learned time
    constant (the shipped one's beside it), and whether the intervals hold the node's constants."""

    reports: int
    celsius: tuple[float, float, float]
    rise: tuple[float, float, float]
    time: tuple[float, float]
    is_rise_inside: bool
    is_time_inside: bool


class _Reporting:
    """A node that reports, and what a cluster makes of it."""

    def __init__(self, spec: ThermalSpec, rng: np.random.Generator) -> None:
        self._spec, self._rng = spec, rng
        self._heat, self.known = ThermalState(spec), NodeHeat()
        self._now_s, self._is_busy, self._until_s = 0.0, False, 0.0
        self._ratios: list[float] = []
        self._powers: list[float] = []
        self.node = self._report()
        self.group = HeatGroup(type_of(self.node), "gpu", is_power=True)

    @property
    def steps(self) -> float:
        found = [sums_of(self.known.row(kind)) for kind in self.known.kinds if kind.endswith("balance")]
        return max([round(sums.count, 6) for sums in found], default=0.0)

    @property
    def means(self) -> tuple[float, float]:
        """Mean θ/P, and the mean power of busy reports."""
        return float(np.mean(self._ratios)), float(np.mean(self._powers))

    @property
    def is_ready(self) -> bool:
        return bool(self._powers)

    def advance(self) -> None:
        self._now_s += _EVERY_S
        while self._until_s < self._now_s:
            self._heat.set_util(self._until_s, float(self._is_busy))
            self._until_s += max(_EVERY_S, float(self._rng.exponential(_STRETCH_S)))
            self._is_busy = not self._is_busy
        before, self.node = self.node, self._report()
        for addition in heat_additions([(before, self.node)]):
            row = sums_of(self.known.row(addition.kind))
            self.known.learn(addition.kind, row.added(addition.value, self._now_s, HALVING_S, addition.weight).row)

    def _report(self) -> Node:
        celsius, spec = float(round(self._heat.advance(self._now_s))), self._spec
        power = self._heat.power_w * float(np.exp(0.02 * self._rng.standard_normal()))
        is_busy = self._heat.power_w > 0.5 * (spec.idle_w + spec.busy_w)
        self._ratios.append((celsius - spec.ambient_celsius) / power)
        self._powers += [power] if is_busy else []
        util = 0.95 if is_busy else 0.0
        telemetry = NodeTelemetry(
            gpu_util=util, gpu_celsius=celsius, power_watts=power, ambient_celsius=spec.ambient_celsius,
            observe_time_s=1.0 + self._now_s,
        )  # fmt: skip
        return Node(NodeId("n"), Resources(cpu_cores=6, gpus=1), (Gpu(0, "drawn", 2.0),), telemetry=telemetry)


def guesses(seed: int) -> list[HeatGuess]:
    """Of one truth, strong or weak by turns."""
    rng = np.random.default_rng((seed, 31))
    of_type = drawn(Lab().nodes()[0 if seed % 2 else -1].spec.thermal, rng)
    reporting, found = _Reporting(of_node(of_type, rng), rng), []
    model = ThermalModel.from_mapping(shipped().document(CAPABILITY)["thermal"]["gpu"])
    wanted = list(REPORTS)
    while wanted:
        reporting.advance()
        if reporting.steps >= wanted[0] and reporting.is_ready:
            found.append(_guess(wanted.pop(0), reporting, model, of_node(of_type, rng), rng))
    return found


def _guess(
    reports: int, known: _Reporting, model: ThermalModel, truth: ThermalSpec, rng: np.random.Generator
) -> HeatGuess:
    constants = known.known.constants(known.group, model.resistance_k_per_w * model.load_watts, model.time_constant_s)
    assert constants is not None
    resistance, power = known.means
    models = (
        ThermalModel(constants.resistance, constants.time_constant_s, constants.load, model.ambient_celsius),
        ThermalModel(resistance, model.time_constant_s, power, model.ambient_celsius),
        model,
    )
    true_rise = truth.steady_celsius(truth.busy_w) - truth.ambient_celsius
    start = rng.uniform(truth.steady_celsius(truth.idle_w), max(truth.limit_celsius, truth.ambient_celsius + true_rise))
    steady = truth.ambient_celsius + true_rise
    true_end = max(start, steady + (start - steady) * math.exp(-_LOAD_S / truth.time_constant_s))
    ends = [_forecast(each, start, truth.ambient_celsius) for each in models]
    rises = [each.resistance_k_per_w * each.load_watts for each in models]
    return HeatGuess(
        reports,
        (abs(ends[0] - true_end), abs(ends[1] - true_end), abs(ends[2] - true_end)),
        (_off(rises[0], true_rise), _off(rises[1], true_rise), _off(rises[2], true_rise)),
        (_off(constants.time_constant_s, truth.time_constant_s), _off(model.time_constant_s, truth.time_constant_s)),
        constants.low <= true_rise <= constants.high,
        constants.low_s <= truth.time_constant_s <= constants.high_s,
    )


def _forecast(model: ThermalModel, start: float, ambient: float) -> float:
    nothing = np.array([math.nan])
    state = thermal_state(model, np.array([start]), nothing, np.array([ambient]), nothing)
    return float(peak_celsius(state, np.array([_LOAD_S]))[0])


def _off(value: float, truth: float) -> float:
    return abs(math.log(value / truth))


def errors(seeds: Sequence[int]) -> list[dict[str, Any]]:
    """A row for each number of reports: mean errors and their 95 % intervals over the seeds, and the coverage."""
    found = [each for seed in seeds for each in guesses(seed)]
    rows = []
    for reports in REPORTS:
        these = [each for each in found if each.reports == reports]
        row: dict[str, Any] = {"reports": reports, "truths": len(these)}
        for i, name in enumerate(VALUES):
            row[f"celsius_{name}"] = mean([each.celsius[i] for each in these])
            row[f"ln_rise_{name}"] = mean([each.rise[i] for each in these])
        for i, name in enumerate(("learned", "shipped")):
            row[f"ln_time_{name}"] = mean([each.time[i] for each in these])
        row["rise_inside"] = round(float(np.mean([each.is_rise_inside for each in these])), 3)
        row["time_inside"] = round(float(np.mean([each.is_time_inside for each in these])), 3)
        rows.append(row)
    return rows


def drawn_nodes(lab: Lab, seed: int) -> list[HeatNode]:
    """The nodes of a reading, with constants drawn for their types and each of them."""
    rng = np.random.default_rng((seed, 32))
    types: dict[str, ThermalSpec] = {}
    made = []
    for node in lab.nodes():
        name = type_of(node.spec.node)
        if name not in types:
            types[name] = drawn(node.spec.thermal, rng)
        made.append(replace(node, spec=replace(node.spec, thermal=of_node(types[name], rng))))
    return made


def _run(lab: Lab, seed: int, *, is_learning: bool) -> HeatResult:
    nodes, served = drawn_nodes(lab, seed), served_policy()
    policy = Patient(served if lab.is_overlapping else OneAtATime(served))
    settings = ClusterSettings(learn_heat=is_learning)
    return HeatSimulation(nodes, lab.tasks(_TASKS, seed), policy, settings=settings, seed=seed).run()


def tasks(seeds: Sequence[int]) -> list[dict[str, Any]]:
    """For each reading of the paper: mean completion, and the share of node-time above the limit, off and on."""
    rows = []
    for name, lab in READINGS.items():
        pairs = [(_run(lab, seed, is_learning=False), _run(lab, seed, is_learning=True)) for seed in seeds]
        off, on = ([pair[i] for pair in pairs] for i in (0, 1))
        rows.append(
            {
                "reading": name,
                **off_and_on(off, on),
                "peak_off_celsius": mean([each.peak_celsius for each in off]),
                "peak_on_celsius": mean([each.peak_celsius for each in on]),
            }
        )
    return rows


if __name__ == "__main__":
    report(__doc__, errors, tasks, (ERROR_SEEDS, SEEDS), (CHOOSE_ERROR_SEEDS, CHOSEN_ON))
