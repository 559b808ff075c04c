"""Queue orders in the simulator. The hashes were recorded before jobs behind a blocked head ceased to be prepared."""

import json

import pytest
from typer.testing import CliRunner

from placewise_training.cli import simulate_app

_RECORDED = {
    "fifo-strict": ["182cae74029349fbee57fccc2759c1cc", "1fbb4984d35862211d575e3ae6946aa9"],
    "single-gpu": ["48f0bbaf8bd8f626f5161b208e1d5e09", "f7ac97365d2803f43252e4b784c9e253"],
}


@pytest.mark.parametrize("admit", _RECORDED)
def test_a_strict_order_gives_the_events_recorded(admit: str) -> None:
    asked = f"--trace philly --jobs 400 --nodes 20 --gpus-per-node 8 --policy tetris --admit {admit} --seeds 2 --json"
    told = CliRunner().invoke(simulate_app, asked.split())
    assert json.loads(told.stdout)["event_hashes"] == _RECORDED[admit]
