"""Every net of the shipped bundle is given the same inputs, and gives the same outputs, as on the day the golden net
was made."""

import pytest
from tests.golden.net import nets
from tests.golden.net.rows import read
from tests.golden.net.seams import nets_of_bundle


@pytest.mark.parametrize("kind", nets.ASKED)
async def test_net_is_asked_as_before(kind: str) -> None:
    nets.check(kind, await nets.runs_of(kind))


def test_every_net_of_the_bundle_has_its_rows() -> None:
    seen = {row["model"] for kind in nets.ASKED for row in read(nets.FILE.format(kind))}
    assert seen == set(nets_of_bundle().values())
