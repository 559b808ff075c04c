"""`placewise serve` without a decision log, which log_cost measures against. Decisions are still counted.

PLACEWISE_DECLOG__VIEWS=false python -m tests.bench.unlogged serve
"""

from placewise_core.domain.commands import PlaceCommand
from placewise_core.domain.decision import Outcome, PlaceDecision
from placewise_service.cli import main
from placewise_service.declog.sink import DecisionSink
from placewise_service.engine.place.placing import Placing


def _count(self: Placing, command: PlaceCommand, live: object, decision: PlaceDecision, *_: object) -> None:
    meta, outcome = decision.meta, Outcome(decision.decisions[0].outcome).value
    self.parts.telemetry.decision("Place", meta.policy, outcome, meta.is_fallback, meta.decide_ms / 1000.0)


def _drop(self: DecisionSink, entry: object) -> None:
    pass


if __name__ == "__main__":
    setattr(Placing, "_log", _count)  # noqa: B010 - mypy takes no other function for a method
    setattr(DecisionSink, "offer", _drop)  # noqa: B010
    main()
