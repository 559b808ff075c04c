"""The table of RPCs from which both clients are built.

One class attribute per RPC; read on a `Client` it is a blocking method, on an `AsyncClient` an awaitable one, each with
the types of its request and response. Adding an RPC is one line here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, Self, TypeVar, overload

from google.protobuf.message import Message

from placewise.v1 import bundle_pb2, cluster_pb2, decision_pb2
from placewise_client.retry import DEFAULT_RETRY, RetryPolicy

Req = TypeVar("Req", bound=Message)
Res = TypeVar("Res", bound=Message)
ReqT_contra = TypeVar("ReqT_contra", bound=Message, contravariant=True)
ResT_co = TypeVar("ResT_co", bound=Message, covariant=True)


class Method(Protocol[ReqT_contra, ResT_co]):
    """A blocking RPC. Raises PlacewiseError. `timeout_s` spans all tries; None takes the client's default."""

    def __call__(
        self, request: ReqT_contra, *, timeout_s: float | None = None, retry: RetryPolicy | None = DEFAULT_RETRY
    ) -> ResT_co: ...


class AsyncMethod(Protocol[ReqT_contra, ResT_co]):
    """An awaitable RPC; the same rules."""

    def __call__(
        self, request: ReqT_contra, *, timeout_s: float | None = None, retry: RetryPolicy | None = DEFAULT_RETRY
    ) -> Awaitable[ResT_co]: ...


class Binder(Protocol):
    """A blocking client."""

    def bind(self, rpc: Rpc[Req, Res]) -> Method[Req, Res]: ...


class AsyncBinder(Protocol):
    """An asyncio client."""

    def bind(self, rpc: Rpc[Req, Res]) -> AsyncMethod[Req, Res]: ...


def _always(request: Message) -> bool:
    return True


def _never(request: Message) -> bool:
    return False


class Rpc(Generic[Req, Res]):
    """One unary RPC: its path, request and response.

    `is_repeatable`: whether a request may be carried out twice without harm.
    """

    def __init__(
        self,
        service: str,
        name: str,
        request: type[Req],
        response: type[Res],
        is_repeatable: Callable[[Req], bool] = _always,
    ) -> None:
        self.path = f"/placewise.v1.{service}/{name}"
        self.request = request
        self.response = response
        self.is_repeatable = is_repeatable
        self._attribute = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._attribute = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: Binder, owner: type) -> Method[Req, Res]: ...
    @overload
    def __get__(self, instance: AsyncBinder, owner: type) -> AsyncMethod[Req, Res]: ...
    def __get__(
        self, instance: Binder | AsyncBinder | None, owner: type
    ) -> Self | Method[Req, Res] | AsyncMethod[Req, Res]:
        if instance is None:
            return self
        method = instance.bind(self)
        # Found before this descriptor from now on: a method is made once for each client.
        instance.__dict__[self._attribute] = method
        return method


def _is_named(request: decision_pb2.PlaceRequest) -> bool:
    """A repeat gets the first answer, or nothing is held."""
    return bool(request.request_id) or request.dry_run


def _is_admission_named(request: decision_pb2.AdmitOrWaitRequest) -> bool:
    return bool(request.request_id or request.place.request_id) or request.dry_run


class Rpcs:
    """Every unary RPC of the API, once."""

    place = Rpc("DecisionService", "Place", decision_pb2.PlaceRequest, decision_pb2.PlaceResponse, _is_named)
    partition = Rpc("DecisionService", "Partition", decision_pb2.PartitionRequest, decision_pb2.PartitionResponse)
    admit_or_wait = Rpc(
        "DecisionService",
        "AdmitOrWait",
        decision_pb2.AdmitOrWaitRequest,
        decision_pb2.AdmitOrWaitResponse,
        _is_admission_named,
    )
    report_nodes = Rpc("ClusterService", "ReportNodes", cluster_pb2.ReportNodesRequest, cluster_pb2.ReportNodesResponse)
    report_job_events = Rpc(
        "ClusterService", "ReportJobEvents", cluster_pb2.ReportJobEventsRequest, cluster_pb2.ReportJobEventsResponse
    )
    get_cluster = Rpc("ClusterService", "GetCluster", cluster_pb2.GetClusterRequest, cluster_pb2.Cluster)
    delete_cluster = Rpc(
        "ClusterService", "DeleteCluster", cluster_pb2.DeleteClusterRequest, cluster_pb2.DeleteClusterResponse, _never
    )
    update_cluster_settings = Rpc(
        "ClusterService",
        "UpdateClusterSettings",
        cluster_pb2.UpdateClusterSettingsRequest,
        cluster_pb2.UpdateClusterSettingsResponse,
    )
    list_clusters = Rpc(
        "ClusterService", "ListClusters", cluster_pb2.ListClustersRequest, cluster_pb2.ListClustersResponse
    )
    list_bundles = Rpc("BundleService", "ListBundles", bundle_pb2.ListBundlesRequest, bundle_pb2.ListBundlesResponse)
    activate_bundle = Rpc(
        "BundleService", "ActivateBundle", bundle_pb2.ActivateBundleRequest, bundle_pb2.ActivateBundleResponse, _never
    )
    rollback_bundle = Rpc(
        "BundleService", "RollbackBundle", bundle_pb2.RollbackBundleRequest, bundle_pb2.RollbackBundleResponse, _never
    )
    set_shadow = Rpc("BundleService", "SetShadow", bundle_pb2.SetShadowRequest, bundle_pb2.SetShadowResponse)
    set_canary = Rpc("BundleService", "SetCanary", bundle_pb2.SetCanaryRequest, bundle_pb2.SetCanaryResponse)
    promote_bundle = Rpc(
        "BundleService", "PromoteBundle", bundle_pb2.PromoteBundleRequest, bundle_pb2.PromoteBundleResponse, _never
    )
    set_kill_switch = Rpc(
        "BundleService", "SetKillSwitch", bundle_pb2.SetKillSwitchRequest, bundle_pb2.SetKillSwitchResponse
    )
    list_bundle_history = Rpc(
        "BundleService",
        "ListBundleHistory",
        bundle_pb2.ListBundleHistoryRequest,
        bundle_pb2.ListBundleHistoryResponse,
    )
    get_decision = Rpc("BundleService", "GetDecision", bundle_pb2.GetDecisionRequest, bundle_pb2.GetDecisionResponse)
    read_log = Rpc("BundleService", "ReadLog", bundle_pb2.ReadLogRequest, bundle_pb2.ReadLogResponse)
    list_decisions = Rpc(
        "BundleService", "ListDecisions", bundle_pb2.ListDecisionsRequest, bundle_pb2.ListDecisionsResponse
    )


STREAM_PLACE_PATH = "/placewise.v1.DecisionService/StreamPlace"
