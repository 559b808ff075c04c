"""How many examples Hypothesis tries."""

from hypothesis import settings


def examples(most: int) -> int:
    """All of them; a quarter with the profile `fast`."""
    return most // 4 if settings.get_current_profile_name() == "fast" else most
