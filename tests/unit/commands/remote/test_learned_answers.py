"""What a cluster has learned, as answers and the command line show it."""

from placewise.v1.decision_pb2 import PlaceResponse
from placewise_core.domain.decision import (
    DecisionMeta,
    JobDecision,
    LearnedLength,
    LearnedSpeed,
    Outcome,
    PlaceDecision,
)
from placewise_core.domain.job import JobId
from placewise_service.api.convert.convert_out import place_response
from placewise_service.commands.console import console
from placewise_service.commands.remote.whatif import print_decision, print_learned

LENGTH = LearnedLength("a", 300.0, 100.0, 900.0, 3.0, "model")
SPEED = LearnedSpeed("b", "Tesla T4", 2, 8, 512.0, 400.0, 640.0, 256.0, 1.5, "model and GPU type")


def answered(**learned: object) -> PlaceResponse:
    return place_response(PlaceDecision((), DecisionMeta("d", "ldwp", **learned)))  # type: ignore[arg-type]


def test_every_number_of_a_learned_speed_and_length_is_in_the_answer() -> None:
    meta = answered(lengths=(LENGTH,), speeds=(SPEED,)).meta
    (length,), (speed,) = meta.lengths, meta.speeds
    shown = [getattr(length, field.name) for field in length.DESCRIPTOR.fields]
    assert shown == [getattr(LENGTH, name) for name in LearnedLength.__dataclass_fields__]
    shown = [getattr(speed, field.name) for field in speed.DESCRIPTOR.fields]
    assert shown == [getattr(SPEED, name) for name in LearnedSpeed.__dataclass_fields__]


def test_the_command_line_prints_learned_speeds_with_their_interval_and_the_forecast() -> None:
    with console.capture() as printed:
        print_learned(answered(speeds=(SPEED,)).meta)
    text = " ".join(printed.get().split())
    for part in ("learned speeds", "8 Tesla T4 on 2", "512", "400 … 640", "256", "1.5", "model and GPU type"):
        assert part in text
    with console.capture() as printed:
        print_learned(answered().meta)
    assert printed.get() == ""


def test_the_command_line_prints_the_profile_that_a_speed_is_assumed_from() -> None:
    decided = JobDecision(JobId("a"), Outcome.PLACED, predicted_speed=2.0, profile_model="ResNet50@T4")
    with console.capture() as printed:
        print_decision(place_response(PlaceDecision((decided,), DecisionMeta("d", "ldwp"))).decisions[0], "ldwp")
    assert "predicted speed 2 by the profile of ResNet50@T4" in " ".join(printed.get().split())
