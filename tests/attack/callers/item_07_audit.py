"""Who did it: what records say of changes and refusals, whether a name can forge one, and what happens without room."""

import json
import time
import urllib.error
import urllib.request
from typing import Any

from tests.attack.attack import Attack, Figures
from tests.attack.source import Service, Source

TITLE = "Who did it"

_TOKENS = {
    "operator": {"scopes": ["read", "decide", "report", "admin"]},
    "reader": {"scopes": ["read"], "clusters": ["prod"]},
}
_FORGED = 'x\n{"record":"audit","caller":"root","call":"DeleteCluster","result":"OK"}'
_NODE = {"id": "n0", "capacity": {"cpuCores": 8, "gpus": 4, "memoryGib": 64}, "state": "READY"}
_WRITTEN_S = 5.0


def _ask(service: Service, method: str, path: str, token: str, body: Any = None) -> int:
    request = urllib.request.Request(f"{service.url}{path}", method=method)
    request.add_header("Authorization", f"Bearer {token}")
    if body is not None:
        request.data = json.dumps(body).encode()
        request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=10.0) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def _question(job: str, request_id: str = "") -> dict[str, Any]:
    return {"jobs": [{"id": job, "groups": [{"role": "WORKER", "count": 1}]}], "requestId": request_id}


def _records(service: Service, call: str) -> list[dict[str, Any]]:
    """The records so far, once there is one of this call, which is the last that was made."""
    until_s = time.monotonic() + _WRITTEN_S
    while True:
        rows = [json.loads(line) for line in service.text().splitlines() if line.startswith('{"record"')]
        if time.monotonic() > until_s or any(row["call"] == call for row in rows):
            return rows
        time.sleep(0.05)


def _named(source: Source) -> Figures:
    with source.service(tokens=_TOKENS) as service:
        operator, reader = service.tokens["operator"], service.tokens["reader"]
        place = "/v1/clusters/prod/jobs:place"
        changes = [
            _ask(service, "PUT", "/v1/clusters/prod/nodes", operator, {"nodes": [_NODE], "full": True}),
            _ask(service, "POST", place, operator, _question("job-1")),
            _ask(service, "DELETE", "/v1/clusters/prod", operator),
        ]
        refused = [
            _ask(service, "DELETE", "/v1/clusters/prod", reader),
            _ask(service, "GET", "/v1/clusters/other", reader),
            _ask(service, "GET", "/v1/clusters/prod", "wrong"),
            _ask(service, "POST", place, operator, _question("job-2", _FORGED)),
            _ask(service, "POST", place, operator, {**_question("job-3"), "dryRun": True}),
            _ask(service, "POST", "/v1/clusters/prod/tasks:partition", operator, {"task": {}}),
            _ask(service, "GET", "/v1/clusters/prod", reader),
            _ask(service, "GET", "/v1/bundles", reader),
        ]
        rows = _records(service, "ListBundles")
        text = service.text()
    return {
        "changes": changes.count(200),
        "changes_with_caller": sum(row["result"] == "OK" and row["caller"] == "operator" for row in rows),
        "refusals": sum(status >= 400 for status in refused),
        "refusals_recorded": sum(row["result"] != "OK" for row in rows),
        "forged": sum(row["caller"] == "root" for row in rows),
        "secrets": sum(token in text for token in (operator, reader, "wrong")),
    }


def _is_named(figures: Figures) -> bool:
    return (
        (figures["changes"], figures["changes_with_caller"]) == (3, 3)
        and (figures["refusals"], figures["refusals_recorded"]) == (8, 8)
        and (figures["forged"], figures["secrets"]) == (0, 0)
    )


def _full(source: Source) -> Figures:
    with source.service({"PLACEWISE_AUDIT__FILE": "/dev/full"}, tokens=_TOKENS) as service:
        operator = service.tokens["operator"]
        status = _ask(service, "PUT", "/v1/clusters/prod/nodes", operator, {"nodes": [_NODE]})
        until_s = time.monotonic() + _WRITTEN_S
        while (ready := _ask(service, "GET", "/readyz", operator)) == 200 and time.monotonic() < until_s:
            time.sleep(0.05)
        request = urllib.request.Request(f"{service.url}/metrics", headers={"Authorization": f"Bearer {operator}"})
        with urllib.request.urlopen(request, timeout=10.0) as answer:
            lines = answer.read().decode().splitlines()
    counted = next(float(line.split()[1]) for line in lines if line.startswith("placewise_audit_unwritten_total "))
    return {"status_of_the_call": status, "status_of_readyz": ready, "records_counted": counted}


def _is_told(figures: Figures) -> bool:
    return (figures["status_of_the_call"], figures["status_of_readyz"]) == (200, 503) and figures[
        "records_counted"
    ] == 1


def _flood(source: Source) -> Figures:
    refusals = 500
    with source.service(tokens=_TOKENS) as service:
        for _ in range(refusals):
            _ask(service, "GET", "/v1/clusters/prod", "wrong")
        time.sleep(1.5)
        text = service.text()
    rows = [json.loads(line) for line in text.splitlines() if line.startswith('{"record"')]
    return {
        "refusals": refusals,
        "refusals_recorded": len(rows),
        "lines_in_the_log": sum("credentials refused" in line for line in text.splitlines()),
    }


def _is_bounded(figures: Figures) -> bool:
    return figures["refusals_recorded"] == figures["refusals"] and 1 <= int(figures["lines_in_the_log"]) <= 10


_CALLS = "tests/contract/faces/test_api_audit.py"

ATTACKS = (
    Attack(
        "changes and refusals",
        "Every change and every refusal has a record that names its caller; no request id forges one, and none holds a "
        "token.",
        f"{_CALLS}::test_every_refusal_is_on_record_with_who_was_refused",
        _named,
        _is_named,
    ),
    Attack(
        "no room for records",
        "A record that cannot be written fails no call, is counted, and turns readiness red.",
        "tests/unit/service/test_audit_log.py::test_a_full_disk_is_told",
        _full,
        _is_told,
        needs="audit records",
    ),
    Attack(
        "flood of wrong tokens",
        "Each refused credential has a record of its own in the audit, and they are logged with a rate limit.",
        "tests/unit/api/identity/test_auth_tokens.py::test_refused_credentials_are_logged_with_a_rate_limit",
        _flood,
        _is_bounded,
    ),
)
