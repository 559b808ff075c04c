"""Every placement policy decides, explains itself and is logged as on the day the golden net was made."""

import pytest
from tests.golden.net import decisions
from tests.golden.net.rows import FOLDER, remedy
from tests.golden.net.seams import serving

_POLICIES = sorted(path.name[len("decisions-") : -len(".jsonl")] for path in FOLDER.glob("decisions-*.jsonl"))


@pytest.mark.parametrize("policy", _POLICIES)
async def test_decides_as_before(policy: str) -> None:
    await decisions.check(policy)


async def test_every_policy_has_its_decisions() -> None:
    async with serving() as service:
        for policy in {*service.place_policies, decisions.UNITS} ^ set(_POLICIES):
            raise AssertionError(f"{policy} has no policy or no file. {remedy(f'decisions-{policy}')}")
