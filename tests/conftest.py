"""Hypothesis, for all tests: no deadline for an example, as a machine that others use may stand still at any moment."""

from hypothesis import settings

import placewise_service  # noqa: F401 - switches ONNX Runtime's telemetry off before any test imports it

settings.register_profile("placewise", deadline=None)
settings.load_profile("placewise")
