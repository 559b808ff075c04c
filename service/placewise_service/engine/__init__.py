"""The engine: snapshot → decide → reserve → log. Both faces call it; it knows no transport."""

from placewise_service.engine.engine import Engine
from placewise_service.engine.parts import EngineOptions

__all__ = ["Engine", "EngineOptions"]
