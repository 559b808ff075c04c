"""Comparisons on clusters with other settings than the usual ones."""

from dataclasses import replace

from placewise_models.folder import shipped_bundle
from placewise_training.lab.compare import SEARCH, Setting, average_jct_s
from placewise_training.sim.policies import opened, policies_of


def jct_s(policy: str, *, learns: bool) -> dict[int, float]:
    setting = replace(Setting("uniform", nodes=4, jobs=60), learns_disturbance=learns)
    return average_jct_s(setting, (lambda _: policies_of(opened(shipped_bundle()))[policy], "fifo"), [1])


def test_the_search_heeds_the_setting_learn_disturbance_and_consolidate_does_not() -> None:
    assert jct_s(SEARCH, learns=True) != jct_s(SEARCH, learns=False)
    assert jct_s("consolidate", learns=True) == jct_s("consolidate", learns=False)
