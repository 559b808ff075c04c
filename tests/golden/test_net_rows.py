"""The golden net fails and forgives as its README says."""

import copy

import pytest
from tests.golden.net import rows, write
from tests.golden.net.rows import Row, compare_rows

_ROWS: list[Row] = [
    {"id": "c/0", "cluster": "c", "margin": 5e-5, "node": "a"},
    {"id": "c/1", "cluster": "c", "margin": 1.0, "node": "a"},
    {"id": "d/0", "cluster": "d", "margin": 0.0, "node": "a", "net": ["score"], "score": 0.5, "speed": 0.5},
]


def _with(row: int, **changes: object) -> list[Row]:
    changed = copy.deepcopy(_ROWS)
    changed[row].update(changes)
    return changed


def test_an_undecided_net_may_decide_otherwise_and_so_may_what_follows() -> None:
    assert compare_rows(_ROWS, _with(0, node="b"), "f") == {"c"}
    changed = _with(0, node="b")
    changed[1]["node"] = "b"
    assert compare_rows(_ROWS, changed, "f") == {"c"}


def test_a_net_may_round_otherwise() -> None:
    assert compare_rows(_ROWS, _with(2, score=0.500004), "f") == set()


@pytest.mark.parametrize(("is_alike", "error", "passes"), [
    (True, 0.0, True), (True, 1e-13, False), (True, 1e-11, False),
    (False, 0.0, True), (False, 1e-13, True), (False, 1e-11, False),
])  # fmt: skip
def test_numbers_compare_exactly_on_a_processor_that_rounds_alike(
    monkeypatch: pytest.MonkeyPatch, is_alike: bool, error: float, passes: bool
) -> None:
    monkeypatch.setattr(rows, "VECTOR_UNITS", "avx512" if is_alike else "avx2")
    changed = _with(2, speed=0.5 * (1 + error))
    if passes:
        assert compare_rows(_ROWS, changed, "f") == set()
    else:
        with pytest.raises(AssertionError, match=r"d/0\.speed"):
            compare_rows(_ROWS, changed, "f")


@pytest.mark.parametrize(("is_alike", "value", "passes"), [
    (True, 0.075774364, True), (True, 0.07577437, False),
    (False, 0.07577437, True), (False, 0.0757745, False),
])  # fmt: skip
def test_a_float32_may_differ_in_its_last_place_elsewhere(
    monkeypatch: pytest.MonkeyPatch, is_alike: bool, value: float, passes: bool
) -> None:
    monkeypatch.setattr(rows, "VECTOR_UNITS", "avx512" if is_alike else "avx2")
    before, after = ({"dtype": "float32", "shape": [1], "data": [each]} for each in (0.075774364, value))
    assert (not list(rows.differences(before, after, rounding=rows.rounding_of("f")))) is passes


@pytest.mark.parametrize("units", ["avx512", "avx2"])
def test_a_file_compares_exactly_where_it_was_written(monkeypatch: pytest.MonkeyPatch, units: str) -> None:
    monkeypatch.setattr(rows, "VECTOR_UNITS", units)
    monkeypatch.setattr(rows, "_written_by", lambda: {"f": "avx2"})
    assert (rows.rounding_of("f") == 0.0) is (units == "avx2")


@pytest.mark.parametrize(
    ("exp", "units"),
    [
        ({"dd": {"current": "X86_V4", "available": "X86_V4 X86_V3"}}, "avx512"),
        ({"d": {"current": "AVX512_SKX", "available": "AVX512_SKX"}}, "avx512"),
        ({"dd": {"current": "X86_V3", "available": "X86_V4 X86_V3"}}, "avx2"),
        ({"dd": {"current": "", "available": ""}}, ""),
    ],
)
def test_numpy_is_asked_how_it_rounds(monkeypatch: pytest.MonkeyPatch, exp: object, units: str) -> None:
    monkeypatch.setattr(rows, "opt_func_info", lambda **_: {"exp": exp})
    assert rows.vector_units() == units


@pytest.mark.parametrize(
    ("row", "changes", "reported"),
    [
        (1, {"node": "b"}, 'c/1.node: is "b", was "a"'),
        (2, {"node": "b"}, 'd/0.node: is "b", was "a"'),
        (2, {"score": 0.51}, "d/0.score: is 0.51, was 0.5"),
        (2, {"speed": 0.5000001}, "d/0.speed: is 0.5000001, was 0.5"),
        (2, {"more": 1}, "d/0.more: new, is 1"),
        (2, {"id": "d/9"}, "d/0: the row vanished"),
    ],
)
def test_whatever_else_differs_fails_by_name(row: int, changes: dict[str, object], reported: str) -> None:
    with pytest.raises(AssertionError) as failed:
        compare_rows(_ROWS, _with(row, **changes), "f")
    assert reported in str(failed.value)


@pytest.mark.parametrize("file", sorted(each.name for each in rows.FOLDER.glob("*.jsonl*")))
def test_the_remedy_names_rows_that_can_be_written(file: str) -> None:
    name = rows.remedy(file).partition("ROWS=")[2].rstrip("`")
    assert name
    assert any(part.startswith(name) for part in write.parts())
