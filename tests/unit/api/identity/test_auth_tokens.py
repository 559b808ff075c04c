"""Bearer tokens: making, checking, expiring, reloading, and the permissions of each scope and cluster."""

import datetime
import os
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import yaml
from structlog.testing import capture_logs
from tests.fakes.callers.identity import by_tokens
from tests.fakes.cluster import make_node
from tests.fakes.servers.faces import Faces, FakeEngine, faces

from placewise.v1.cluster_pb2 import GetClusterRequest, ListClustersRequest
from placewise.v1.cluster_pb2_grpc import ClusterServiceStub
from placewise.v1.decision_pb2 import PlaceRequest
from placewise.v1.decision_pb2_grpc import DecisionServiceStub
from placewise.v1.job_pb2 import Job, TaskGroup
from placewise_core.basics.clock import ManualClock
from placewise_core.domain.errors import PermissionDeniedError, UnauthenticatedError
from placewise_service.api.calls.rpcs import RPCS, Reach, Rpc
from placewise_service.api.docs.routes import ROUTES
from placewise_service.api.identity.auth import ANYONE, AccessScope, Credentials, Open, Principal
from placewise_service.api.identity.token_changes import create_token
from placewise_service.api.identity.watched import CredentialsFileError

PLACE = "/v1/clusters/prod/jobs:place"
QUESTION = {"jobs": [{"id": "j", "groups": [{"count": 1}]}]}


def test_a_token_is_stored_as_its_hash_and_shown_once(tmp_path: Path) -> None:
    path = tmp_path / "tokens.yaml"
    token = create_token(path, "slurm", [AccessScope.DECIDE, AccessScope.REPORT], ["prod"])
    assert token.startswith("pw_")
    assert len(token) > 40
    assert token not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    principal = by_tokens(path).authenticate(Credentials(token))
    assert principal == Principal("slurm", frozenset({AccessScope.DECIDE, AccessScope.REPORT}), frozenset({"prod"}))


def test_a_name_is_given_once(tmp_path: Path) -> None:
    create_token(tmp_path / "t", "a", [AccessScope.READ])
    create_token(tmp_path / "t", "b", [AccessScope.READ])
    with pytest.raises(CredentialsFileError, match="'a'"):
        create_token(tmp_path / "t", "a", [AccessScope.READ])


@pytest.mark.parametrize("token", [None, "", "pw_wrong", "\udcff"])
def test_no_token_and_a_wrong_one_are_refused(tmp_path: Path, token: str | None) -> None:
    create_token(tmp_path / "t", "a", [AccessScope.READ])
    with pytest.raises(UnauthenticatedError):
        by_tokens(tmp_path / "t").authenticate(Credentials(token))


def test_refused_credentials_are_logged_with_a_rate_limit(tmp_path: Path) -> None:
    create_token(tmp_path / "t", "a", [AccessScope.READ])
    clock = ManualClock()
    tokens = by_tokens(tmp_path / "t", clock)
    with capture_logs() as lines:
        for second in range(25):
            for _ in range(100):
                with pytest.raises(UnauthenticatedError):
                    tokens.authenticate(Credentials(f"pw_{second}", peer="10.0.0.7:5"))
            clock.advance(1.0)
    reported = [(line["peer"], line["reason"], line["others_before"]) for line in lines]
    reason = "the bearer token is not valid"
    assert reported == [("10.0.0.7:5", reason, 0), ("10.0.0.7:5", reason, 999), ("10.0.0.7:5", reason, 999)]
    assert "pw_" not in str(lines)


def test_a_token_expires(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    end = datetime.datetime.fromtimestamp(1_000_060.0, datetime.UTC)
    token = create_token(tmp_path / "t", "a", [AccessScope.READ], expire_time=end)
    tokens = by_tokens(tmp_path / "t", clock)
    assert tokens.authenticate(Credentials(token)).name == "a"
    clock.advance(60.0)
    with pytest.raises(UnauthenticatedError):
        tokens.authenticate(Credentials(token))


def test_the_file_is_read_again_and_a_broken_one_keeps_the_last_good(tmp_path: Path) -> None:
    path, clock = tmp_path / "t", ManualClock()
    first = create_token(path, "first", [AccessScope.READ])
    tokens = by_tokens(path, clock)
    second = create_token(path, "second", [AccessScope.READ])
    with pytest.raises(UnauthenticatedError):
        tokens.authenticate(Credentials(second))
    clock.advance(2.0)
    assert tokens.authenticate(Credentials(second)).name == "second"
    path.write_text("tokens: [{name: third}]")
    clock.advance(2.0)
    assert tokens.authenticate(Credentials(first)).name == "first"
    path.unlink()
    clock.advance(2.0)
    assert tokens.authenticate(Credentials(first)).name == "first"
    path.write_text("tokens: []")
    clock.advance(2.0)
    with pytest.raises(UnauthenticatedError):
        tokens.authenticate(Credentials(first))


@pytest.mark.parametrize(
    "text", ["{", "[]", "tokens: 3", "tokens: [{name: a, sha256: zz, scopes: [read]}]", "tokenz: []"]
)
def test_a_file_that_is_no_tokens_file_is_refused_at_start(tmp_path: Path, text: str) -> None:
    (tmp_path / "t").write_text(text)
    with pytest.raises(CredentialsFileError):
        by_tokens(tmp_path / "t")


def test_a_missing_file_is_refused_at_start(tmp_path: Path) -> None:
    with pytest.raises(CredentialsFileError):
        by_tokens(tmp_path / "t")


def test_no_scope_includes_another() -> None:
    for scope in AccessScope:
        principal = Principal("x", frozenset({scope}))
        for other in AccessScope:
            if other is scope:
                principal.require(other, "any")
            else:
                with pytest.raises(PermissionDeniedError):
                    principal.require(other, "any")


def test_a_token_of_one_cluster_has_no_right_over_all() -> None:
    principal = Principal("x", frozenset(AccessScope), frozenset({"a"}))
    principal.require(AccessScope.READ, "a")
    for cluster in ("b", None):
        with pytest.raises(PermissionDeniedError):
            principal.require(AccessScope.READ, cluster)
    assert Open().authenticate(Credentials()) is ANYONE


async def test_both_faces_demand_tokens(tmp_path: Path) -> None:
    path = tmp_path / "t"
    reader = create_token(path, "reader", [AccessScope.READ], ["prod"])
    decider = create_token(path, "decider", [AccessScope.DECIDE], ["prod"])
    engine = FakeEngine()
    for cluster in ("prod", "other"):
        await engine.report_nodes(cluster, [make_node("n0")], full=True)
    async with faces(engine, authenticator=by_tokens(path)) as running:
        assert await rest_codes(running, reader) == [200, 403, 403, 403]
        assert await rest_codes(running, decider) == [403, 200, 403, 403]
        assert await rest_codes(running, None) == [401, 401, 401, 401]
        assert (await running.http.get("/metrics")).status_code == 401
        assert (await running.http.get("/healthz")).status_code == 200
        stub = ClusterServiceStub(running.channel)
        metadata = (("authorization", f"Bearer {reader}"),)
        assert list((await stub.ListClusters(ListClustersRequest(), metadata=metadata)).clusters) == ["prod"]
        for wrong, code in (
            ((), grpc.StatusCode.UNAUTHENTICATED),
            ((("authorization", f"Basic {reader}"),), grpc.StatusCode.UNAUTHENTICATED),
            ((("authorization", f"Bearer {decider}"),), grpc.StatusCode.PERMISSION_DENIED),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.GetCluster(GetClusterRequest(cluster="prod"), metadata=wrong)
            assert caught.value.code() is code


@pytest.mark.parametrize("name", sorted(RPCS))
async def test_each_call_needs_its_scope_on_its_cluster_by_both_faces(tmp_path: Path, name: str) -> None:
    rpc, path = RPCS[name], tmp_path / "t"
    others = [scope for scope in AccessScope if scope is not rpc.scope]
    everywhere = create_token(path, "everywhere", [rpc.scope])
    here = create_token(path, "here", [rpc.scope], ["prod"])
    refused = [create_token(path, "another scope", others)]
    if rpc.reach is Reach.CLUSTER:
        refused.append(create_token(path, "another cluster", [rpc.scope], ["other"]))
    if rpc.reach is Reach.ALL:
        refused.append(here)
    async with faces(authenticator=by_tokens(path)) as running:
        for token in (everywhere, *([] if here in refused else [here])):
            assert not await is_denied(running, rpc, token)
        for token in refused:
            assert await is_denied(running, rpc, token)


async def is_denied(running: Faces, rpc: Rpc, token: str) -> bool:
    """Whether the token may not make the call, on cluster "prod" if it names one: both faces agree."""
    fields = {"cluster": "prod"} if "cluster" in rpc.request.DESCRIPTOR.fields_by_name else {}
    call = running.channel.unary_unary(rpc.path, response_deserializer=rpc.response.FromString)
    answered = call(rpc.request(**fields).SerializeToString(), metadata=(("authorization", f"Bearer {token}"),))
    by_grpc = await answered.code() is grpc.StatusCode.PERMISSION_DENIED
    (route,) = (route for route in ROUTES if route.rpc is rpc)
    url = route.path.format(cluster="prod", decision_id="d", name="n")
    body = {"json": {}} if route.body else {}
    response = await running.http.request(route.method, url, headers={"authorization": f"Bearer {token}"}, **body)
    assert (response.status_code == 403) is by_grpc, (rpc.name, response.text)
    return by_grpc


async def test_each_question_of_a_stream_is_authorised_by_its_own_cluster(tmp_path: Path) -> None:
    token = create_token(tmp_path / "t", "prod alone", [AccessScope.DECIDE], ["prod"])
    engine = FakeEngine()
    for cluster in ("prod", "other"):
        await engine.report_nodes(cluster, [make_node("n0")], full=True)

    async def questions() -> AsyncIterator[PlaceRequest]:
        for cluster in ("prod", "other", "prod"):
            group = TaskGroup(role=TaskGroup.WORKER, count=1)
            yield PlaceRequest(cluster=cluster, jobs=[Job(id=f"in-{cluster}", groups=[group])])

    async with faces(engine, authenticator=by_tokens(tmp_path / "t")) as running:
        stub = DecisionServiceStub(running.channel)
        metadata = (("authorization", f"Bearer {token}"),)
        answers = [answer async for answer in stub.StreamPlace(questions(), metadata=metadata)]
        assert [answer.error.code for answer in answers] == [0, grpc.StatusCode.PERMISSION_DENIED.value[0], 0]


async def rest_codes(running: Faces, token: str | None) -> list[int]:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    http = running.http
    return [
        (await http.get("/v1/clusters/prod", headers=headers)).status_code,
        (await http.post(PLACE, json=QUESTION, headers=headers)).status_code,
        (await http.get("/v1/clusters/other", headers=headers)).status_code,
        (await http.get("/v1/bundles", headers=headers)).status_code,
    ]


def test_the_file_is_plain_yaml(tmp_path: Path) -> None:
    create_token(tmp_path / "t", "a", [AccessScope.READ, AccessScope.ADMIN], ["y", "x"])
    [row] = yaml.safe_load((tmp_path / "t").read_text())["tokens"]
    assert (row["name"], row["scopes"], row["clusters"]) == ("a", ["admin", "read"], ["x", "y"])
    assert not [name for name in os.listdir(tmp_path) if name != "t"]
