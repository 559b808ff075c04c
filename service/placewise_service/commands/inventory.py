"""Reads a YAML inventory: nodes and settings of one cluster, as messages of the contract. Sends nothing.

    cluster: demo                      # a name on the command line comes first
    settings: {placePolicy: tetris}    # ClusterSettings in proto3 JSON; optional
    nodes:                             # Node in proto3 JSON, and two shorthands:
      - ids: gpu-[00-15]               #   one node for each number of the range
        gpu: {model: V100, memoryGib: 32}   #   every GPU that `capacity.gpus` counts is like this
        capacity: {cpuCores: 48, gpus: 8, memoryGib: 384, networkGbps: 100}

Every mistake is reported with file, line and column.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from google.protobuf import json_format
from google.protobuf.message import Message

from placewise.v1.cluster_pb2 import ClusterSettings, Gpu, Node
from placewise_core.basics.frozen import frozen
from placewise_service.commands.exits import BadInputError

_RANGE = re.compile(r"^(?P<head>[^\[\]]*)\[(?P<first>\d+)-(?P<last>\d+)\](?P<tail>[^\[\]]*)$")
_KNOWN = {"cluster", "settings", "nodes"}
_MOST_NODES = 100_000  # far above any limit of the service: stops a slip of the pen from filling the memory


@frozen
class Inventory:
    cluster: str
    nodes: tuple[Node, ...]
    settings: ClusterSettings | None


def read_inventory(path: Path) -> Inventory:
    """The inventory in a file; "-" is standard input. Raises BadInputError."""
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(str(path), str(error)) from None
    return parse_inventory(text, "standard input" if str(path) == "-" else str(path))


def parse_inventory(text: str, source: str) -> Inventory:
    """The inventory in a text; `source` names it in errors."""
    root, data = _load(text, source)
    if not isinstance(root, yaml.MappingNode) or not isinstance(data, dict):
        raise BadInputError(source, "expected a mapping with the key nodes", 1, 1)
    parts = {key.value: (key, value) for key, value in root.value}
    for name, (key, _) in parts.items():
        if name not in _KNOWN:
            raise _bad(source, key, f"unknown key {name!r}; use one of: {', '.join(sorted(_KNOWN))}")
    settings = None
    if data.get("settings") is not None:
        settings = _message(data["settings"], ClusterSettings(), source, parts["settings"][1])
    return Inventory(str(data.get("cluster") or ""), tuple(_nodes(data, parts, source)), settings)


def _load(text: str, source: str) -> tuple[yaml.Node | None, Any]:
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader), yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        raise BadInputError(source, error.problem or "not YAML", line, column) from None
    except yaml.YAMLError as error:
        raise BadInputError(source, f"not YAML: {error}") from None


def _nodes(data: Mapping[str, Any], parts: Mapping[str, Any], source: str) -> Iterator[Node]:
    entries = data.get("nodes")
    if not isinstance(entries, list):
        raise BadInputError(source, "the key nodes must hold a list", 1, 1)
    seen: set[str] = set()
    for entry, mark in zip(entries, parts["nodes"][1].value, strict=True):
        for node in _expanded(entry, mark, source):
            if node.id in seen:
                raise _bad(source, mark, f"node {node.id!r} is listed twice")
            seen.add(node.id)
            if len(seen) > _MOST_NODES:
                raise _bad(source, mark, f"more than {_MOST_NODES} nodes")
            yield node


def _expanded(entry: Any, mark: yaml.Node, source: str) -> Iterator[Node]:
    if not isinstance(entry, dict):
        raise _bad(source, mark, "a node must be a mapping")
    fields = dict(entry)
    ids, gpu = fields.pop("ids", None), fields.pop("gpu", None)
    if (ids is None) == (fields.get("id") is None):
        raise _bad(source, mark, "a node needs exactly one of id and ids")
    template: Node = _message(fields, Node(), source, mark)
    if gpu is not None:
        like: Gpu = _message(gpu, Gpu(), source, mark)
        for index in range(int(template.capacity.gpus)):
            template.gpus.add().CopyFrom(like)
            template.gpus[-1].index = index
    for node_id in [str(fields["id"])] if ids is None else _ids(str(ids), mark, source):
        node = Node()
        node.CopyFrom(template)
        node.id = node_id
        yield node


def _ids(pattern: str, mark: yaml.Node, source: str) -> Iterator[str]:
    match = _RANGE.match(pattern)
    if match is None or int(match["last"]) < int(match["first"]):
        raise _bad(source, mark, f"ids {pattern!r}: write a range such as name-[00-15]")
    width = len(match["first"])
    for number in range(int(match["first"]), int(match["last"]) + 1):
        yield f"{match['head']}{number:0{width}d}{match['tail']}"


def _message(value: Any, message: Any, source: str, mark: yaml.Node) -> Any:
    assert isinstance(message, Message)
    try:
        return json_format.ParseDict(value, message)
    except (json_format.ParseError, AttributeError, TypeError) as error:
        raise _bad(source, mark, str(error)) from None


def _bad(source: str, node: yaml.Node, message: str) -> BadInputError:
    return BadInputError(source, message, node.start_mark.line + 1, node.start_mark.column + 1)
