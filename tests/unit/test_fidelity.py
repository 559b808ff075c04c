"""docs/fidelity.md: every file, symbol and test that it names is there, and every `-paper` policy has its row."""

import re
from pathlib import Path

import pytest
from tests.fakes.proteus_queue import bundled

from placewise_core.admit.registry import admission_policies
from placewise_core.partition.registry import partition_policies
from placewise_core.speed.throughput import ThroughputModel
from placewise_core.subtasks.iawp import subtask_schedulers
from placewise_models.learned import PRINTED_POLICIES

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/fidelity.md").read_text("utf-8")
NAMED = sorted(set(re.findall(r"`((?:service|training|tests)/[^`]+)`", TEXT)))


@pytest.mark.parametrize("named", NAMED)
def test_what_is_named_is_there(named: str) -> None:
    path, _, symbol = named.partition("::")
    assert (ROOT / path).is_file()
    source = (ROOT / path).read_text("utf-8")
    assert not symbol or re.search(rf"^\s*(?:class|def|async def) {symbol}\b|^{symbol}\b.* = ", source, re.MULTILINE)


def test_every_row_names_its_test_or_none() -> None:
    """A row of a paper ends in a test; only missing parts have none."""
    rows = [row for row in TEXT.splitlines() if row.startswith("| ") and row.count("|") == 5]
    rows = [row for row in rows if not row.startswith(("| item |", "| plain |")) and "-paper` | `" not in row]
    papers = TEXT[TEXT.index("## Proteus") :]
    for row in (row for row in rows if row in papers):
        assert "`tests/" in row.split("|")[4] or "missing" in row, row


def test_every_policy_as_printed_stands_in_the_table() -> None:
    throughput = ThroughputModel(bundled("throughput.json"))
    names = {*admission_policies(throughput), *partition_policies(bundled("capability.json")), *subtask_schedulers()}
    papers = {name for name in names if name.endswith("-paper")}
    papers |= set(PRINTED_POLICIES)
    assert papers == {"qos-paper", "proteus-paper", "heat-island-paper", "iawp-paper", "harmony-paper", "ldwp-paper"}
    assert all(f"| `{name}` |" in TEXT for name in papers)
