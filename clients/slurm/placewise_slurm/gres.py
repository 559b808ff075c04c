"""Slurm's generic resource strings: GPU counts, models, and sites where every GPU has a type of its own. Pure text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_ENTRY = re.compile(r"^(?:gres[:/])?gpu(?::(?P<type>[^:=()]+?))??(?:[:=](?P<count>\d+))?(?:\(.*\))?$")
_INDEX = re.compile(r"\(IDX:([^)]*)\)")


@dataclass(frozen=True, slots=True)
class GpuEntry:
    """One `gpu[:type][:count]`."""

    type: str
    count: int


def gpu_entries(text: str) -> list[GpuEntry]:
    """GPU entries of "gres:gpu:2", "gres/gpu=2", "gpu:a100:8(S:0-1)", "gpu:g0:1,gpu:g1:1"; others are skipped."""
    entries = []
    for item in re.split(r",(?![^(]*\))", text):
        match = _ENTRY.match(item.strip())
        if match:
            entries.append(GpuEntry(match["type"] or "", int(match["count"] or 1)))
    return entries


def gpu_count(text: str) -> int:
    return sum(entry.count for entry in gpu_entries(text))


def gpu_model(text: str) -> str:
    """The one GPU type in a string, or "" if it names none or several."""
    types = {entry.type for entry in gpu_entries(text)}
    return types.pop() if len(types) == 1 else ""


def index_types(node_gres: str) -> tuple[str, ...]:
    """Type of each GPU by index if the site gives every GPU a type of its own; otherwise ()."""
    entries = gpu_entries(node_gres)
    types = tuple(entry.type for entry in entries)
    is_one_each = len(entries) > 1 and all(entry.count == 1 and entry.type for entry in entries)
    return types if is_one_each and len(set(types)) == len(types) else ()


def typed_gres(types: Sequence[str], indices: Sequence[int]) -> str:
    """The request for exactly these GPUs: "gres:gpu:g4:1,gres:gpu:g7:1"."""
    return ",".join(f"gres:gpu:{types[index]}:1" for index in sorted(indices))


def allocated_indices(detail: str) -> tuple[int, ...]:
    """Indices of one node's `gres_detail` entry: "gpu:2(IDX:0-1)" → (0, 1)."""
    indices: list[int] = []
    for found in _INDEX.findall(detail):
        for item in found.split(","):
            first, _, last = item.partition("-")
            if first.isdigit():
                indices.extend(range(int(first), int(last or first) + 1))
    return tuple(sorted(set(indices)))
