"""Puts an engine together: policies from the registries, coefficients from the active bundle. Starts nothing."""

from collections import ChainMap
from collections.abc import Collection, Sequence
from pathlib import Path

from placewise_core.admit.policy import AdmissionPolicy
from placewise_core.admit.registry import admission_policies
from placewise_core.basics.clock import Clock
from placewise_core.domain.cluster import Assignment
from placewise_core.domain.decision import LearnedSpeed
from placewise_core.domain.errors import InvalidRequestError
from placewise_core.domain.job import Job
from placewise_core.gang.policy import PlacementPolicy
from placewise_core.partition.policy import PartitionPolicy
from placewise_core.partition.registry import partition_policies
from placewise_core.policies.profiled.tables import packaged_tables
from placewise_core.policies.registry import placement_policies
from placewise_core.speed.completed_interference import InterferenceSource
from placewise_core.speed.throughput import ThroughputModel
from placewise_core.subtasks.completed_metrics import matrix_source, metrics_source
from placewise_core.subtasks.iawp import subtask_schedulers
from placewise_core.view.speeds import SiteSpeed
from placewise_core.view.view import ClusterView
from placewise_models.bundle import CAPABILITY, THROUGHPUT, Bundle, BundleError
from placewise_models.folder import DEFAULT_BUNDLE, shipped_bundles
from placewise_models.learned import (
    LEARNED_POLICIES,
    LearnedPolicies,
    bundle_explorer,
    explorers,
    learned_policies,
    printed_without_nets,
)
from placewise_models.ncf import NCF_MODEL
from placewise_models.public_key import PublicKey
from placewise_service.audit import AuditSink, NoAudit
from placewise_service.declog.sink import DecisionSink
from placewise_service.engine.engine import Engine
from placewise_service.engine.explorers import BundleExplorers
from placewise_service.engine.parts import EngineOptions, EngineParts, nearest
from placewise_service.engine.place.drafting import Placer
from placewise_service.engine.registry import BundleRegistry
from placewise_service.engine.shadows import PolicySet, Shadows
from placewise_service.engine.views import Views
from placewise_service.state.store import StateStore
from placewise_service.telemetry import Telemetry

PACKAGED_BUNDLES = shipped_bundles()


def build_engine(
    store: StateStore,
    clock: Clock,
    telemetry: Telemetry,
    options: EngineOptions,
    bundles: Path = PACKAGED_BUNDLES,
    bundle: str = DEFAULT_BUNDLE,
    keys: Sequence[PublicKey] = (),
    audit: AuditSink | None = None,
    further_bundles: Path | None = None,
) -> Engine:
    """An engine on `store`, ready to be started. `further_bundles` has those that `bundles` lacks.

    Raises BundleError if the bundle cannot be used, InvalidRequestError for a policy that does not exist.
    """
    tables = packaged_tables()
    heuristics = placement_policies(tables)
    served = _Policies(dict(heuristics), InterferenceSource(tables.interference))

    def of_bundle(other: Bundle) -> PolicySet:
        policies = _Policies(dict(heuristics), InterferenceSource(tables.interference))
        policies.use(other)
        return policies.all

    registry = BundleRegistry(bundles, bundle, Shadows(served.all, of_bundle), keys, served.use, further_bundles)
    served.use(registry.bundle)
    _check_policies(options, heuristics, served.admission)
    views = Views(store, clock, options.stale_telemetry_after_s)
    parts = EngineParts(
        store=store,
        clock=clock,
        views=views,
        sink=DecisionSink(store, capacity=options.log_buffer_records, metrics=telemetry),
        registry=registry,
        telemetry=telemetry,
        options=options,
        audit=audit or NoAudit(),
    )
    of_bundles = BundleExplorers(registry, lambda bundle, policy: bundle_explorer(bundle, heuristics, policy))
    return Engine(
        parts=parts,
        placer=Placer(
            served.placement,
            ChainMap(served.explorers, of_bundles.loaded),
            served.placement[options.fallback_policy],
            served.interference,
            served,
            served.profile_model,
            observe_share=options.observe_share,
            alternatives_share=options.alternatives_share,
            slot_s=options.queue.slot_s,
            monotonic_s=clock.monotonic_s,
        ),
        explorers=of_bundles,
    )


def _check_policies(options: EngineOptions, heuristics: Collection[str], admission: Collection[str]) -> None:
    """Raises InvalidRequestError for a policy name in the settings that is unknown with any bundle."""
    place = {*heuristics, *LEARNED_POLICIES}
    for setting, name, names in (
        ("place.policy", options.place_policy, place),
        ("place.pipeline_policy", options.pipeline_policy, place),
        ("place.fallback_policy", options.fallback_policy, heuristics),
        ("admit.policy", options.admit_policy, admission),
    ):
        if name not in names:
            variable = f"PLACEWISE_{setting.replace('.', '__').upper()}"
            raise InvalidRequestError(f"{variable}: no policy {name!r}{nearest(name, names)}", setting)


class _Policies:
    """The policies that rest on a bundle: those in force, or a shadow's. `use` runs to its end on the event loop, so a
    request sees the old bundle or the new."""

    def __init__(self, placement: dict[str, PlacementPolicy], interference: InterferenceSource) -> None:
        self.placement = placement
        self.explorers: dict[str, PlacementPolicy] = {}
        self.interference = interference
        self.admission: dict[str, AdmissionPolicy] = {}
        self.partition: dict[str, PartitionPolicy] = {}
        self.subtasks = subtask_schedulers()
        self.learned = LearnedPolicies()
        self._speed: SiteSpeed

    @property
    def all(self) -> PolicySet:
        """All of them; follows `use`."""
        return PolicySet(
            self.placement,
            self.learned,
            self.interference,
            self,
            self.learned_speed,
            self.explorers,
            self.admission,
            self.partition,
            self.subtasks,
            self.profile_model,
        )

    def use(self, bundle: Bundle) -> None:
        """Builds everything that rests on a bundle, then swaps. Raises BundleError; the old bundle then stays."""
        try:
            throughput = ThroughputModel(bundle.document(THROUGHPUT))
            partition = partition_policies(bundle.document(CAPABILITY))
        except (KeyError, TypeError, ValueError) as error:
            raise BundleError(f"{bundle.name}: {error}") from error
        self._speed = SiteSpeed(throughput)
        self.admission.update(admission_policies(throughput))
        self.partition.update(partition)
        for scheduler in self.subtasks.values():
            scheduler.metrics_of = metrics_source(bundle.stdm)
        paper = self.subtasks["iawp-paper"]  # on the paper's own completion: the other one is ours
        paper.metrics_of = matrix_source(bundle.ncf)
        paper.lack = "" if bundle.ncf else f"{paper.name}: the bundle has no {NCF_MODEL}: metrics as measured alone"
        self.interference.completer = bundle.sharing
        for name in LEARNED_POLICIES:
            self.placement.pop(name, None)
        learned = learned_policies(bundle, self.placement)
        self.learned.by_name = learned.by_name
        self.learned.harmony, self.learned.search = learned.harmony, learned.search
        self.placement.update(printed_without_nets(self.placement) | learned.by_name)
        self.explorers.clear()
        self.explorers.update(explorers(self.placement, learned.harmony))

    def __call__(self, job: Job, assignments: Sequence[Assignment], view: ClusterView) -> float:
        """Speed of a placed job with its GPUs to itself, by the bundle in force."""
        return self._speed(job, assignments, view)

    def profile_model(self, job: Job, assignments: Sequence[Assignment], view: ClusterView) -> str:
        """Whose profile that speed rests on, if not the job's own."""
        return self._speed.profile_model(job, assignments, view)

    def learned_speed(self, job: Job, gpu_type: str, shape: tuple[int, int], view: ClusterView) -> LearnedSpeed | None:
        """The job's learned throughput on that shape, beside the bundle in force."""
        return self._speed.learned(job, gpu_type, shape, view)
