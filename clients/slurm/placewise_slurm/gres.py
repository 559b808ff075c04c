"""Slurm's generic resource strings: GPU counts, models, and sites where every GPU has a type of its own. Pure text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_ENTRY = re.compile(r"^(?:gres[:/])?gpu(?::(?P<type>[^:=()]+?))??(?:[:=](?P<count>\d+))?(?:\(.*\))?$")
GPU_NAMES = ("gpu", "shard", "mps")
"""Generic resources that are GPUs, or shares of them."""
# GPUs that a job has, or has shares of: "gpu:2(IDX:0-1)", "shard:2(IDX:3)", and from 23.11 "shard:2(0/4,2/4)" by index.
_TAKEN = re.compile(r"(?:gpu|shard|mps)\b[^(]*\((.*)\)")
_BETWEEN = re.compile(r",(?![^(]*\))")


@dataclass(frozen=True, slots=True)
class GpuEntry:
    """One `gpu[:type][:count]`."""

    type: str
    count: int


def gpu_entries(text: str) -> list[GpuEntry]:
    """GPU entries of "gres:gpu:2", "gres/gpu=2", "gpu:a100:8(S:0-1)", "gpu:g0:1,gpu:g1:1"; others are skipped."""
    entries = []
    for item in _BETWEEN.split(text):
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
    found: set[int] = set()
    for item in _BETWEEN.split(detail):
        if match := _TAKEN.fullmatch(item):
            found.update(_taken(match[1]))
    return tuple(sorted(found))


def _taken(inside: str) -> Iterable[int]:
    if inside.startswith("IDX:"):
        return indices(inside.removeprefix("IDX:"))
    return [index for index, used in enumerate(inside.split(",")) if used.partition("/")[0].strip("0-")]


def indices(text: str) -> tuple[int, ...]:
    """ "0-1,4" → (0, 1, 4)."""
    found: list[int] = []
    for item in text.split(","):
        first, _, last = item.partition("-")
        if first.isdigit():
            found.extend(range(int(first), int(last or first) + 1))
    return tuple(found)
