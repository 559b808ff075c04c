"""The SDK's report of an answer."""

from placewise.v1.decision_pb2 import Blocker
from placewise_client.results import blocker_text, reason_names


def test_a_reason_of_a_later_service_has_a_number_and_its_text() -> None:
    later = Blocker.FromString(Blocker(nodes=2).SerializeToString() + b"\x08\xe7\x07")  # reason 999
    assert reason_names([later]) == ("REASON_999",)
    assert blocker_text([later]) == "reason 999 on 2 nodes"
