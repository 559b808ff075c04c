"""Comparisons on Harmony's servers."""

from placewise_models.folder import shipped_bundle
from placewise_training.lab.compare import ADAPTIVE, SEARCH, Setting, average_jct_s
from placewise_training.sim.policies import opened, policies_of


def jct_s(policy: str) -> dict[int, float]:
    return average_jct_s(
        Setting("uniform", nodes=4, jobs=60), (lambda _: policies_of(opened(shipped_bundle()))[policy], "fifo"), [1]
    )


def test_what_jobs_report_reaches_the_adaptive_policy() -> None:
    assert len({tuple(jct_s(policy).values()) for policy in (ADAPTIVE, SEARCH, "consolidate")}) == 3
