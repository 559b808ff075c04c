"""Which papers can be reproduced, by name. Imports a paper's module only when it is asked for."""

import importlib
import inspect
from collections.abc import Mapping
from typing import Any, Final, cast

from placewise_training.reproduce.paper import Paper

ABLATIONS: Final = "harmony-ablations"
_MODULES: Final = {
    "harmony": "harmony.experiments",
    ABLATIONS: "harmony.ablations",
    "ldwp": "ldwp.experiments",
    "iawp": "iawp.experiments",
    "proteus": "elastic.proteus",
    "qos": "elastic.qos",
    "heat": "heat.experiments",
    "combined": "combined",
}
PAPERS: Final[Mapping[str, str]] = {name: f"placewise_training.reproduce.{module}" for name, module in _MODULES.items()}


def load(name: str, *, is_quick: bool, **options: Any) -> Paper:
    """The paper of that name. `options` (bundle, variants) that are None are left out. Raises ValueError for another
    name, or for an option this paper has no use for."""
    if name not in PAPERS:
        raise ValueError(f"no paper is called {name!r}; there are: {', '.join(PAPERS)}")
    make = importlib.import_module(PAPERS[name]).paper
    given = {key: value for key, value in options.items() if value is not None}
    foreign = sorted(given.keys() - inspect.signature(make).parameters.keys())
    if foreign:
        raise ValueError(f"{name} takes no {foreign[0]}: it uses the shipped models alone")
    return cast(Paper, make(is_quick, **given))
