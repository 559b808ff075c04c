"""Which papers can be reproduced, by name. Imports a paper's module only when it is asked for."""

import functools
import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from placewise_training.reproduce.design import NeedsBundleError, TrialOf, TrialOutcome
from placewise_training.reproduce.paper import Paper
from placewise_training.sim.policies import opened

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


@dataclass(frozen=True, slots=True)
class Source:
    """A paper that another process can load, too. `bundle` and `variants` are folders, None for the usual ones."""

    name: str
    is_quick: bool
    bundle: Path | None = None
    variants: Path | None = None

    def paper(self) -> Paper:
        """Raises as load."""
        numbers = None if self.bundle is None else opened(self.bundle)
        return load(self.name, is_quick=self.is_quick, bundle=numbers, variants=self.variants)

    def attempt(self, one: TrialOf) -> TrialOutcome | NeedsBundleError:
        """A trial of the paper."""
        return _loaded(self).attempt(one)


@functools.cache
def _loaded(source: Source) -> Paper:
    return source.paper()


def load(name: str, *, is_quick: bool, **options: Any) -> Paper:
    """The paper of that name. `options` are its bundle and variants; those that are None are left out. Raises
    ValueError for an unknown name, and for an option that this paper does not take."""
    if name not in PAPERS:
        raise ValueError(f"no paper is called {name!r}; there are: {', '.join(PAPERS)}")
    make = importlib.import_module(PAPERS[name]).paper
    given = {key: value for key, value in options.items() if value is not None}
    foreign = sorted(given.keys() - inspect.signature(make).parameters.keys())
    if foreign:
        raise ValueError(f"{name} takes no {foreign[0]}: it uses the shipped models alone")
    return cast(Paper, make(is_quick, **given))
