"""Every name that others rely on: contract, REST, settings, metrics, log, keys, command lines, SDK, bundle.

One row each, so that a difference names what appeared or vanished.
"""

import argparse
import dataclasses
import enum
import hashlib
import importlib
import inspect
import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
from tests.golden.net import messages as m
from tests.golden.net import seams
from tests.golden.net.rows import Names, Row

from placewise.v1 import bundle_pb2, cluster_pb2, decision_pb2, job_pb2

FILES = ("public-contract", "public-service", "public-commands", "public-clients", "public-bundle")
STATE = "public-state"
_ROOT = Path(__file__).parents[3]
_PARTS = (job_pb2, cluster_pb2, decision_pb2, bundle_pb2)
_SDK = ("placewise_client", "placewise_client.results", "placewise_client.adapter.native")


def names(file: str) -> list[Row]:
    """The rows of one of FILES."""
    make = {
        "public-contract": _contract,
        "public-service": _service,
        "public-commands": _commands,
        "public-clients": _clients,
        "public-bundle": _bundle,
    }[file]
    return [{"id": name, "is": value} for name, value in make()]


def _contract() -> Iterator[tuple[str, Any]]:
    for part in _PARTS:
        for service in part.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                yield (
                    f"rpc {method.full_name}",
                    {
                        "request": method.input_type.full_name,
                        "response": method.output_type.full_name,
                        "streams": [method.client_streaming, method.server_streaming],
                    },
                )
        for message in part.DESCRIPTOR.message_types_by_name.values():
            yield from _message(message)
        for kind in part.DESCRIPTOR.enum_types_by_name.values():
            yield from _enum(kind)


def _message(message: Any) -> Iterator[tuple[str, Any]]:
    yield f"message {message.full_name}", [field.name for field in message.fields]
    for field in message.fields:
        kind = field.message_type or field.enum_type
        yield (
            f"field {field.full_name}",
            {
                "number": field.number,
                "type": kind.full_name if kind is not None else field.type,
                "repeated": field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED,
                "presence": field.has_presence,
                "json": field.json_name,
                "oneof": field.containing_oneof.name if field.containing_oneof else "",
            },
        )
    for kind in message.enum_types:
        yield from _enum(kind)
    for nested in message.nested_types:
        yield from _message(nested)


def _enum(kind: Any) -> Iterator[tuple[str, Any]]:
    for value in kind.values:
        yield f"enum {kind.full_name}.{value.name}", value.number


def _service() -> Iterator[tuple[str, Any]]:
    for row in seams.rpc_table():
        yield f"call {row['path']}", row
    for row in seams.rest_table():
        yield f"rest {row['method']} {row['path']}", row
    for method, path in seams.rest_paths():
        yield f"answered {method} {path}", True
    for name, field in seams.settings_variables():
        default = field.get_default(call_default_factory=True)
        yield (
            f"setting {name}",
            {"default": _plain(default), "type": str(field.annotation).removeprefix("<class '").removesuffix("'>")},
        )
    for prefix in seams.foreign_prefixes():
        yield f"prefix {prefix}", True
    for name, kind, labels in seams.metric_families():
        yield f"metric {name}", {"type": kind, "labels": labels}
    for reason, codes in seams.errors().items():
        yield f"error {reason}", list(codes)
    for table, schema in seams.log_schemas().items():
        for i, column in enumerate(schema):
            yield f"column {table}.{column.name}", {"type": str(column.type), "at": i}
    for i, key in enumerate(seams.redis_keys()):
        yield f"key {key}", i


def _commands() -> Iterator[tuple[str, Any]]:
    yield from _command(seams.command_line(), "placewise")
    for name, parser in seams.adapter_parsers().items():
        yield from _parser(parser, name)


def _command(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield f"command {path}", True
    for parameter in command.params:
        reported = "/".join((*parameter.opts, *parameter.secondary_opts))
        yield (
            f"option {path} {reported}",
            {
                "default": _plain(parameter.default),
                "required": parameter.required,
                "multiple": bool(getattr(parameter, "multiple", False)),
                "flag": bool(getattr(parameter, "is_flag", False)),
            },
        )
    if hasattr(command, "list_commands"):
        for name in command.list_commands(None):
            yield from _command(command.get_command(None, name), f"{path} {name}")


def _parser(parser: argparse.ArgumentParser, path: str) -> Iterator[tuple[str, Any]]:
    yield f"command {path}", True
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                yield from _parser(child, f"{path} {name}")
        else:
            reported = "/".join(action.option_strings) or action.dest
            yield (
                f"option {path} {reported}",
                {
                    "default": _plain(action.default),
                    "required": action.required,
                    "choices": list(action.choices or ()),
                },
            )


def _clients() -> Iterator[tuple[str, Any]]:
    for module_name in _SDK:
        module = importlib.import_module(module_name)
        for name in getattr(module, "__all__", _own(module)):
            yield from _importable(f"{module_name}.{name}", getattr(module, name))
    for line in seams.adapter_metrics().splitlines():
        if line.startswith("# TYPE"):
            _, _, name, kind = line.split()
            labels = next(row for row in seams.adapter_metrics().splitlines() if row.startswith(name))
            yield f"metric {name}", {"type": kind, "first": labels}
    for adapter, config in seams.adapter_configs().items():
        yield from _config(config, adapter)
    for name, value in seams.kubernetes_names().items():
        yield f"kubernetes {name}", _plain(value)
    yield from _yarn()


def _yarn() -> Iterator[tuple[str, Any]]:
    """Properties with their defaults, words of tags, and metrics, from the Java sources."""
    folder = _ROOT / "clients/yarn/src/main/java/placewise/yarn"
    text = "".join(path.read_text("utf-8") for path in sorted(folder.rglob("*.java")))
    defaults = dict(re.findall(r'\("(placewise\.[a-z.-]+)", ([^;]+)\)', text))
    for name in sorted(set(re.findall(r'"(placewise\.[a-z.-]+)"', text))):
        yield f"yarn property {name}", defaults.get(name)
    for word in sorted(set(re.findall(r'\b(?:count|number|words\.getOrDefault)\("([a-z-]+)"', text))):
        yield f"yarn tag placewise.{word}", None
    metrics = (folder / "PlacewiseMetrics.java").read_text("utf-8")
    for kind, name in re.findall(r"@Metric\(.+\) (\w+) (\w+);", metrics):
        yield f"yarn metric {name}", kind


def _own(module: Any) -> list[str]:
    """Public names that the module defines itself."""
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    )


def _importable(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if inspect.isclass(value) and issubclass(value, enum.Enum):
        yield f"enum {name}", {member.name: _plain(member.value) for member in value}
    elif inspect.isclass(value):
        yield f"class {name}", _signature(value)
        for member, found in inspect.getmembers(value):
            if member.startswith("_") or (name.endswith("Error") and hasattr(Exception, member)):
                continue
            yield f"member {name}.{member}", _signature(found) if callable(found) else "attribute"
    else:
        yield f"function {name}", _signature(value)


def _signature(value: Any) -> list[str]:
    """Parameters by name and kind; those with a default end in "?"."""
    try:
        found = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return []
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return [
        f"{stars.get(p.kind, '')}{p.name}{'' if p.default is p.empty else '?'}"
        + (" (by name)" if p.kind is p.KEYWORD_ONLY else "")
        for p in found
    ]


def _config(config: type, path: str) -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(config):
        default: Any = None
        if field.default is not dataclasses.MISSING:
            default = field.default
        elif field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if dataclasses.is_dataclass(default):
            yield from _config(type(default), f"{path}.{field.name}")
        else:
            yield f"config {path}.{field.name}", {"default": _plain(default)}


def _bundle() -> Iterator[tuple[str, Any]]:
    folder = seams.bundle_folder()
    manifest = folder.joinpath("manifest.json").read_bytes()
    yield "bundle name", folder.name
    yield "bundle digest", hashlib.sha256(manifest).hexdigest()
    for key, value in json.loads(manifest).items():
        yield f"manifest {key}", value
    for path in sorted(folder.iterdir()):
        yield f"file {path.name}", hashlib.sha256(path.read_bytes()).hexdigest()
        if path.suffix == ".json":
            content = json.loads(path.read_bytes())
            yield f"document {path.name}", {"schema": content.get("schema", ""), "keys": sorted(content)}
    for model, digest in seams.feature_hashes().items():
        yield f"features {model}", digest


async def state() -> list[Row]:
    """The bytes under which a small cluster would be kept, as data beside them: replicas of two versions share them."""
    rng, rows = m.drawn("state"), []
    async with seams.serving() as service:
        nodes = [m.node("n0", 2, "V100", rng, rack="r", labels={"zone": "a"}, extended={"fpga": 1.0}), m.node("n1", 1)]
        await service.ask("ReportNodes", m.nodes_request("c", nodes))
        # Maps of one entry: protobuf gives the entries of larger ones in any order.
        stages = [job_pb2.Subtask(id="s", kind="decode", size=2.0, profile={"speedup": 3.0})]
        job = m.job("j", [m.group(2, m.demand(), max_per_node=1)], rng, subtasks=stages, queue="q")
        needs = m.demand(1.0, 0.5)
        held = m.job("held", [m.group(1, needs)], rng, gpu_sharing=job_pb2.GpuSharing(allowed=True))
        tasks = [m.assigned(f"worker-{i}", f"n{i}", m.demand(), [1 - i]) for i in range(2)]
        events = [m.started(held, [m.assigned("worker-0", "n0", needs, [0])]), m.progressed("held", 0.25, 3.0)]
        events.append(m.started(job, tasks))
        await service.ask("ReportJobEvents", cluster_pb2.ReportJobEventsRequest(cluster="c", events=events))
        waiting = [m.job(f"w{i}", [], rng, elastic=job_pb2.ElasticRange(min_gpus=1, max_gpus=4)) for i in range(2)]
        await service.ask(
            "AdmitOrWait",
            decision_pb2.AdmitOrWaitRequest(cluster="c", queue="q", jobs=waiting, seed=1, policy="proteus-paper"),
        )
        settings = cluster_pb2.ClusterSettings(place_policy="tetris", exploration_rate=0.5)
        await service.ask(
            "UpdateClusterSettings", cluster_pb2.UpdateClusterSettingsRequest(cluster="c", settings=settings)
        )
        for name, content in await seams.stored("c", service):
            rows.append({"id": f"stored {name}", "bytes": content.hex(), "data": _unpacked(content)})
        rows += [row async for row in _answers(service, waiting)]
    return rows


async def _answers(service: seams.Service, waiting: list[job_pb2.Job]) -> AsyncIterator[Row]:
    """The stored form of one answer of each kind, and the fingerprint of its question. Ids are by order of
    appearance."""
    names = Names()
    job = m.job("asked", [m.group(2, m.demand(1.0, 0.0, 2.0))], m.drawn("asked"))
    task = decision_pb2.DivisibleTask(id="t", parallel_scale=40.0, kind="render")
    for rpc, asked in {
        "Place": m.place("c", [job], "consolidate", 5),
        "AdmitOrWait": decision_pb2.AdmitOrWaitRequest(cluster="c", queue="r", jobs=waiting, seed=1, policy="fifo"),
        "Partition": decision_pb2.PartitionRequest(cluster="c", task=task),
    }.items():
        asked.request_id = f"first-{rpc}"
        await service.ask(rpc, asked)
        content = _unpacked(await seams.remembered("c", asked.request_id, service))
        yield {"id": f"answer {rpc}", "data": names.plain(content), "fingerprint": seams.fingerprint_of(asked)}


def _unpacked(content: bytes) -> Any:
    """The first of what msgpack finds in the bytes."""
    try:
        return _plain(msgspec.msgpack.decode(content))
    except msgspec.DecodeError:
        return None


def _plain(value: Any) -> Any:
    """As JSON has it; what JSON has no form for, as text."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Path):  # a file of ours by its name alone: it lies elsewhere on every machine, and may move
        return f"…/{value.name}" if value.is_relative_to(_ROOT) else str(value)
    return type(value).__name__
