"""docs/extending.md and its notebook run as they are printed, and a policy object contends beside the named ones."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.most_memory import MostMemory

from placewise_core.policies.registry import placement_policies
from placewise_training.sim.discipline import Discipline
from placewise_training.sim.hardware import harmony_cluster
from placewise_training.sim.runs import Contender, Setting, simulate
from placewise_training.sim.workloads import HarmonyWorkload

DOCS = Path(__file__).parent.parent.parent / "docs"


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / "extending.md").read_text(), re.DOTALL)


def test_a_policy_of_ones_own_is_judged_in_25_lines() -> None:
    code = blocks()[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 25
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["results"].keys() == {"most-memory", *placement_policies()}
    assert len({estimate.mean for estimate in names["results"].values()}) > 5


def test_the_notebook_runs_and_prints_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    notebook = json.loads((DOCS / "extending.ipynb").read_text())
    names: dict[str, Any] = {}
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for cell in cells:
        exec(cell, names)
    table = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert set(table) == {"most-memory", *placement_policies()}
    assert "\n".join(cells).startswith(blocks()[0].split("\n\n")[0])


def test_the_agent_of_the_document_gets_its_masks() -> None:
    names: dict[str, Any] = {}
    exec(blocks()[1], names)
    assert names["allowed"].any()


def test_an_object_and_its_name_contend_alike() -> None:
    setting = Setting(harmony_cluster(3), HarmonyWorkload(jobs=20).generate, discipline=Discipline(every_s=1200))
    by_name, by_object = (
        simulate(setting, Contender(place), 1) for place in ("tetris", placement_policies()["tetris"])
    )
    assert by_name.event_hash == by_object.event_hash
    assert Contender(MostMemory(), "fifo").label == "fifo+most-memory"
