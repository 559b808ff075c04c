"""Hypothesis, for all tests: no deadline for an example, as a machine that others use may stand still at any moment."""

from hypothesis import settings

settings.register_profile("placewise", deadline=None)
settings.load_profile("placewise")
