"""Rows of the golden files: how they are written, read and compared. Knows nothing of their meaning."""

import gzip
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from numpy.lib.introspect import opt_func_info

FOLDER = Path(__file__).parent / "data"
Row = dict[str, Any]

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
TOLERANCE = 1e-5  # of a net's output, relative above 1
ROUNDING = 1e-12  # relative, if numpy rounds otherwise than on the processor of the files
ROUNDING_OF_FLOAT32 = 4 * 2.0**-23  # likewise: numpy computes log1p of float32 within four units of the last place
UNDECIDED = 1e-4  # between the two best scores of a net
_SHOWN = 12
_WRITTEN_BY = "written_by.json"


def vector_units() -> str:
    """By which vector units numpy computes exp here, as loops for others round otherwise: "avx512", as on the processor
    of the files, "avx2", or "" for any other."""
    (exp,) = opt_func_info(func_name="^exp$", signature="float64").values()
    loops = " ".join(loop["current"] for loop in exp.values())
    return next((name for name, targets in _VECTOR_UNITS.items() if re.search(targets, loops)), "")


_VECTOR_UNITS = {"avx512": "X86_V4|AVX512", "avx2": "X86_V3|AVX2|FMA3"}
VECTOR_UNITS = vector_units()
_USUAL_UNITS = "avx512"


class Names:
    """Ids that a run makes up, by order of appearance: D0001, D0002, …"""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def plain(self, value: Any) -> Any:
        """The value with such ids replaced at every depth."""
        return json.loads(_ID.sub(self._name, json.dumps(value)))

    def _name(self, found: re.Match[str]) -> str:
        return self._known.setdefault(found.group(), f"D{len(self._known) + 1:04d}")


def plain(message: Message) -> Any:
    """A message as JSON data, under the contract's field names; long lists of small messages as lists of values."""
    return _short(MessageToDict(message, preserving_proto_field_name=True))


def _short(value: Any) -> Any:
    if isinstance(value, list):
        return [_short(item) for item in value]
    if not isinstance(value, dict):
        return value
    short = {key: _short(item) for key, item in value.items()}
    if "candidates" in short:
        short["candidates"] = [
            [c.get("task"), c.get("node"), c.get("score", 0.0), c.get("chosen", False), *c.get("terms", [])]
            for c in short["candidates"]
        ]
    if short.keys() <= {"name", "value"} and "name" in short:
        return [short["name"], short.get("value", 0.0)]
    if "assignments" in short:
        short["assignments"] = _shared(short["assignments"])
    return short


def _shared(assignments: list[Row]) -> list[Row]:
    """Of equal demands that follow each other only the first is kept."""
    last: Any = {}
    found = []
    for assignment in assignments:
        demand = assignment.get("demand", {})
        found.append({k: v for k, v in assignment.items() if k != "demand" or v != last})
        if demand == {} and last != {}:
            found[-1]["demand"] = {}
        last = demand
    return found


def dumped(row: Row) -> str:
    return json.dumps(row, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def write(name: str, rows: Iterable[Row]) -> int:
    """Writes a golden file, zipped if it is called so; its size in bytes."""
    FOLDER.mkdir(exist_ok=True)
    content = "".join(dumped(row) + "\n" for row in rows).encode()
    if name.endswith(".gz"):
        content = gzip.compress(content, 9, mtime=0)
    (FOLDER / name).write_bytes(content)
    by = {**_written_by(), name: VECTOR_UNITS}
    kept = {file: units for file, units in sorted(by.items()) if units != _USUAL_UNITS}
    (FOLDER / _WRITTEN_BY).write_text(json.dumps(kept, indent=1) + "\n")
    return len(content)


def _written_by() -> dict[str, str]:
    """Vector units of the processors that wrote files, but for those that AVX-512 wrote."""
    path = FOLDER / _WRITTEN_BY
    return dict(json.loads(path.read_text())) if path.exists() else {}


def rounding_of(file: str) -> float:
    """How far numbers may be from those of the file, relative: 0 if numpy rounds here as where it was written."""
    return 0.0 if _written_by().get(file, _USUAL_UNITS) == VECTOR_UNITS else ROUNDING


def read(name: str) -> list[Row]:
    content = (FOLDER / name).read_bytes()
    if name.endswith(".gz"):
        content = gzip.decompress(content)
    return [json.loads(line) for line in content.decode().splitlines()]


def reported(value: Any) -> Any:
    """The value as a golden file would give it back."""
    return json.loads(json.dumps(value))


def differences(
    wanted: Any,
    found: Any,
    where: str = "",
    is_net: bool = False,
    nets: Collection[str] = (),
    *,
    rounding: float,
) -> Iterator[str]:
    """Where two values differ, one line each. `is_net`: numbers may differ by TOLERANCE; so may those below the keys
    `nets`. Others may by `rounding`, relative."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        is_float32 = rounding > 0 and wanted.get("dtype") == "float32"
        rounding = ROUNDING_OF_FLOAT32 if is_float32 else rounding
        for key in sorted(wanted.keys() | found.keys()):
            if key not in found:
                yield f"{where}.{key}: vanished, was {_cut(wanted[key])}"
            elif key not in wanted:
                yield f"{where}.{key}: new, is {_cut(found[key])}"
            else:
                yield from differences(
                    wanted[key], found[key], f"{where}.{key}", is_net or key in nets, nets, rounding=rounding
                )
    elif isinstance(wanted, list) and isinstance(found, list):
        if len(wanted) != len(found):
            yield f"{where}: {len(found)} entries, were {len(wanted)}"
        for i, (ours, theirs) in enumerate(zip(wanted, found, strict=False)):
            yield from differences(ours, theirs, f"{where}[{i}]", is_net, nets, rounding=rounding)
    elif not _is_alike(wanted, found, is_net, rounding):
        yield f"{where}: is {_cut(found)}, was {_cut(wanted)}"


def _is_alike(wanted: Any, found: Any, is_net: bool, rounding: float) -> bool:
    if isinstance(wanted, float | int) and isinstance(found, float | int) and is_net:
        if math.isnan(wanted) or math.isnan(found):
            return math.isnan(wanted) and math.isnan(found)
        return wanted == found or abs(wanted - found) <= TOLERANCE * max(1.0, abs(wanted))
    if isinstance(wanted, float) and isinstance(found, float):
        both_nan = math.isnan(wanted) and math.isnan(found)
        return math.isclose(wanted, found, rel_tol=rounding) or both_nan
    return type(wanted) is type(found) and wanted == found


def _cut(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 160 else text[:157] + "…"


def report(lines: Iterable[str], file: str) -> None:
    """Raises AssertionError with the first of these lines, if there are any."""
    found = list(lines)
    if found:
        more = f"\n… and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        head = f"{len(found)} difference(s) from tests/golden/net/data/{file}. {remedy(file)}:\n"
        raise AssertionError(head + "\n".join(found[:_SHOWN]) + more)


def remedy(file: str) -> str:
    """The command that writes the file again: records are written with the decisions that they are of."""
    name = file.partition(".")[0].replace("records-", "decisions-").removesuffix("-avx2")
    return f"If they are meant (tests/golden/net/README.md), run `make golden ROWS={name}`"


def compare(file: str, found: Iterable[Row], forgiven: Collection[str] = ()) -> set[str]:
    """Raises AssertionError, which names rows and fields, unless the rows are those of the file.

    Rows have an `id`. `net` lists the fields of a row, however deep, whose numbers nets compute. Where `margin` says
    that a net was undecided the row may differ, and so may those of its `cluster` that follow from it; where two scores
    are equal, the order of nodes decides, and must not differ. Gives back the clusters for which a net decided
    otherwise; those `forgiven` are left out."""
    return compare_rows(read(file), found, file, forgiven)


def compare_rows(wanted: Iterable[Row], found: Iterable[Row], file: str, forgiven: Collection[str] = ()) -> set[str]:
    """As `compare`, with rows of the file."""
    theirs = {row["id"]: row for row in wanted}
    ours = {row["id"]: reported(row) for row in found}
    undecided = set(forgiven)
    report(_row_differences(theirs, ours, undecided, rounding_of(file)), file)
    return undecided


def _row_differences(
    wanted: dict[str, Row], ours: dict[str, Row], undecided: set[str], rounding: float
) -> Iterator[str]:
    """One line per difference. Adds to the clusters `undecided`."""
    for name, row in wanted.items():
        cluster = row.get("cluster", "")
        if cluster in undecided or row == ours.get(name):
            continue
        if name not in ours:
            yield f"{name}: the row vanished"
            continue
        found = list(differences(row, ours[name], name, nets=row.get("net", ()), rounding=rounding))
        if found and 0 < (row.get("margin") or 0.0) <= UNDECIDED:
            undecided.add(cluster)
        else:
            yield from found
    for name, row in ours.items():
        if name not in wanted and row.get("cluster", "") not in undecided:
            yield f"{name}: a new row"
