"""What `placewise replay` asks for if its caller names no admission policy."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from placewise_service.commands.remote import replay
from placewise_service.replay.host import ReplayPlan


@pytest.mark.parametrize(
    ("asked", "policy"),
    [((), "fifo"), (("--admit", "fifo-strict"), "fifo-strict"), (("--truth", "judge"), "none")],
)
def test_replay_admits_by_fifo_by_default(
    asked: Sequence[str], policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[ReplayPlan] = []

    async def run_all(target: object, plans: list[ReplayPlan], *rest: Any) -> list[Any]:
        planned.extend(plans)
        raise KeyboardInterrupt

    monkeypatch.setattr(replay, "_run_all", run_all)
    CliRunner().invoke(replay.app, [*asked, "--max-jobs", "2", "--plot", str(tmp_path / "plot.png")])
    assert {plan.admit_policy for plan in planned} == {policy}
