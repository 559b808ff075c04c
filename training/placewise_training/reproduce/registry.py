"""Which papers can be reproduced, by name. Imports a paper's module only when it is asked for."""

import importlib
from collections.abc import Mapping
from typing import Final, cast

from placewise_training.reproduce.design import Paper

PAPERS: Final[Mapping[str, str]] = {
    name: f"placewise_training.reproduce.{name}"
    for name in ("harmony", "ldwp", "iawp", "proteus", "qos", "heat", "combined")
}


def load(name: str, *, is_quick: bool) -> Paper:
    """The paper of that name. Raises ValueError for another."""
    if name not in PAPERS:
        raise ValueError(f"no paper is called {name!r}; there are: {', '.join(PAPERS)}")
    return cast(Paper, importlib.import_module(PAPERS[name]).paper(is_quick))
