"""Where each call of the contract lives in REST. One table: the router and the OpenAPI document both read it."""

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from placewise_core.basics.frozen import frozen
from placewise_service.api.calls.rpcs import RPCS, Rpc
from placewise_service.api.docs import examples

_CLUSTER = "/v1/clusters/{cluster}"


@frozen
class Route:
    """`body` names the request field that the HTTP body is; "*" means the request itself, "" that there is none.

    Fields in the path are not in the body; `query` fields are query parameters.
    """

    method: str
    path: str
    rpc: Rpc
    summary: str
    body: str = ""
    query: tuple[str, ...] = ()
    example: Mapping[str, Any] = field(default_factory=dict)
    example_response: Mapping[str, Any] = field(default_factory=dict)


ROUTES: tuple[Route, ...] = (
    Route(
        "POST",
        f"{_CLUSTER}/jobs:place",
        RPCS["Place"],
        "Where do these jobs' tasks go?",
        body="*",
        example=examples.PLACE,
        example_response=examples.PLACED,
    ),
    Route(
        "POST",
        f"{_CLUSTER}/jobs:admitOrWait",
        RPCS["AdmitOrWait"],
        "Does each job start now, with how many GPUs, or does it wait?",
        body="*",
        example=examples.ADMIT,
        example_response=examples.ADMITTED,
    ),
    Route(
        "POST",
        f"{_CLUSTER}/tasks:partition",
        RPCS["Partition"],
        "How is this divisible task split?",
        body="*",
        example=examples.PARTITION,
        example_response=examples.PARTITIONED,
    ),
    Route(
        "PUT",
        f"{_CLUSTER}/nodes",
        RPCS["ReportNodes"],
        "Insert or update nodes, with their telemetry.",
        body="*",
        example=examples.NODES,
        example_response={"snapshotVersion": "1", "nodes": 1},
    ),
    Route(
        "POST",
        f"{_CLUSTER}/jobs:reportEvents",
        RPCS["ReportJobEvents"],
        "Say what happened to jobs.",
        body="*",
        example=examples.EVENTS,
        example_response={"snapshotVersion": "3", "applied": 1},
    ),
    Route(
        "GET",
        "/v1/clusters",
        RPCS["ListClusters"],
        "Names of the clusters the caller may see.",
        example_response={"clusters": ["prod"]},
    ),
    Route(
        "GET",
        _CLUSTER,
        RPCS["GetCluster"],
        "Inventory, jobs, queues and settings.",
        query=("full",),
        example_response=examples.CLUSTER,
    ),
    Route("DELETE", _CLUSTER, RPCS["DeleteCluster"], "Forget a cluster."),
    Route(
        "PATCH",
        f"{_CLUSTER}/settings",
        RPCS["UpdateClusterSettings"],
        "Change the settings that the body names.",
        body="settings",
        example=examples.SETTINGS,
        example_response={"settings": examples.SETTINGS},
    ),
    Route(
        "GET",
        f"{_CLUSTER}/decisions",
        RPCS["ListDecisions"],
        "The latest decisions this replica took, newest first.",
        query=("page_size",),
        example_response={"decisions": [examples.PAST]},
    ),
    Route(
        "POST",
        f"{_CLUSTER}/log:read",
        RPCS["ReadLog"],
        "A page of the decision log, for an export elsewhere.",
        body="*",
        example={"after": "1767225600000-0", "pageSize": 500},
        example_response={
            "entries": [{"position": "1767225600001-0", "record": "lAGo"}],
            "exported": "1767225600000-0",
        },
    ),
    Route(
        "GET",
        f"{_CLUSTER}/decisions/{{decision_id}}",
        RPCS["GetDecision"],
        "A past decision with its explanation.",
        example_response=examples.PAST,
    ),
    Route(
        "GET",
        "/v1/bundles",
        RPCS["ListBundles"],
        "Model bundles, and which one answers.",
        example_response={"bundles": [examples.BUNDLE]},
    ),
    Route(
        "POST",
        "/v1/bundles/{name}:activate",
        RPCS["ActivateBundle"],
        "Verify a bundle and let it answer.",
        body="*",
        example={"cluster": "lab"},
        example_response={"bundle": examples.BUNDLE},
    ),
    Route(
        "POST",
        "/v1/bundles:rollback",
        RPCS["RollbackBundle"],
        "Back to the bundle that answered before.",
        body="*",
        example={"cluster": "lab"},
        example_response={"bundle": examples.BUNDLE},
    ),
    Route(
        "POST",
        "/v1/bundles:setShadow",
        RPCS["SetShadow"],
        "Let a bundle or a policy decide in the shadow of Place, and log without answering.",
        body="*",
        example={"name": "candidate"},
        example_response={"bundle": {"name": "candidate", "state": "SHADOW"}},
    ),
    Route(
        "POST",
        "/v1/bundles:setCanary",
        RPCS["SetCanary"],
        "Let a bundle answer a share of the jobs, or end that.",
        body="*",
        example={"name": "candidate", "cluster": "lab", "share": 0.1},
        example_response={
            "bundle": {"name": "candidate", "state": "CANARY"},
            "canary": {"cluster": "lab", "bundle": "candidate", "share": 0.1, "by": "JOB", "salt": "9f0c…"},
        },
    ),
    Route(
        "POST",
        "/v1/bundles:promote",
        RPCS["PromoteBundle"],
        "Let the canary answer every job.",
        body="*",
        example={"cluster": "lab"},
        example_response={"bundle": {"name": "candidate", "state": "ACTIVE"}},
    ),
    Route(
        "POST",
        "/v1/bundles:setKillSwitch",
        RPCS["SetKillSwitch"],
        "Let a heuristic answer Place in place of the learned policies, or end that.",
        body="*",
        example={"policy": "consolidate"},
        example_response={},
    ),
    Route(
        "GET",
        "/v1/bundles:history",
        RPCS["ListBundleHistory"],
        "Changes of bundles, shadows and canaries, newest first.",
        query=("cluster", "page_size"),
        example_response={"changes": [{"kind": "PROMOTED", "cluster": "lab", "bundle": "candidate"}]},
    ),
)
