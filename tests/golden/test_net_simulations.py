"""`placewise simulate` runs as on the day the golden net was made."""

import pytest
from tests.golden.net import rows, simulations

if not simulations.FILE:
    pytest.skip("no hashes were recorded for this processor's vector units", allow_module_level=True)

_SIMULATED = {row["id"]: row for row in rows.read(simulations.FILE)}


@pytest.mark.parametrize("contender", _SIMULATED)
def test_simulates_as_before(contender: str) -> None:
    if _SIMULATED[contender].keys() == {"id"}:
        pytest.skip(f"not recorded for these vector units: {rows.remedy(simulations.FILE)}")
    rows.compare_rows([_SIMULATED[contender]], [simulations.simulated(contender)], simulations.FILE)


def test_every_policy_has_its_runs() -> None:
    assert simulations.contenders() == list(_SIMULATED), rows.remedy(simulations.FILE)
