"""A request_id under attack: another caller's question, a repeat after the reservation, a host that starts late."""

import json
import time
import urllib.error
import urllib.request
from typing import Any

from tests.attack.attack import Attack, Figures
from tests.attack.source import Service, Source

TITLE = "4. `request_id`"

_SCOPES = ["decide", "report", "read"]
_TOKENS = {name: {"scopes": _SCOPES, "clusters": ["prod"]} for name in ("alice", "bob")}
_TTL_S = 1.0


def _job(name: str) -> dict[str, Any]:
    return {"id": name, "groups": [{"count": 1, "demand": {"gpus": 1}}]}


def _call(service: Service, caller: str, path: str, body: object, method: str = "POST") -> tuple[int, Any]:
    request = urllib.request.Request(
        f"{service.url}/v1/clusters/prod/{path}",
        json.dumps(body).encode(),
        {"content-type": "application/json", "authorization": f"Bearer {service.tokens[caller]}"},
        method=method,
    )
    try:
        with urllib.request.urlopen(request, timeout=10.0) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def _place(service: Service, caller: str, name: str, request_id: str = "") -> tuple[int, str, Any]:
    """Status, outcome and answer."""
    body = {"jobs": [_job(name)], "requestId": request_id, "reserveTtl": f"{_TTL_S:g}s"}
    status, answer = _call(service, caller, "jobs:place", body)
    return status, answer["decisions"][0]["outcome"] if status == 200 else str(answer.get("reason", "")), answer


def _one_gpu(service: Service) -> None:
    node = {"id": "n0", "capacity": {"cpuCores": 8, "gpus": 1, "memoryGib": 64}}
    status, answer = _call(service, "alice", "nodes", {"nodes": [node], "full": True}, "PUT")
    assert status == 200, answer


def _anothers_answer(source: Source) -> Figures:
    with source.service(tokens=_TOKENS) as service:
        _one_gpu(service)
        _place(service, "alice", "secret", "q")
        status, word, answer = _place(service, "bob", "mine", "q")
        same_status, same_word, same_answer = _place(service, "bob", "secret", "q")
        return {
            "status": status,
            "answer": word,
            "same_job_status": same_status,
            "same_job_answer": same_word,
            "leaked_jobs": json.dumps([answer, same_answer]).count("secret"),
        }


def _is_refused(figures: Figures) -> bool:
    statuses, words = ([figures[f"{same}{name}"] for same in ("", "same_job_")] for name in ("status", "answer"))
    return statuses == [409, 409] and words == ["ALREADY_EXISTS"] * 2 and figures["leaked_jobs"] == 0


def _given_twice(source: Source) -> Figures:
    """The GPU goes to B after A's reservation has expired; then A is repeated."""
    with source.service(tokens=_TOKENS) as service:
        _one_gpu(service)
        _place(service, "alice", "a", "q")
        time.sleep(_TTL_S)
        reported = ""
        for _ in range(100):
            reported = _place(service, "bob", "b")[1]
            if reported == "PLACED":
                break
            time.sleep(0.05)
        return {"first": "PLACED then expired", "other": reported, "repeat": _place(service, "alice", "a", "q")[1]}


def _late_start(source: Source) -> Figures:
    """A starts after its reservation has expired, and after that B asks for the GPU."""
    with source.service(tokens=_TOKENS) as service:
        _one_gpu(service)
        _place(service, "alice", "a", "q")
        time.sleep(_TTL_S + 1.5)
        started = {"events": [{"jobId": "a", "kind": "STARTED"}]}
        _, answer = _call(service, "alice", "jobs:reportEvents", started)
        return {"applied": int(answer.get("applied", 0)), "next_job": _place(service, "bob", "b")[1]}


ATTACKS = (
    Attack(
        "request_id_of_another_caller",
        "A request_id belongs to one question of one caller: another caller is refused, even with the same question",
        "tests/contract/faces/test_api_request_ids.py::test_the_same_message_by_another_caller_is_refused_by_every_face",
        _anothers_answer,
        _is_refused,
    ),
    Attack(
        "request_id_after_the_reservation",
        "A repeat after the reservation has expired names no GPU that is somebody else's by now",
        "tests/property/test_handing_out.py::TestHandingOut",
        _given_twice,
        lambda f: f["other"] == "PLACED" and f["repeat"] == "WAIT",
    ),
    Attack(
        "late_start",
        "A job that starts after its reservation has expired holds its GPU: nobody else is given it",
        "tests/unit/engine/test_request_ids.py::test_a_late_start_restores_the_placement_of_its_decision",
        _late_start,
        lambda f: f["applied"] == 1 and f["next_job"] == "WAIT",
    ),
)
