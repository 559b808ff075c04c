"""Several seeds of one setting, side by side for several policies, with their figures as printed. Paired by seed.

Every policy sees the same jobs, the same noise and the same faults under one seed; only its decisions differ.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from placewise_core.admit.policy import AdmissionPolicy
from placewise_core.domain.cluster import QueueSettings
from placewise_core.gang.policy import PlacementPolicy
from placewise_core.policies.adaptive import Adaptive
from placewise_models.bundle import Bundle
from placewise_models.learned import LEARNED_POLICIES
from placewise_training.sim.discipline import Discipline
from placewise_training.sim.faults import Fault
from placewise_training.sim.gangs.engine import Observer, SimOptions, SimResult, Simulation
from placewise_training.sim.hardware import NodeSpec
from placewise_training.sim.jobs import SimJob
from placewise_training.sim.policies import admission_policy, placement_policy, shipped
from placewise_training.sim.speed.composed import ComposedSpeed
from placewise_training.sim.statistics import Estimate, estimate
from placewise_training.sim.truths import make_truth

# Makes the jobs of one seed, in order of arrival, under the truth that will run them.
Workload = Callable[[ComposedSpeed, int], Iterable[SimJob]]


@dataclass(frozen=True, slots=True)
class Setting:
    """Everything of an experiment but policy and seed."""

    nodes: Sequence[NodeSpec]
    workload: Workload
    truth: str = "judge"
    discipline: Discipline = field(default_factory=Discipline)
    queue_settings: QueueSettings = field(default_factory=QueueSettings)
    faults: Sequence[Fault] = ()
    telemetry_every_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Contender:
    """One entry of a comparison: a placement policy and, if any, an admission policy before it, with their bundle.

    Either is a name or a policy object of one's own, which every seed asks: one that keeps state must not mind.
    """

    place: str | PlacementPolicy
    admit: str | AdmissionPolicy = "none"
    bundle: Bundle = field(default_factory=shipped)

    @property
    def label(self) -> str:
        place, admit = (each if isinstance(each, str) else each.name for each in (self.place, self.admit))
        return place if admit in ("", "none") else f"{admit}+{place}"

    def policies(self) -> tuple[PlacementPolicy, AdmissionPolicy | None]:
        """Both of them. Raises ValueError for unknown names, NeedsBundleError for a learned policy without a model."""
        place, admit = self.place, self.admit
        return (
            placement_policy(place, self.bundle) if isinstance(place, str) else place,
            admission_policy(admit, self.bundle) if isinstance(admit, str) else admit,
        )

    @property
    def reads_progress(self) -> bool:
        """False for the heuristics, which read none of it."""
        return not isinstance(self.place, str) or self.place in LEARNED_POLICIES


def simulate(
    setting: Setting,
    contender: Contender,
    seed: int,
    *,
    observers: Sequence[Observer] = (),
    progress: Callable[[int, float], None] | None = None,
) -> SimResult:
    """One run. Raises ValueError for unknown names, NeedsBundleError for a learned policy without a model."""
    truth = make_truth(setting.truth, seed)
    place, admission = contender.policies()
    belief = make_truth("train", seed).sharing  # a policy's model of shared GPUs is never the judge's table
    options = SimOptions(
        discipline=setting.discipline,
        queue_settings=setting.queue_settings,
        belief=belief,
        faults=setting.faults,
        telemetry_every_s=setting.telemetry_every_s,
        reports_progress=contender.reads_progress,
        learns_disturbance=place.name == Adaptive.name,
        observers=observers,
    )
    simulation = Simulation(
        setting.nodes,
        setting.workload(truth, seed),
        truth,
        place,
        admission=admission,
        options=options,
        seed=seed,
    )
    return simulation.run(progress=progress)


@dataclass(frozen=True, slots=True)
class Summary:
    """Means over seeds of one contender, and the values of each seed. `is_partial`: the run was stopped."""

    label: str
    estimates: Mapping[str, Estimate]
    values: Mapping[str, Sequence[float]]
    seeds: tuple[int, ...]
    event_hashes: tuple[str, ...]
    impossible: tuple[str, ...]
    is_partial: bool

    def as_dict(self) -> dict[str, object]:
        """Flat: every metric's mean under its name, its 95 % half-width under name + "_ci95"; seed by seed in
        "per_seed"."""
        flat: dict[str, object] = {}
        for name, value in self.estimates.items():
            flat[name] = value.mean
            if value.count > 1:
                flat[f"{name}_ci95"] = value.half_width
        return {
            "policy": self.label,
            **flat,
            "seeds": list(self.seeds),
            "per_seed": {name: list(values) for name, values in self.values.items()},
            "event_hashes": list(self.event_hashes),
            "impossible_jobs": list(self.impossible),
            "partial": self.is_partial,
        }


def summarise(label: str, seeds: Sequence[int], results: Sequence[SimResult]) -> Summary:
    """Raises ValueError if there is no result, or one holds a value that is not finite."""
    rows = [{**r.metrics.as_dict(), "decisions_per_s": r.decisions_per_s, "wall_s": r.wall_s} for r in results]
    if not rows:
        raise ValueError("nothing to summarise: no run ended")
    values = {name: [row[name] for row in rows] for name in rows[0]}
    return Summary(
        label=label,
        estimates={name: estimate(found) for name, found in values.items()},
        values=values,
        seeds=tuple(seeds[: len(rows)]),
        event_hashes=tuple(r.event_hash for r in results),
        impossible=tuple(dict.fromkeys(job for r in results for job in r.impossible)),
        is_partial=len(rows) < len(seeds) or any(r.is_partial for r in results),
    )
