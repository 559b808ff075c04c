"""No name that others rely on has moved: contract, REST, settings, metrics, log, keys, command lines, SDK, bundle."""

import pytest
from tests.golden.net import public, rows


@pytest.mark.parametrize("file", public.FILES)
def test_names_stand(file: str) -> None:
    rows.compare(f"{file}.jsonl", public.names(file))


async def test_state_is_stored_as_before() -> None:
    rows.compare(f"{public.STATE}.jsonl", await public.state())
