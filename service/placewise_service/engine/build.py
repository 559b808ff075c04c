"""Puts an engine together: policies from the registries, coefficients from the active bundle. Starts nothing."""

from pathlib import Path

from placewise_core.admit.registry import admission_policies
from placewise_core.clock import Clock
from placewise_core.partition.registry import partition_policy
from placewise_core.place.iawp import SubtaskScheduler
from placewise_core.place.registry import SEARCH_POLICY, placement_policies, search_policy
from placewise_core.place.tables import packaged_tables
from placewise_core.speed.solo import ThroughputSpeed
from placewise_core.speed.throughput import ThroughputModel
from placewise_service.declog.sink import DecisionSink
from placewise_service.engine.common import Common, EngineOptions
from placewise_service.engine.drafting import Placer
from placewise_service.engine.engine import Engine
from placewise_service.engine.views import Views
from placewise_service.model.bundle import Bundle
from placewise_service.model.registry import BundleRegistry
from placewise_service.state.store import StateStore
from placewise_service.telemetry import Telemetry

PACKAGED_BUNDLES = Path(__file__).parent.parent / "bundles"


def build_engine(
    store: StateStore,
    clock: Clock,
    telemetry: Telemetry,
    options: EngineOptions,
    bundles: Path = PACKAGED_BUNDLES,
    bundle: str = "default",
) -> Engine:
    """An engine on `store`, ready to be started. Raises BundleError if the bundle cannot be used."""
    throughput = ThroughputModel(registry.bundle.document("throughput.json"))
    tables = packaged_tables()
    policies = placement_policies(tables)

    def use(active: Bundle) -> None:
        """One assignment: a request sees the old net or the new one."""
        if active.reward is not None:
            policies[SEARCH_POLICY] = search_policy(active.reward, policies)
        else:
            policies.pop(SEARCH_POLICY, None)

    registry = BundleRegistry(bundles, bundle, on_activate=use)
    use(registry.bundle)
    common = Common(
        store=store,
        clock=clock,
        views=Views(store, clock, options.stale_telemetry_after_s),
        sink=DecisionSink(store, on_drop=telemetry.log_drops),
        registry=registry,
        telemetry=telemetry,
        options=options,
    )
    return Engine(
        common=common,
        placer=Placer(policies, policies[options.fallback_policy], tables.interference, ThroughputSpeed(throughput)),
        subtasks=SubtaskScheduler(),
        admission=admission_policies(throughput),
        partitioner=partition_policy(registry.bundle.document("capability.json")),
    )
