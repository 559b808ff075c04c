"""What differs between the REST versions of slurmrestd: how jobs and nodes are read, how an update is written.

v0.0.38 (Slurm 22.05) gives plain numbers and a state string, and takes an unlisted `nodelist` string with `nodes` as a
string "N-N". From v0.0.40 (23.11) numbers are objects {set, infinite, number}, states are lists, and the update has
`required_nodes` (a list), `minimum_nodes` and `maximum_nodes`. No network here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from placewise_slurm import gres, hostlist
from placewise_slurm.records import SlurmJob, SlurmNode, SlurmStep

Json = Mapping[str, Any]

# Jobs that carry one of these are still (or already) on their nodes, in any base state.
_LIVE_FLAGS = ("COMPLETING", "CONFIGURING")


@dataclass(frozen=True, slots=True)
class Update:
    """A change of a held job. None leaves a field as it is."""

    is_held: bool
    nodes: Sequence[str] | None = None
    tres_per_node: str | None = None


class Version(Protocol):
    """One REST version."""

    @property
    def name(self) -> str: ...
    def job(self, raw: Json) -> SlurmJob: ...
    def node(self, raw: Json) -> SlurmNode: ...
    def update(self, change: Update) -> dict[str, Any]: ...


def _number(value: object) -> int:
    """A plain number, or {set, infinite, number}; 0 for unset, infinite and null."""
    if isinstance(value, dict):
        return int(value.get("number") or 0) if value.get("set", True) and not value.get("infinite") else 0
    return int(value) if isinstance(value, (int, float)) else 0


def _words(value: object) -> tuple[str, ...]:
    """A comma string or a list of strings, as a tuple."""
    if isinstance(value, str):
        return tuple(word for word in value.split(",") if word)
    return tuple(str(word) for word in value) if isinstance(value, list) else ()


def _state(words: Sequence[str]) -> str:
    for flag in _LIVE_FLAGS:
        if flag in words:
            return flag
    return words[0] if words else ""


def _exit_code(value: object) -> int:
    if isinstance(value, dict):
        return _number(value.get("return_code"))
    return _number(value)


def _read_job(raw: Json) -> SlurmJob:
    """Field names are the same in all versions; `_number` and `_words` read their different shapes."""
    return SlurmJob(
        id=_number(raw.get("job_id")),
        state=_state([word.upper() for word in _words(raw.get("job_state"))]),
        reason=str(raw.get("state_reason") or ""),
        reason_text=str(raw.get("state_description") or ""),
        is_held=_number(raw.get("priority")) == 0,
        priority=_number(raw.get("priority")),
        partition=str(raw.get("partition") or ""),
        qos=str(raw.get("qos") or ""),
        user=str(raw.get("user_name") or ""),
        comment=str(raw.get("comment") or ""),
        admin_comment=str(raw.get("admin_comment") or ""),
        min_nodes=max(1, _number(raw.get("node_count"))),
        max_nodes=_number(raw.get("max_nodes")),
        cpus=max(1, _number(raw.get("cpus"))),
        min_cpus_per_node=_number(raw.get("minimum_cpus_per_node")),
        memory_per_node_mib=_number(raw.get("memory_per_node")),
        memory_per_cpu_mib=_number(raw.get("memory_per_cpu")),
        tres_per_node=str(raw.get("tres_per_node") or ""),
        tres_per_job=str(raw.get("tres_per_job") or ""),
        tres_per_task=str(raw.get("tres_per_task") or ""),
        tasks=max(1, _number(raw.get("tasks"))),
        features=str(raw.get("features") or ""),
        nodes=str(raw.get("nodes") or ""),
        required_nodes=str(raw.get("required_nodes") or ""),
        gres_detail=_words(list(raw.get("gres_detail") or ())),
        submit_time_s=_number(raw.get("submit_time")),
        begin_time_s=_number(raw.get("eligible_time")),
        start_time_s=_number(raw.get("start_time")),
        end_time_s=_number(raw.get("end_time")),
        exit_code=_exit_code(raw.get("exit_code")),
        restarts=_number(raw.get("restart_cnt")),
        cluster=str(raw.get("cluster") or ""),
        group=_number(raw.get("array_job_id")) or _number(raw.get("het_job_id")) or _number(raw.get("job_id")),
    )


def read_state(raw: Json) -> tuple[str, str]:
    """A job of a list of states: its name, which is no number for parts of arrays, and its state as in `SlurmJob`."""
    return str(raw.get("job_id") or ""), _state([word.upper() for word in _words(raw.get("state"))])


def read_time(value: object) -> int:
    """Whole seconds since the epoch, 0 for none."""
    return _number(value)


def read_layout(reply: Json) -> dict[str, tuple[int, ...]]:
    """Indices by node of the GPUs that a running job has, or has shares of."""
    return {
        str(node.get("node")): tuple(
            index
            for entry in node.get("gres") or ()
            if entry.get("name") in gres.GPU_NAMES
            for index in gres.indices(str(entry.get("index") or ""))
        )
        for node in reply.get("nodes") or ()
    }


def read_steps(raw: Json) -> list[SlurmStep]:
    """The steps of a job of slurmdbd, of any version. A step is named 0, "0" or "JOB.0"."""
    cluster = str(raw.get("cluster") or "")
    return [_read_step(step, cluster) for step in raw.get("steps") or ()]


def _read_step(raw: Json, cluster: str) -> SlurmStep:
    spent, nodes, states = raw.get("time") or {}, raw.get("nodes") or {}, _words(raw.get("state"))
    return SlurmStep(
        id=str((raw.get("step") or {}).get("id", "")).rpartition(".")[2],
        state=states[0].upper() if states else "",
        nodes=frozenset(_words(nodes.get("list")) or hostlist.expand(str(nodes.get("range") or ""))),
        start_time_s=_number(spent.get("start")),
        end_time_s=_number(spent.get("end")),
        cluster=cluster,
    )


def _read_node(raw: Json) -> SlurmNode:
    states = {*_words(raw.get("state")), *_words(raw.get("state_flags"))}
    return SlurmNode(
        name=str(raw.get("name") or ""),
        states=frozenset(word.upper() for word in states),
        cpus=_number(raw.get("cpus")),
        memory_mib=_number(raw.get("real_memory")),
        gres=str(raw.get("gres") or ""),
        features=_words(raw.get("active_features") or raw.get("features") or ()),
        partitions=_words(raw.get("partitions") or ()),
        # Slurm counts hundredths; 4294967294 means it has no reading.
        cpu_load=load / 100 if (load := _number(raw.get("cpu_load"))) < 1_000_000 else 0.0,
        free_memory_mib=_number(raw.get("free_mem", raw.get("free_memory"))),
    )


@dataclass(frozen=True, slots=True)
class BareVersion:
    """v0.0.36 … v0.0.38."""

    name: str

    def job(self, raw: Json) -> SlurmJob:
        return _read_job(raw)

    def node(self, raw: Json) -> SlurmNode:
        return _read_node(raw)

    def update(self, change: Update) -> dict[str, Any]:
        body: dict[str, Any] = {"hold": change.is_held}
        if change.nodes is not None:
            body["nodelist"] = ",".join(change.nodes)
            if change.nodes:
                # The documented array form is ignored in silence; the string is not.
                body["nodes"] = f"{len(change.nodes)}-{len(change.nodes)}"
        if change.tres_per_node is not None:
            body["gres"] = change.tres_per_node
        return body


@dataclass(frozen=True, slots=True)
class StructuredVersion(BareVersion):
    """v0.0.40 and later."""

    def update(self, change: Update) -> dict[str, Any]:
        body: dict[str, Any] = {"hold": change.is_held}
        if change.nodes is not None:
            # An empty list is ignored in silence; one empty name takes the node list back.
            body["required_nodes"] = list(change.nodes) or [""]
            if change.nodes:
                body["minimum_nodes"] = body["maximum_nodes"] = len(change.nodes)
        if change.tres_per_node is not None:
            # From 23.11 a resource is named "gres/gpu"; the colon form was dropped.
            body["tres_per_node"] = change.tres_per_node.replace("gres:gpu", "gres/gpu")
        return body


VERSIONS: Mapping[str, Version] = {
    "v0.0.38": BareVersion("v0.0.38"),
    **{name: StructuredVersion(name) for name in ("v0.0.40", "v0.0.41", "v0.0.42", "v0.0.43", "v0.0.44", "v0.0.45")},
}
"""From the oldest to the newest. v0.0.39 is not here: every Slurm that serves it serves v0.0.38 or v0.0.40, too."""
