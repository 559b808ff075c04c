"""A thousand logged decisions of a kind are made again from the log. `tests.contract.log.calls` has all kinds."""

import pytest
from tests.contract.log.calls import cases
from tests.contract.log.replicas import run


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", ["exploring harmony", "exploring search", "sliced consolidate", "admit qos exploring"])
async def test_a_thousand_decisions_are_made_again(case: str) -> None:
    policy, host_type = cases()[case]
    found = await run(case, policy, 1000, 50, host_type)
    assert (found.same, found.total, found.problems) == (1000, 1000, [])
