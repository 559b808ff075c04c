"""Refusals, admissions and partitions come out as on the day the golden net was made."""

import pytest
from tests.golden.net import queues, reasons, rows
from tests.golden.net.seams import serving

_ADMITTING = sorted(path.name[len("admissions-") : -len(".jsonl")] for path in rows.FOLDER.glob("admissions-*.jsonl"))


async def test_refusals_say_why_as_before() -> None:
    found = await reasons.refused()
    rows.compare(reasons.FILE, found)
    assert not reasons.KINDS - reasons.kinds_of(found), "tests/golden/net/reasons.py causes no such refusal"
    assert len(found) >= 100


@pytest.mark.parametrize("policy", _ADMITTING)
async def test_admits_as_before(policy: str) -> None:
    rows.compare(queues.file_of(policy), await queues.admitted(policy))


async def test_partitions_as_before() -> None:
    rows.compare(queues.PARTITIONED, await queues.partitioned())


async def test_every_admission_policy_has_its_rows() -> None:
    async with serving() as service:
        assert service.admit_policies == _ADMITTING
