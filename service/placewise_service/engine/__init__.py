"""The engine: snapshot → decide → reserve → log. Both faces call it; it knows no transport."""

from placewise_service.engine.common import EngineOptions
from placewise_service.engine.engine import Engine

__all__ = ["Engine", "EngineOptions"]
