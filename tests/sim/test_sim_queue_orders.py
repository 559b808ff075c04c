"""Queue orders in the simulator. The hashes for AVX-512 were recorded before jobs behind a blocked head ceased to be
prepared, those for AVX2 later, by the code of 6e44b2e6."""

import json

import pytest
from tests.golden.net.rows import VECTOR_UNITS
from typer.testing import CliRunner

from placewise_training.cli import simulate_app

# By the vector units of the processor: numpy rounds otherwise on each, and a hash has no margin.
_RECORDED = {
    "avx512": {
        "fifo-strict": ["182cae74029349fbee57fccc2759c1cc", "1fbb4984d35862211d575e3ae6946aa9"],
        "single-gpu": ["48f0bbaf8bd8f626f5161b208e1d5e09", "f7ac97365d2803f43252e4b784c9e253"],
    },
    "avx2": {
        "fifo-strict": ["8a0e1d59298aeba142509cc106a1ee1f", "8960ad4fcb21ca39785ddc2e3d4f3a59"],
        "single-gpu": ["3fcdbe1080f4b9e8ce9c0d1220997162", "4372e9ea2aafe1956c9a6944306c4b17"],
    },
}


@pytest.mark.skipif(VECTOR_UNITS not in _RECORDED, reason="no hashes were recorded for this processor's vector units")
@pytest.mark.parametrize("admit", ["fifo-strict", "single-gpu"])
def test_a_strict_order_gives_the_events_recorded(admit: str) -> None:
    asked = f"--trace philly --jobs 400 --nodes 20 --gpus-per-node 8 --policy tetris --admit {admit} --seeds 2 --json"
    reported = CliRunner().invoke(simulate_app, asked.split())
    assert json.loads(reported.stdout)["event_hashes"] == _RECORDED[VECTOR_UNITS][admit]
