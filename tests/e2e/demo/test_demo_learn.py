"""`placewise demo learn`, small: every step of both acts comes, with its numbers, and no bad bundle passes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

STEPS = [
    "fresh jobs before", "explore and export", "retrain", "gate", "shadow", "canary", "promote",
    "estimate and what happened", "fresh jobs after", "change of mean JCT",
]  # fmt: skip


@pytest.mark.e2e_heavy
@pytest.mark.timeout(1200)
def test_the_demonstration_comes_to_its_end(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("placewise")), "demo", "learn", "--scale", "0.05", "--json"]
    done = subprocess.run([*command, "--out", str(tmp_path / "demo")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found == json.loads((tmp_path / "demo" / "demo.json").read_text("utf-8"))
    assert {path.name for path in (tmp_path / "demo").iterdir()} == {"demo.json", "demo.png"}
    acts: dict[str, dict[str, dict[str, object]]] = {}
    for step in found["steps"]:
        acts.setdefault(step["act"].partition(" (")[0], {})[step["name"]] = step
    for name in ("mechanics", "claim"):
        assert list(acts[name]) == STEPS
        check_act(acts[name])
    negatives = acts["negatives"]
    for name in ("reward sign flipped", "shuffled weights", "log of another cluster"):
        assert negatives[name]["verdict"] == "refused", negatives[name]
    assert negatives["a canary that turns bad"]["verdict"] in ("rolled back", "not rolled back")


def check_act(steps: dict[str, dict[str, object]]) -> None:
    """A refused candidate goes no further than the gate, and each number is there."""
    verdict = steps["gate"]["verdict"]
    assert verdict in ("promoted", "refused")
    for name in ("shadow", "canary", "promote"):
        assert (steps[name]["verdict"] == "not done") == (verdict == "refused"), steps[name]
    jct_s = steps["fresh jobs before"]["numbers"]["jct_s"]  # type: ignore[index]
    assert set(jct_s) == {"search", "consolidate", "oracle"}
    change = steps["change of mean JCT"]["numbers"]
    assert set(change) == {"the incumbent", "consolidate", "the oracle"}  # type: ignore[call-overload]
    assert "realised_interval" in steps["estimate and what happened"]["numbers"]  # type: ignore[operator]
