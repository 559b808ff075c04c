"""How many examples Hypothesis tries."""

from hypothesis import settings


def examples(most: int, part: int = 4) -> int:
    """All of them; a quarter, or a smaller part, with the profile `fast`."""
    return most // part if settings.get_current_profile_name() == "fast" else most
