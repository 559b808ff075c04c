"""Finds a truth among the entry points of the installed packages. Knows none by itself."""

from importlib.metadata import entry_points

from placewise_core.domain.truth import TRUTH_GROUP, TruthMaker
from placewise_service.commands.exits import CommandError, Exit


def truth_maker(name: str) -> TruthMaker:
    """The maker of that truth. Raises CommandError for an unknown name, or if a part of it is not installed."""
    for point in entry_points(group=TRUTH_GROUP, name=name):
        try:
            made: TruthMaker = point.load()
        except ImportError as error:
            missing = f"{name} needs a part that is not installed ({error.name or error})"
            raise CommandError(f"{missing}: pip install 'placewise[training]'") from None
        return made
    known = ", ".join(sorted({point.name for point in entry_points(group=TRUTH_GROUP)})) or "none is installed"
    raise CommandError(f"no truth is called {name!r}; there are: {known}", Exit.USAGE)
