"""One job and one node of Slurm as plain records, the same for every REST version. Pure data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

HELD_MARK = "placewise:held"
WATCHED_MARK = "placewise:watched"


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """Times are seconds since the epoch, 0 where unset. `state` is the base state or COMPLETING/CONFIGURING."""

    id: int
    state: str
    reason: str = ""
    reason_text: str = ""
    is_held: bool = False
    priority: int = 0
    partition: str = ""
    qos: str = ""
    user: str = ""
    comment: str = ""
    admin_comment: str = ""
    min_nodes: int = 1
    max_nodes: int = 0
    cpus: int = 1
    min_cpus_per_node: int = 0
    memory_per_node_mib: int = 0
    memory_per_cpu_mib: int = 0
    tres_per_node: str = ""
    tres_per_job: str = ""
    tres_per_task: str = ""
    tasks: int = 1
    features: str = ""
    nodes: str = ""
    required_nodes: str = ""
    gres_detail: tuple[str, ...] = ()
    gpu_layout: Mapping[str, tuple[int, ...]] | None = None
    """GPU indices by node, where slurmrestd says more than `gres_detail`."""
    submit_time_s: float = 0.0
    begin_time_s: float = 0.0
    """A pending job does not start before; 0 if Slurm has not looked at it yet."""
    start_time_s: float = 0.0
    end_time_s: float = 0.0
    exit_code: int = 0
    restarts: int = 0
    cluster: str = ""
    group: int = 0
    """The array or the heterogeneous job that the job belongs to; its own number if to none."""

    @property
    def is_pending(self) -> bool:
        return self.state == "PENDING"

    @property
    def is_marked(self) -> bool:
        """Held by our submit plugin."""
        return self.admin_comment.startswith(HELD_MARK)

    @property
    def is_held_after_failure(self) -> bool:
        """Slurm itself holds a job that it could not launch or has requeued too often; only its admin may free it."""
        return self.is_held and "requeue" in self.reason.lower()

    @property
    def set_aside(self) -> str:
        """GPUs per node that the submit hook keeps for the job until its release; "" if it keeps none."""
        return self.admin_comment.partition(" gres=")[2] if self.is_marked else ""

    @property
    def asked_per_node(self) -> str:
        """The GPU request per node, wherever it is kept."""
        return self.tres_per_node or self.set_aside

    @property
    def is_watched(self) -> bool:
        return self.admin_comment.startswith(WATCHED_MARK)


@dataclass(frozen=True, slots=True)
class SlurmStep:
    """One step as accounting has it. `id` is its number, or "batch", "extern" or "interactive".

    Times are seconds since the epoch; the end is 0 while it runs.
    """

    id: str
    state: str
    nodes: frozenset[str]
    start_time_s: float
    end_time_s: float = 0.0
    cluster: str = ""

    @property
    def is_running(self) -> bool:
        return self.state == "RUNNING"


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """`states` holds the base state and all flags, upper case ("IDLE", "DRAIN")."""

    name: str
    states: frozenset[str]
    cpus: int = 0
    memory_mib: int = 0
    gres: str = ""
    features: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    cpu_load: float = 0.0
    free_memory_mib: int = 0
