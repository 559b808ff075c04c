"""Every call of the contract in one table: its scope, its messages, and its handler.

Both faces read this table, so that they cannot differ. A handler turns the message into a command, has it checked,
asks the engine, and turns the answer back; it knows no transport and no credentials.
"""

import asyncio
import enum
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from google.protobuf.message import Message

from placewise.v1 import bundle_pb2, cluster_pb2, decision_pb2
from placewise_core.basics.frozen import frozen
from placewise_core.domain import validate
from placewise_core.domain.checks import check_unique
from placewise_core.domain.cluster import ClusterSettings, Node, QueueSettings
from placewise_core.domain.commands import AdmitCommand, JobEvent, PartitionCommand, PlaceCommand
from placewise_core.domain.decision import AdmitDecision, PlaceDecision
from placewise_core.domain.errors import InvalidRequestError, NotFoundError
from placewise_core.domain.validate import Limits
from placewise_log.logs import Log
from placewise_service.api.calls import admit_and_place, bundle_calls
from placewise_service.api.calls.context import RECENT, CallContext, Past
from placewise_service.api.calls.fingerprint import fingerprint
from placewise_service.api.convert import convert_cluster, convert_in, convert_out
from placewise_service.api.identity.auth import AccessScope, Principal
from placewise_service.aside import ASIDE_BYTES, aside
from placewise_service.engine.pending import Pending

_Request = TypeVar("_Request", bound=Message)
_Converted = TypeVar("_Converted")

# Large listings are converted in steps of this many, so that decisions go on in between.
_STEP = 64
_MANY = 1000  # shares and excluded units from which an answer is converted beside the loop
_ENTRIES_DEFAULT, _MOST_ENTRIES = 500, 1000  # of the decision log, in one page
_PAGE_BYTES = 1 << 20
_FIRST_ENTRIES = 2  # a page reads twice as many, then more: snapshots of large clusters are large
_POSITION = re.compile(r"\d{1,20}(-\d{1,20})?")
_RECENT_DEFAULT = 20


class Reach(enum.StrEnum):
    """Clusters on which a caller needs the scope: the one in the request, any, or every one."""

    CLUSTER = "cluster"
    ANY = "any"
    ALL = "all"


Handler = Callable[[CallContext, Any, Principal, float], Awaitable[Message]]


@frozen
class Rpc:
    """One call of the contract."""

    service: str
    name: str
    scope: AccessScope
    request: type[Message]
    response: type[Message]
    handle: Handler
    reach: Reach = Reach.CLUSTER

    @property
    def path(self) -> str:
        """As gRPC names it."""
        return f"/placewise.v1.{self.service}/{self.name}"


async def _place(
    context: CallContext, request: decision_pb2.PlaceRequest, principal: Principal, deadline_s: float
) -> decision_pb2.PlaceResponse:
    convert = partial(_place_command, principal.name)
    command = convert(request, context.limits) if _is_small(request) else await aside(convert, request, context.limits)
    return await _placed(context, command, await context.engine.place(command, deadline_s))


def _place_command(caller: str, request: decision_pb2.PlaceRequest, limits: Limits) -> PlaceCommand:
    command = convert_in.place_command(request, caller, fingerprint(request, caller))
    validate.check_place(command, limits)
    return command


def _is_small(request: Message) -> bool:
    """True for a request that is converted on the loop."""
    return request.ByteSize() <= ASIDE_BYTES


async def _converted(
    request: _Request, convert: Callable[[_Request, Limits], _Converted], limits: Limits
) -> _Converted:
    """What `convert` makes of the request; of a large one, beside the loop."""
    return convert(request, limits) if _is_small(request) else await aside(convert, request, limits)


async def _placed(
    context: CallContext, command: PlaceCommand, pending: Pending[PlaceDecision]
) -> decision_pb2.PlaceResponse:
    """The answer, written while the store is asked to hold it; a large one afterwards, beside the loop."""
    drafted, request_id = pending.decision, command.request_id
    is_large = convert_out.is_large(drafted)
    message = None if is_large else convert_out.place_response(drafted, request_id)
    decision = await pending.settled()
    context.note(command, "Place", decision)
    if message is not None and decision.meta is drafted.meta:
        convert_out.set_expiry(message, decision)
        return message
    if convert_out.is_large(decision):
        return await aside(convert_out.place_response, decision, request_id)
    return convert_out.place_response(decision, request_id)


async def _partition(
    context: CallContext, request: decision_pb2.PartitionRequest, principal: Principal, deadline_s: float
) -> decision_pb2.PartitionResponse:
    convert = partial(_partition_command, principal.name)
    command = convert(request, context.limits) if _is_small(request) else await aside(convert, request, context.limits)
    decision = await context.engine.partition(command, deadline_s)
    context.note(command, "Partition", decision)
    if len(decision.plan.shares) + len(decision.plan.excluded) > _MANY:
        return await aside(convert_out.partition_response, decision)
    return convert_out.partition_response(decision)


def _partition_command(caller: str, request: decision_pb2.PartitionRequest, limits: Limits) -> PartitionCommand:
    command = convert_in.partition_command(request, caller, fingerprint(request, caller))
    validate.check_partition(command, limits)
    return command


async def _admit_or_wait(
    context: CallContext, request: decision_pb2.AdmitOrWaitRequest, principal: Principal, deadline_s: float
) -> decision_pb2.AdmitOrWaitResponse:
    convert = partial(_admit_command, principal.name)
    asked = convert(request, context.limits) if _is_small(request) else await aside(convert, request, context.limits)
    command, placing = asked
    if placing is not None:
        # Now: the queue must not move for nothing.
        context.engine.check_place_policy(command.cluster, placing.policy, "place.policy")
    admitting = await context.engine.admit_or_wait(command, deadline_s)
    drafted, message = admitting.decision, None
    if not admitting.is_settled:  # the store works meanwhile
        message = _admit_response(context, command, drafted)
    decision = await admitting.settled()
    context.note(command, "AdmitOrWait", decision)
    placing = placing and admit_and_place.of_admitted(placing, command, decision.plan)
    pending = await context.engine.place(placing, deadline_s) if placing is not None and placing.jobs else None
    if message is None or decision is not drafted:
        message = _admit_response(context, command, decision)
    if placing is not None and pending is not None:
        message.placed.CopyFrom(await _placed(context, placing, pending))
    return message


def _admit_response(
    context: CallContext, command: AdmitCommand, decision: AdmitDecision
) -> decision_pb2.AdmitOrWaitResponse:
    return convert_out.admit_response(decision, context.engine.queue_settings(command.cluster, command.queue))


def _admit_command(
    caller: str, request: decision_pb2.AdmitOrWaitRequest, limits: Limits
) -> tuple[AdmitCommand, PlaceCommand | None]:
    command = convert_in.admit_command(request, caller, fingerprint(request, caller))
    validate.check_admit(command, limits)
    if not request.HasField("place"):
        return command, None
    placing = admit_and_place.place_command(request.place, command)
    validate.check_placing(placing, limits)
    return command, placing


async def _report_nodes(
    context: CallContext, request: cluster_pb2.ReportNodesRequest, principal: Principal, deadline_s: float
) -> cluster_pb2.ReportNodesResponse:
    nodes = await _converted(request, _nodes, context.limits)
    if not request.full:
        await _check_growth(context, request.cluster, [node.id for node in nodes])
    now_s = convert_in.host_time(request)
    outcome = await context.engine.report_nodes(request.cluster, nodes, request.full, now_s)
    return cluster_pb2.ReportNodesResponse(snapshot_version=outcome.version, nodes=len(nodes))


def _nodes(request: cluster_pb2.ReportNodesRequest, limits: Limits) -> list[Node]:
    validate.check_nodes_request(request.cluster, len(request.nodes), limits)
    validate.check_host_time(convert_in.host_time(request))
    nodes = []
    for i, message in enumerate(request.nodes):
        node = convert_in.node(message)
        validate.check_node(node, f"nodes[{i}]", limits)
        nodes.append(node)
    check_unique([node.id for node in nodes], "nodes")
    return nodes


async def _check_growth(context: CallContext, cluster: str, reported: Sequence[str]) -> None:
    """Raises InvalidRequestError if a report would take a cluster over its limit."""
    try:
        known = (await context.engine.get_cluster(cluster)).view.nodes.index
    except NotFoundError:
        return  # what begins a cluster is within the limit of a report
    total = len(known) + sum(name not in known for name in reported)
    if total > max(context.limits.nodes, len(known)):
        raise InvalidRequestError(
            f"the cluster would have {total} nodes; the limit is {context.limits.nodes}: report with full=true to "
            "replace those that are gone",
            "nodes",
        )


async def _report_job_events(
    context: CallContext, request: cluster_pb2.ReportJobEventsRequest, principal: Principal, deadline_s: float
) -> cluster_pb2.ReportJobEventsResponse:
    events = await _converted(request, _events, context.limits)
    outcome = await context.engine.report_job_events(request.cluster, events, convert_in.host_time(request))
    return cluster_pb2.ReportJobEventsResponse(
        snapshot_version=outcome.version,
        applied=outcome.applied,
        ignored=outcome.ignored,
        problems=[
            *map(convert_cluster.overcommit, outcome.overcommits),
            *map(convert_cluster.unknown_start, outcome.unknown),
        ],
    )


def _events(request: cluster_pb2.ReportJobEventsRequest, limits: Limits) -> list[JobEvent]:
    validate.check_events_request(request.cluster, len(request.events), limits)
    validate.check_host_time(convert_in.host_time(request))
    events = []
    for i, message in enumerate(request.events):
        event = convert_in.job_event(message)
        validate.check_event(event, f"events[{i}]", limits)
        events.append(event)
    return events


async def _get_cluster(
    context: CallContext, request: cluster_pb2.GetClusterRequest, principal: Principal, deadline_s: float
) -> cluster_pb2.Cluster:
    validate.check_cluster(request.cluster)
    engine = context.engine
    snapshot = await engine.get_cluster(request.cluster)
    # The view changes after the next await. Its records are frozen, so the lists are copied now and rendered in steps.
    nodes = list(snapshot.view.nodes.records) if request.full else []
    jobs = list(snapshot.view.jobs.values()) if request.full else []
    message = convert_cluster.totals(
        snapshot.view, snapshot.is_stale, context.clock.now_s(), _queues_of(context, request.cluster)
    )
    message.heat.extend(map(convert_out.learned_heat, snapshot.heat))
    message.capabilities.extend(map(convert_out.learned_capability, snapshot.capabilities))
    message.co_runs.extend(map(convert_out.learned_co_run, snapshot.co_runs))
    for start in range(0, len(nodes), _STEP):
        message.nodes.extend([convert_cluster.node(node) for node in nodes[start : start + _STEP]])
        await asyncio.sleep(0)
    for start in range(0, len(jobs), _STEP):
        message.jobs.extend([convert_cluster.running_job(job) for job in jobs[start : start + _STEP]])
        await asyncio.sleep(0)
    return message


async def _delete_cluster(
    context: CallContext, request: cluster_pb2.DeleteClusterRequest, principal: Principal, deadline_s: float
) -> cluster_pb2.DeleteClusterResponse:
    validate.check_cluster(request.cluster)
    await context.engine.delete_cluster(request.cluster)
    context.recent.pop(request.cluster, None)
    return cluster_pb2.DeleteClusterResponse()


async def _list_clusters(
    context: CallContext, request: cluster_pb2.ListClustersRequest, principal: Principal, deadline_s: float
) -> cluster_pb2.ListClustersResponse:
    names = await context.engine.clusters()
    return cluster_pb2.ListClustersResponse(clusters=[name for name in names if principal.may_see(name)])


async def _update_settings(
    context: CallContext, request: cluster_pb2.UpdateClusterSettingsRequest, principal: Principal, deadline_s: float
) -> cluster_pb2.UpdateClusterSettingsResponse:
    validate.check_cluster(request.cluster)
    unknown = set(request.update_mask.paths) - set(ClusterSettings.__dataclass_fields__)
    if unknown:
        raise InvalidRequestError(f"unknown setting {min(unknown)!r}", "update_mask")
    settings = convert_cluster.changed_settings(
        request, await _current_settings(context, request.cluster), _queues_of(context, request.cluster)
    )
    validate.check_settings(settings)
    changed = await context.engine.update_settings(request.cluster, settings)
    return cluster_pb2.UpdateClusterSettingsResponse(settings=convert_cluster.settings(changed))


async def _current_settings(context: CallContext, cluster: str) -> ClusterSettings:
    try:
        return (await context.engine.get_cluster(cluster)).view.settings
    except NotFoundError:
        return ClusterSettings()


def _queues_of(context: CallContext, cluster: str) -> Callable[[str], QueueSettings]:
    return lambda queue: context.engine.queue_settings(cluster, queue)


async def _get_decision(
    context: CallContext, request: bundle_pb2.GetDecisionRequest, principal: Principal, deadline_s: float
) -> bundle_pb2.GetDecisionResponse:
    validate.check_cluster(request.cluster)
    validate.check_decision_id(request.decision_id)
    record = await context.engine.get_decision(request.cluster, request.decision_id)
    settings = context.engine.queue_settings(request.cluster, record.queue)
    return convert_out.past_decision(record.rpc, record.time_s, record.answer, settings, record.request_id)


async def _list_decisions(
    context: CallContext, request: bundle_pb2.ListDecisionsRequest, principal: Principal, deadline_s: float
) -> bundle_pb2.ListDecisionsResponse:
    validate.check_cluster(request.cluster)
    if not 0 <= request.page_size <= RECENT:
        raise InvalidRequestError(f"must be 0 … {RECENT}", "page_size")
    await asyncio.sleep(0)  # decisions answered just now are kept a moment later
    latest = list(reversed(context.recent.get(request.cluster, ())))[: request.page_size or _RECENT_DEFAULT]
    return bundle_pb2.ListDecisionsResponse(decisions=[_past(context, request.cluster, past) for past in latest])


async def _read_log(
    context: CallContext, request: bundle_pb2.ReadLogRequest, principal: Principal, deadline_s: float
) -> bundle_pb2.ReadLogResponse:
    validate.check_cluster(request.cluster)
    if not 0 <= request.page_size <= _MOST_ENTRIES:
        raise InvalidRequestError(f"must be 0 … {_MOST_ENTRIES}", "page_size")
    for name, position in (("after", request.after), ("exported", request.exported)):
        if position and not _POSITION.fullmatch(position):
            raise InvalidRequestError("must be a position of the log, or empty", name)
    size, left = request.page_size or _ENTRIES_DEFAULT, _PAGE_BYTES
    log = Log.VIEWS if request.log == bundle_pb2.ReadLogRequest.VIEWS else Log.DECISIONS
    answer = bundle_pb2.ReadLogResponse()
    after, exported, count = request.after, request.exported, _FIRST_ENTRIES
    while len(answer.entries) < size:
        count = min(2 * count, size - len(answer.entries))
        found, state = await context.engine.read_log(request.cluster, log, after, count, exported)
        answer.exported = "" if state.exported == "0" else state.exported
        answer.dropped = state.dropped
        if state.host_time_s is not None:
            answer.host_time.FromNanoseconds(round(state.host_time_s * 1e9))
        for after, record in found:
            left -= len(record)
            if answer.entries and left < 0:
                break
            answer.entries.add(position=after, record=record)
        if left <= 0 or len(found) < count:
            break
        exported = ""  # it is acknowledged
    answer.read_time.FromNanoseconds(round(context.clock.now_s() * 1e9))
    return answer


def _past(context: CallContext, cluster: str, past: Past) -> bundle_pb2.GetDecisionResponse:
    queue = past.answer.plan.queue.queue if isinstance(past.answer, AdmitDecision) else ""
    settings = context.engine.queue_settings(cluster, queue)
    return convert_out.past_decision(past.rpc, past.time_s, past.answer, settings, past.request_id)


def _rpc(service: str, name: str, scope: AccessScope, pb: Any, handle: Handler, reach: Reach = Reach.CLUSTER) -> Rpc:
    response = getattr(pb, f"{name}Response", None) or cluster_pb2.Cluster
    return Rpc(service, name, scope, getattr(pb, f"{name}Request"), response, handle, reach)


PLACE = _rpc("DecisionService", "Place", AccessScope.DECIDE, decision_pb2, _place)
STREAM_PLACE = Rpc(
    "DecisionService",
    "StreamPlace",
    AccessScope.DECIDE,
    decision_pb2.PlaceRequest,
    decision_pb2.PlaceResponse,
    _place,
)

RPCS: Mapping[str, Rpc] = {
    rpc.name: rpc
    for rpc in (
        PLACE,
        _rpc("DecisionService", "Partition", AccessScope.DECIDE, decision_pb2, _partition),
        _rpc("DecisionService", "AdmitOrWait", AccessScope.DECIDE, decision_pb2, _admit_or_wait),
        _rpc("ClusterService", "ReportNodes", AccessScope.REPORT, cluster_pb2, _report_nodes),
        _rpc("ClusterService", "ReportJobEvents", AccessScope.REPORT, cluster_pb2, _report_job_events),
        _rpc("ClusterService", "GetCluster", AccessScope.READ, cluster_pb2, _get_cluster),
        _rpc("ClusterService", "DeleteCluster", AccessScope.ADMIN, cluster_pb2, _delete_cluster),
        _rpc(
            "ClusterService",
            "ListClusters",
            AccessScope.READ,
            cluster_pb2,
            _list_clusters,
            Reach.ANY,
        ),
        _rpc("ClusterService", "UpdateClusterSettings", AccessScope.ADMIN, cluster_pb2, _update_settings),
        _rpc("BundleService", "ListBundles", AccessScope.READ, bundle_pb2, bundle_calls.list_bundles, Reach.ALL),
        _rpc("BundleService", "ActivateBundle", AccessScope.ADMIN, bundle_pb2, bundle_calls.activate_bundle, Reach.ALL),
        _rpc("BundleService", "RollbackBundle", AccessScope.ADMIN, bundle_pb2, bundle_calls.rollback_bundle, Reach.ALL),
        _rpc("BundleService", "SetShadow", AccessScope.ADMIN, bundle_pb2, bundle_calls.set_shadow, Reach.ALL),
        _rpc("BundleService", "SetCanary", AccessScope.ADMIN, bundle_pb2, bundle_calls.set_canary, Reach.ALL),
        _rpc("BundleService", "PromoteBundle", AccessScope.ADMIN, bundle_pb2, bundle_calls.promote_bundle, Reach.ALL),
        _rpc("BundleService", "SetKillSwitch", AccessScope.ADMIN, bundle_pb2, bundle_calls.set_kill_switch, Reach.ALL),
        _rpc(
            "BundleService",
            "ListBundleHistory",
            AccessScope.READ,
            bundle_pb2,
            bundle_calls.list_bundle_history,
            Reach.ALL,
        ),
        _rpc("BundleService", "GetDecision", AccessScope.READ, bundle_pb2, _get_decision),
        _rpc("BundleService", "ListDecisions", AccessScope.READ, bundle_pb2, _list_decisions),
        _rpc("BundleService", "ReadLog", AccessScope.LOG, bundle_pb2, _read_log),
    )
}
