"""Slurm's text formats: host lists and generic resources."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placewise_slurm import gres, hostlist


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3,7]", ["n1", "n2", "n3", "n7"]),
        ("gpu[008-010],login", ["gpu008", "gpu009", "gpu010", "login"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("", []),
    ],
)
def test_host_lists(text: str, names: list[str]) -> None:
    assert hostlist.expand(text) == names


@pytest.mark.parametrize("text", ["n[1-3", "n[a-b]", "n[]", "n[1-999999999]", "n[1-60000]m[1-60000]"])
def test_host_lists_that_are_none_or_far_too_long(text: str) -> None:
    with pytest.raises(ValueError, match=r"brackets|range|hosts"):
        hostlist.expand(text)


@given(st.lists(st.from_regex(r"[a-z]{1,5}\d{0,3}", fullmatch=True), max_size=8))
def test_a_plain_list_is_its_own_expansion(names: list[str]) -> None:
    assert hostlist.expand(",".join(names)) == names


@pytest.mark.parametrize(
    ("text", "count", "model"),
    [
        ("gres:gpu:2", 2, ""),
        ("gres/gpu=4", 4, ""),
        ("gres/gpu:a100:2", 2, "a100"),
        ("gpu:a100:8(S:0-1)", 8, "a100"),
        ("gpu:8(S:0,1)", 8, ""),
        ("gpu", 1, ""),
        ("gpu:g0:1,gpu:g1:1", 2, ""),
        ("craynetwork:4,gpu:2", 2, ""),
        ("shard:8", 0, ""),
        ("", 0, ""),
    ],
)
def test_gpu_requests(text: str, count: int, model: str) -> None:
    assert gres.gpu_count(text) == count
    assert gres.gpu_model(text) == model


def test_types_of_single_gpus_are_indices() -> None:
    assert gres.index_types("gpu:g0:1,gpu:g1:1,gpu:g2:1") == ("g0", "g1", "g2")
    assert gres.index_types("gpu:a100:4,gpu:v100:4") == ()
    assert gres.index_types("gpu:8") == ()
    assert gres.typed_gres(("g0", "g1", "g2"), (2, 0)) == "gres:gpu:g0:1,gres:gpu:g2:1"


@pytest.mark.parametrize(
    ("detail", "indices"),
    [
        ("gpu:2(IDX:0-1)", (0, 1)),
        ("gpu:g4:1(IDX:4),gpu:g7:1(IDX:7)", (4, 7)),
        ("gpu:3(IDX:0,2-3)", (0, 2, 3)),
        ("shard:2(IDX:3)", (3,)),
        ("shard:2(0/4,0/4,2/4,-/4,10/20)", (2, 4)),
        ("gpu:2(IDX:0-1),shard:h100:1(0/4,0/4,0/4,1/4)", (0, 1, 3)),
        ("gpu:1(IDX:2),nic:1(IDX:0)", (2,)),
        ("gpu:1g.10gb:1(IDX:0)", (0,)),  # a part of a GPU by MIG: Slurm numbers the parts, not the GPUs
        ("mps:50(IDX:1)", (1,)),
        ("mps:50(0/100,50/100)", (1,)),
        ("mps:h100:50(0/100,50/100,0/100)", (1,)),
        ("", ()),
    ],
)
def test_allocated_indices(detail: str, indices: tuple[int, ...]) -> None:
    assert gres.allocated_indices(detail) == indices
