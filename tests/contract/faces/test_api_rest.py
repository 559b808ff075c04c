"""The REST face: problems for every error, timeouts, probes, metrics, the page, and what OpenAPI promises."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from google.protobuf import json_format
from tests.fakes.cluster import make_node
from tests.fakes.servers.faces import ASKED_BY_PAGES, SECRET, FakeEngine, faces

from placewise_core.domain.errors import (
    AlreadyExistsError,
    DeadlineExceededError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    PermissionDeniedError,
    PlacewiseError,
    StaleSnapshotError,
    StateUnavailableError,
    UnauthenticatedError,
)
from placewise_service.api.calls.statuses import problem, problem_headers, status_metadata
from placewise_service.api.docs.openapi import document
from placewise_service.api.docs.routes import ROUTES, Route
from placewise_service.api.faces.rest import rest_app
from placewise_service.settings import LOOPBACK, LimitSettings

GOLDEN = Path(__file__).parent.parent.parent / "golden" / "openapi.json"
PLACE = "/v1/clusters/prod/jobs:place"
JSON = {"content-type": "application/json"}


def question(model: str = "") -> dict[str, Any]:
    return {"jobs": [{"id": "j", "model": model, "groups": [{"count": 1, "demand": {"gpus": 1}}]}]}


async def engine_with_node() -> FakeEngine:
    engine = FakeEngine()
    await engine.report_nodes("prod", [make_node("n0")], full=True)
    return engine


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (InvalidRequestError("m", "f"), 3, 400),
        (UnauthenticatedError("m"), 16, 401),
        (PermissionDeniedError("m"), 7, 403),
        (NotFoundError("m"), 5, 404),
        (AlreadyExistsError("m"), 6, 409),
        (StaleSnapshotError("m"), 10, 409),
        (OverloadedError("m"), 8, 429),
        (StateUnavailableError("m"), 14, 503),
        (DeadlineExceededError("m"), 4, 504),
        (PlacewiseError("m"), 13, 500),
    ],
)
def test_both_faces_read_one_table(error: PlacewiseError, code: int, status: int) -> None:
    assert error.grpc_code == code
    assert problem(error)["status"] == status
    assert problem(error)["reason"] == error.reason
    assert error.reason.encode() in status_metadata(error)[0][1]
    assert ("Retry-After" in problem_headers(error)) == (error.retry_after_s is not None)


def test_the_table_has_every_error() -> None:
    assert {error.__name__ for error in PlacewiseError.__subclasses__()} == {
        "InvalidRequestError",
        "UnauthenticatedError",
        "PermissionDeniedError",
        "NotFoundError",
        "AlreadyExistsError",
        "StaleSnapshotError",
        "OverloadedError",
        "StateUnavailableError",
        "DeadlineExceededError",
    }


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "reason"),
    [
        ("GET", "/nowhere", None, 404, "NO_SUCH_PATH"),
        ("PUT", "/v1/bundles", None, 405, "METHOD_NOT_ALLOWED"),
        ("POST", PLACE, "{", 400, "INVALID_REQUEST"),
        ("POST", PLACE, "[]", 400, "INVALID_REQUEST"),
        ("POST", PLACE, '{"jobz": []}', 400, "INVALID_REQUEST"),
        ("POST", PLACE, '{"jobs": 3}', 400, "INVALID_REQUEST"),
        ("POST", PLACE, '{"jobs": [], "jobs": []}', 400, "INVALID_REQUEST"),
        ("POST", PLACE, '{"jobs": [{"id": "j"}], "dryRun": true, "dry_run": false}', 400, "INVALID_REQUEST"),
        ("POST", PLACE, '{"cluster": "other"}', 400, "INVALID_REQUEST"),
        ("POST", PLACE, '{"seed": 1e400}', 400, "INVALID_REQUEST"),
        ("POST", PLACE, '{"requestId": "\\ud800"}', 400, "INVALID_REQUEST"),
        ("POST", PLACE, "[" * 100_000, 400, "INVALID_REQUEST"),
        ("GET", "/v1/clusters/prod?full=maybe", None, 400, "INVALID_REQUEST"),
        ("GET", "/v1/clusters/prod?ful=true", None, 400, "INVALID_REQUEST"),
        ("GET", "/v1/clusters/a%00b", None, 400, "INVALID_REQUEST"),
        ("GET", "/v1/clusters/prod/decisions?pageSize=x", None, 400, "INVALID_REQUEST"),
    ],
)
async def test_every_error_is_a_problem(method: str, path: str, body: str | None, status: int, reason: str) -> None:
    async with faces(await engine_with_node()) as running:
        response = await running.http.request(method, path, content=body, headers=JSON if body else {})
    assert (response.status_code, response.json()["reason"]) == (status, reason)
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["status"] == status


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"requestId": "\xff"}', "it is not UTF-8"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "a value is not of the kind, or in the range"),
        (b'{"jobs": [{"totalEpochs": ' + b"9" * 400 + b"}]}", "a value is not of the kind, or in the range"),
        (b'{"jobs": [', "Expecting value: line 1 column 11"),
    ],
)
async def test_what_is_wrong_with_a_body_is_said_in_terms_of_the_body(body: bytes, words: str) -> None:
    async with faces(await engine_with_node()) as running:
        response = await running.http.post(PLACE, content=body, headers=JSON)
    assert response.status_code == 400
    assert response.json()["detail"].startswith(f"the body is not a PlaceRequest: {words}")


async def test_a_body_of_another_kind_is_refused() -> None:
    async with faces() as running:
        response = await running.http.post(PLACE, content=b"a=b", headers={"content-type": "text/plain"})
    assert (response.status_code, response.json()["reason"]) == (415, "UNSUPPORTED_MEDIA_TYPE")


@pytest.mark.parametrize(
    ("path", "headers", "body", "status"),
    [
        (PLACE, {}, b'{"jobs":[]}', 415),
        (PLACE, {"content-type": ""}, b'{"jobs":[]}', 415),
        (PLACE, {"content-type": "text/plain"}, b"{}", 415),
        ("/v1/bundles/other:activate", {"content-type": "text/plain"}, b"", 415),
        ("/v1/bundles/other:activate", {}, b"{}", 415),
        ("/v1/bundles/other:activate", {}, b"", 415),
        ("/v1/bundles/other:activate", {"content-type": ""}, b"", 415),
        ("/v1/bundles/other:activate", JSON, b"", 200),
    ],
)
async def test_a_body_is_said_to_be_json(path: str, headers: dict[str, str], body: bytes, status: int) -> None:
    """Any page makes a browser send what says nothing, or text/plain."""
    async with faces() as running:
        assert (await running.http.post(path, content=body, headers=headers)).status_code == status


@pytest.mark.parametrize("route", [route for route in ROUTES if route.method not in ("GET", "DELETE")])
async def test_a_change_without_a_content_type_is_refused_even_without_a_body(route: Route) -> None:
    """A form of any page can send it; DELETE it cannot send."""
    async with faces(await engine_with_node()) as running:
        url = route.path.format(cluster="prod", name="other")
        answer = await running.http.request(route.method, url)
        assert (answer.status_code, answer.json()["reason"]) == (415, "UNSUPPORTED_MEDIA_TYPE")
        assert running.engine.bundles.active == "default"
    assert "415" in document()["paths"][route.path][route.method.lower()]["responses"]


async def test_an_unforeseen_error_leaks_nothing() -> None:
    async with faces(await engine_with_node()) as running:
        response = await running.http.post(PLACE, json=question("LEAK"))
    assert response.status_code == 500
    assert response.json()["detail"] == "internal error"
    assert SECRET not in response.text
    assert "hunter2" not in response.text
    assert response.json()["metadata"]["incident"]


async def test_overload_says_when_to_ask_again() -> None:
    async with faces(await engine_with_node()) as running:
        response = await running.http.post(PLACE, json=question("OVERLOADED"))
    assert (response.status_code, response.headers["retry-after"]) == (429, "1")


async def test_a_body_over_the_limit_is_refused_before_it_is_read() -> None:
    async with faces(limits=LimitSettings(message_bytes=1024)) as running:
        declared = await running.http.post(PLACE, content=b"x" * 2000, headers=JSON)

        async def chunks() -> Any:
            for _ in range(3):
                yield b" " * 500

        streamed = await running.http.post(PLACE, content=chunks(), headers=JSON)
        metrics = running.gateway.telemetry.render().decode()
    assert declared.status_code == streamed.status_code == 400
    assert "1024" in declared.json()["detail"]
    assert 'placewise_refused_total{face="all",limit="message_bytes"} 2.0' in metrics


async def test_a_timeout_is_kept() -> None:
    async with faces(await engine_with_node()) as running:
        late = await running.http.post(PLACE, json=question("SLEEP"), headers={"Placewise-Timeout-Ms": "20"})
        absurd = await running.http.post(PLACE, json=question(), headers={"Placewise-Timeout-Ms": "nan"})
        fine = await running.http.post(PLACE, json=question(), headers={"Placewise-Timeout-Ms": "5000"})
    assert (late.status_code, late.json()["reason"]) == (504, "DEADLINE_EXCEEDED")
    assert absurd.status_code == 400
    assert fine.status_code == 200


async def test_probes_tell_alive_from_ready() -> None:
    async with faces(FakeEngine(is_ready=False)) as running:
        assert (await running.http.get("/healthz")).status_code == 200
        assert (await running.http.get("/readyz")).status_code == 503
        running.engine.is_ready = True
        assert (await running.http.get("/readyz")).status_code == 200
        running.engine.trouble = "a bundle was chosen and is refused here"
        printed = await running.http.get("/readyz")
        assert (printed.status_code, printed.json()["problem"]) == (503, running.engine.trouble)
        running.engine.trouble = ""
        running.gateway.is_preparing = True
        assert (await running.http.get("/readyz")).status_code == 503
        running.gateway.is_preparing = False
        running.gateway.is_draining = True
        assert (await running.http.get("/readyz")).status_code == 503


async def test_metrics_count_what_was_asked() -> None:
    async with faces(await engine_with_node()) as running:
        await running.http.post(PLACE, json=question())
        await running.http.post(PLACE, json=question("OVERLOADED"))
        await asyncio.sleep(0)  # calls are counted when their answers are on their way
        text = (await running.http.get("/metrics")).text
    assert 'placewise_rpc_seconds_count{code="OK",rpc="Place"} 1.0' in text
    assert 'placewise_rpc_seconds_count{code="OVERLOADED",rpc="Place"} 1.0' in text


async def test_the_latest_decisions_come_newest_first() -> None:
    async with faces(await engine_with_node()) as running:
        for name in ("one", "two", "three"):
            await running.http.post(PLACE, json={**question(), "requestId": name})
        answer = (await running.http.get("/v1/clusters/prod/decisions?pageSize=2")).json()
    assert [item["place"]["requestId"] for item in answer["decisions"]] == ["three", "two"]


async def test_a_patch_changes_only_what_it_names() -> None:
    async with faces(await engine_with_node()) as running:
        path = "/v1/clusters/prod/settings"
        await running.http.patch(path, json={"placePolicy": "tetris", "explorationRate": 0.5})
        answer = (await running.http.patch(path, json={"exploration_rate": 0.25})).json()
    assert answer["settings"] == {"placePolicy": "tetris", "explorationRate": 0.25}


async def test_the_page_has_no_data_and_no_foreign_script() -> None:
    async with faces() as running:
        page = await running.http.get("/")
        script = await running.http.get("/page/page.js")
        style = await running.http.get("/page/page.css")
    assert page.status_code == script.status_code == style.status_code == 200
    assert "http" not in page.text
    policy = page.headers["content-security-policy"]
    assert "script-src 'self'" in policy
    for directive in ("frame-ancestors", "form-action", "base-uri"):
        assert f"{directive} 'none'" in policy
    assert "innerHTML" not in script.text


@pytest.mark.parametrize(("headers", "status"), ASKED_BY_PAGES)
async def test_no_page_of_another_site_can_ask(headers: dict[str, str], status: int) -> None:
    async with faces() as running:
        transport = httpx.ASGITransport(rest_app(running.gateway, LOOPBACK))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            activated = await http.post("/v1/bundles/other:activate", headers=headers | JSON)
            assert activated.status_code == status
            for path in ("/", "/page/page.js", "/openapi.json"):
                by_host = 403 if headers.get("host") == "evil.example" else 200  # others may be followed as links
                assert (await http.get(path, headers=headers)).status_code == by_host
            for path in ("/healthz", "/readyz"):
                assert (await http.get(path, headers=headers)).status_code == 200
            scraped = 200 if "host" in headers else status
            assert (await http.get("/metrics", headers=headers)).status_code == scraped


def test_openapi_is_the_golden_one() -> None:
    """A change of the contract shows here; `make openapi` writes the new one."""
    assert document() == json.loads(GOLDEN.read_text())


@pytest.mark.parametrize("route", ROUTES, ids=[route.rpc.name for route in ROUTES])
def test_examples_are_messages_of_the_contract(route: Route) -> None:
    request = route.rpc.request()
    body = {route.body: route.example} if route.body not in ("", "*") else route.example
    json_format.ParseDict(dict(body), request)
    json_format.ParseDict(dict(route.example_response), route.rpc.response())


async def test_every_answer_is_what_openapi_says() -> None:
    """Field names of real answers are among the properties of their schema."""
    schemas = document()["components"]["schemas"]
    async with faces(await engine_with_node()) as running:
        answer = (await running.http.post(PLACE, json=question())).json()
        cluster = (await running.http.get("/v1/clusters/prod?full=true")).json()
    assert set(answer) <= set(schemas["PlaceResponse"]["properties"])
    assert set(answer["decisions"][0]) <= set(schemas["JobDecision"]["properties"])
    assert set(cluster) <= set(schemas["Cluster"]["properties"])
    assert set(cluster["nodes"][0]) <= set(schemas["Node"]["properties"])
