"""What counts as the same question: the meaning of a message and who asks, not how it was sent."""

import json

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from placewise.v1.decision_pb2 import AdmitOrWaitRequest, PartitionRequest, PlaceRequest
from placewise_service.api.calls.fingerprint import fingerprint

PLAIN = {
    "cluster": "prod",
    "request_id": "q",
    "jobs": [
        {
            "id": "a",
            "model": "ResNet-50",
            "groups": [
                {
                    "role": "WORKER",
                    "count": 4,
                    "demand": {"gpus": 2.0, "cpu_cores": 0.1, "extended": {"x": 1, "y": 2, "z": 3}},
                    "node_selector": {"zone": "a", "rack": "7"},
                }
            ],
        }
    ],
    "reserve_ttl": "60s",
}


def asked(document: object) -> PlaceRequest:
    return json_format.ParseDict(document, PlaceRequest())


def changed(path: str, value: object) -> PlaceRequest:
    document = json.loads(json.dumps(PLAIN))
    *parents, last = path.split(".")
    part = document
    for name in parents:
        part = part[int(name)] if name.isdecimal() else part[name]
    part[last] = value
    return asked(document)


SAME = {
    "camel case": json.loads(json.dumps(PLAIN).replace("request_id", "requestId").replace("cpu_cores", "cpuCores")),
    "defaults spelt out": PLAIN
    | {"policy": "", "dry_run": False, "explain": False, "seed": None, "scope": "SCOPE_UNSPECIFIED", "node_id": ""},
    "fields in another order": dict(reversed(PLAIN.items())),
    "another id": PLAIN | {"request_id": "r"},
    "numbers written otherwise": json.loads(json.dumps(PLAIN).replace('"count": 4', '"count": "4"')),
    "the time written otherwise": PLAIN | {"reserve_ttl": "60.000s"},
}


@pytest.mark.parametrize("name", SAME)
def test_the_same_question(name: str) -> None:
    assert fingerprint(asked(SAME[name]), "alice") == fingerprint(asked(PLAIN), "alice") != b""


def test_entries_of_maps_have_no_order() -> None:
    demand = {"gpus": 2.0, "cpu_cores": 0.1, "extended": {"z": 3, "y": 2, "x": 1}}
    assert fingerprint(changed("jobs.0.groups.0.demand", demand), "a") == fingerprint(asked(PLAIN), "a")


def test_binary_and_json_are_the_same_question() -> None:
    request = asked(PLAIN)
    sent = PlaceRequest.FromString(request.SerializeToString())
    assert fingerprint(sent, "alice") == fingerprint(request, "alice")
    unknown = PlaceRequest.FromString(request.SerializeToString() + b"\xfa\x7f\x03new")
    assert fingerprint(unknown, "alice") == fingerprint(request, "alice"), "unknown fields"


@pytest.mark.parametrize("part", ["reserve_ttl", "jobs.0.shape", "jobs.0.elastic", "jobs.0.gpu_sharing"])
def test_an_empty_part_is_the_same_as_none(part: str) -> None:
    without = asked({key: value for key, value in PLAIN.items() if key != part})
    empty = changed(part, "0s" if part == "reserve_ttl" else {})
    before = empty.SerializeToString()
    assert fingerprint(empty, "alice") == fingerprint(without, "alice")
    assert empty.SerializeToString() == before, "the question itself is left as it is"


OTHERS = [
    ("cluster", "lab"),
    ("jobs.0.id", "b"),
    ("jobs.0.groups.0.count", 5),
    ("jobs.0.groups.0.demand.extended.x", 2),
    ("jobs.0.groups.0.node_selector.zone", "b"),
    ("reserve_ttl", "61s"),
    ("seed", 0),
    ("policy", "tetris"),
    ("explain", True),
]


@pytest.mark.parametrize(("path", "value"), OTHERS, ids=[path for path, _ in OTHERS])
def test_another_question(path: str, value: object) -> None:
    assert fingerprint(changed(path, value), "alice") != fingerprint(asked(PLAIN), "alice")


def test_another_caller_or_another_kind_of_request() -> None:
    assert fingerprint(asked(PLAIN), "alice") != fingerprint(asked(PLAIN), "bob")
    alike = [PlaceRequest(request_id="q"), PartitionRequest(request_id="q"), AdmitOrWaitRequest(request_id="q")]
    assert len({fingerprint(request, "alice") for request in alike}) == 3


def test_an_admission_that_places_is_one_question_with_two_ids() -> None:
    bare = AdmitOrWaitRequest(cluster="c", request_id="q")
    placing = AdmitOrWaitRequest(cluster="c", request_id="q")
    placing.place.SetInParent()
    assert fingerprint(placing, "alice") != fingerprint(bare, "alice"), "an empty place still places"
    inner = AdmitOrWaitRequest(cluster="c")
    inner.place.request_id = "r"
    assert fingerprint(inner, "alice") == fingerprint(placing, "alice")
    assert not bare.HasField("place")


def test_without_an_id_nothing_is_worked_out() -> None:
    assert fingerprint(PlaceRequest(cluster="c"), "alice") == b""


@given(caller=st.text(max_size=5), other=st.text(max_size=5))
def test_no_name_runs_into_what_follows(caller: str, other: str) -> None:
    assert (fingerprint(asked(PLAIN), caller) == fingerprint(asked(PLAIN), other)) == (caller == other)
