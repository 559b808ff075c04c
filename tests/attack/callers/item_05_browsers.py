"""An open service as a page in somebody's browser finds it: requests with the headers that browsers send."""

import http.client
import json
from functools import partial

from tests.attack.attack import Attack, Figures
from tests.attack.source import Service, Source

TITLE = "Browsers"
_JSON = {"Content-Type": "application/json"}
_NODE = {"id": "n1", "capacity": {"cpuCores": 8, "gpus": 1, "memoryGib": 8}}
# As in a container: on every address, without credentials.
_COMPOSE = {"PLACEWISE_SERVER__REST_HOST": "0.0.0.0", "PLACEWISE_SERVER__INSECURE": "true"}
_NAMES = {"PLACEWISE_SERVER__ALLOWED_HOSTS": "placewise-1"}
_PLACE = "/v1/clusters/prod/jobs:place"
_QUESTION = '{"jobs":[{"id":"j","groups":[{"count":1,"demand":{"gpus":1}}]}]}'


def _ask(service: Service, method: str, path: str, headers: dict[str, str], body: str = "") -> tuple[int, str]:
    """Status and Content-Security-Policy. Exactly these headers are sent, and the length of the body."""
    connection = http.client.HTTPConnection("127.0.0.1", service.rest_port, timeout=30.0)
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in {"Host": f"127.0.0.1:{service.rest_port}", **headers}.items():
            connection.putheader(name, value)
        if body or method in ("POST", "PUT"):
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body.encode())
        answer = connection.getresponse()
        answer.read()
        return answer.status, answer.getheader("Content-Security-Policy", "")
    finally:
        connection.close()


def _begin(service: Service) -> None:
    status, _ = _ask(service, "PUT", "/v1/clusters/prod/nodes", _JSON, json.dumps({"nodes": [_NODE]}))
    assert status == 200


def _measure_rebinding(source: Source) -> Figures:
    with source.service(_COMPOSE) as service:
        _begin(service)
        foreign = {"Host": f"evil.example:{service.rest_port}"}
        connect = "/placewise.v1.ClusterService/GetCluster"
        return {
            "get": _ask(service, "GET", "/v1/clusters/prod", foreign)[0],
            "connect": _ask(service, "POST", connect, foreign | _JSON, '{"cluster":"prod"}')[0],
            "page": _ask(service, "GET", "/", foreign)[0],
            "openapi": _ask(service, "GET", "/openapi.json", foreign)[0],
            "delete": _ask(service, "DELETE", "/v1/clusters/prod", foreign)[0],
            "cluster_after": _ask(service, "GET", "/v1/clusters/prod", {})[0],
        }


def _rebinding_holds(figures: Figures) -> bool:
    return figures["cluster_after"] == 200 and all(
        figures[name] == 403 for name in ("get", "connect", "page", "openapi", "delete")
    )


def _measure_pages(settings: dict[str, str], source: Source) -> Figures:
    with source.service(settings) as service:
        _begin(service)
        foreign = {"Origin": "http://evil.example"}
        return {
            "foreign_origin": _ask(service, "POST", _PLACE, foreign | _JSON, _QUESTION)[0],
            "no_origin": _ask(service, "POST", _PLACE, {"Origin": "null"} | _JSON, _QUESTION)[0],
            "no_content_type": _ask(service, "POST", _PLACE, {}, _QUESTION)[0],
            "text_plain": _ask(service, "POST", "/v1/bundles/default:activate", {"Content-Type": "text/plain"})[0],
            "no_body": _ask(service, "POST", "/v1/bundles/default:activate", {})[0],
            "own_origin": _ask(
                service, "POST", _PLACE, {"Origin": f"http://127.0.0.1:{service.rest_port}"} | _JSON, _QUESTION
            )[0],
        }


def _pages_hold(figures: Figures) -> bool:
    return dict(figures) == {
        "foreign_origin": 403, "no_origin": 403, "no_content_type": 415, "text_plain": 415, "no_body": 415,
        "own_origin": 200,
    }  # fmt: skip


def _measure_callers(source: Source) -> Figures:
    with source.service(_COMPOSE, if_known=_NAMES) as service:
        _begin(service)
        by_address = {"Host": f"10.0.0.7:{service.rest_port}"}
        return {
            "probe": _ask(service, "GET", "/healthz", by_address)[0],
            "ready": _ask(service, "GET", "/readyz", by_address)[0],
            "scrape": _ask(service, "GET", "/metrics", by_address)[0],
            "by_service_name": _ask(service, "GET", "/v1/clusters/prod", {"Host": "placewise-1:8080"})[0],
            "by_socket": _ask(service, "GET", "/v1/clusters/prod", {"Host": "localhost"})[0],
        }


def _callers_hold(figures: Figures) -> bool:
    return set(figures.values()) == {200}


def _measure_policy(source: Source) -> Figures:
    with source.service() as service:
        _, policy = _ask(service, "GET", "/", {})
    names = {part.split()[0] for part in policy.split(";") if part.strip()}
    return {name: int(name in names) for name in ("frame-ancestors", "form-action", "base-uri")}


def _policy_holds(figures: Figures) -> bool:
    return set(figures.values()) == {1}


ATTACKS = (
    Attack(
        "DNS rebinding",
        "A service without tokens on every address answers no page whose name was pointed to it, and deletes nothing.",
        "tests/contract/faces/test_api_hosts.py::test_a_page_whose_name_was_pointed_here_deletes_nothing",
        _measure_rebinding,
        _rebinding_holds,
    ),
    *(
        Attack(
            f"pages of other sites, {name}",
            "A foreign Origin is refused, and a change whose type is not JSON; the service's own page may ask.",
            "tests/contract/faces/test_api_rest.py::test_a_body_is_said_to_be_json",
            partial(_measure_pages, settings),
            _pages_hold,
        )
        for name, settings in (("on loopback", {}), ("on every address", _COMPOSE))
    ),
    Attack(
        "honest callers of an open service",
        "Probes and scrapers ask by address, adapters by the service's name, the SDK through a socket.",
        "tests/contract/faces/test_api_hosts.py::test_an_open_service_answers_the_names_it_knows_and_probes_by_any",
        _measure_callers,
        _callers_hold,
    ),
    Attack(
        "the page's policy",
        "The page may not be framed, sends no form and has no base.",
        "tests/contract/faces/test_api_rest.py::test_the_page_has_no_data_and_no_foreign_script",
        _measure_policy,
        _policy_holds,
    ),
)
