"""Every feature that any net reads: its name, unit and scale, table by table. Encodes nothing.

`feature_schema` carries the hash that a net brings along: it covers the tables which that net reads and no others.
"""

import hashlib
from collections.abc import Mapping, Sequence

from placewise_core.basics.frozen import frozen
from placewise_core.domain.job import Architecture, Priority

# Harmony's one-hot x_n: the models that were measured. A model that is none of them takes the nearest of its family.
MODEL_VOCABULARY = (
    "resnet50",
    "vgg16",
    "resnext110",
    "seq2seq",
    "ctc",
    "wlm",
    "alexnet",
    "googlenet",
    "inceptionv3",
    "resnet18",
    "lstm",
    "bert",
    "gpt2",
    "transformer",
    "deepspeech2",
    "neumf",
    "recommendation",
    "cyclegan",
)


@frozen
class Column:
    """One feature: encoded = value × scale, or log(1 + value) × scale where `is_log`."""

    name: str
    unit: str
    scale: float = 1.0
    is_log: bool = False


NODE_COLUMNS = (
    Column("cpu_capacity", "cores", 0.2, is_log=True),
    Column("memory_capacity", "GiB", 0.1, is_log=True),
    Column("network_capacity", "Gbit/s", 0.2, is_log=True),
    Column("gpus", "GPUs", 0.125),
    Column("free_cpu", "cores", 0.125),
    Column("free_gpus", "GPUs", 0.5),
    Column("free_cpu_share", "1"),
    Column("free_memory_share", "1"),
    Column("free_network_share", "1"),
    Column("free_gpu_share", "1"),
    Column("free_gpu_memory_share", "1"),
    Column("load", "1", 0.25),
    Column("tasks", "tasks", 0.125),
    Column("gpu_speed", "V100 = 1"),
    Column("is_usable", "flag"),
    Column("has_temperature", "flag"),
    Column("temperature_margin", "K", 0.02),
    Column("has_utilisation", "flag"),
    Column("cpu_util", "1"),
    Column("gpu_util", "1"),
    Column("tx_share", "1"),
    Column("rx_share", "1"),
)
JOB_COLUMNS = (
    *(Column(f"is_{name}", "flag") for name in MODEL_VOCABULARY),
    Column("is_known_model", "flag"),
    *(Column(f"is_{kind.value.lower()}", "flag") for kind in Architecture),
    *(Column(f"is_{priority.value.lower()}", "flag") for priority in Priority),
    Column("workers", "tasks", 0.25),
    Column("worker_cpu", "cores", 0.25),
    Column("worker_gpus", "GPUs", 1.0),
    Column("worker_memory", "GiB", 0.05),
    Column("worker_gpu_memory", "GiB", 0.05),
    Column("servers", "tasks", 0.25),
    Column("server_cpu", "cores", 0.25),
    Column("server_memory", "GiB", 0.05),
    Column("params", "millions", 0.2, is_log=True),
    Column("batch", "samples", 0.1, is_log=True),
    Column("epochs", "epochs", 0.2, is_log=True),
    Column("allows_sharing", "flag"),
    # from here on: values that change while the job is placed and runs
    Column("is_new", "flag"),
    Column("is_current", "flag"),
    Column("placed_workers", "tasks", 0.25),
    Column("placed_servers", "tasks", 0.25),
    Column("nodes_used", "nodes", 0.25),
    Column("epochs_left_share", "1"),
)
# A job's declared length and its host's reported speed (linear_speed.py), after the columns above.
LINEAR_SPEED_COLUMNS = (
    Column("has_length", "flag"),
    Column("linear_minutes_left", "minutes", 0.2, is_log=True),
    Column("has_step", "flag"),
    Column("worker_step", "ms", 0.2, is_log=True),
    Column("has_speed", "flag"),
    Column("speed", "linear speed = 1"),
)
PLACEMENT_COLUMNS = (Column("workers_here", "tasks", 0.5), Column("servers_here", "tasks", 0.5))
# LDWP's S_j and the task's identity (TID, TSize).
UTILISATION_COLUMNS = (
    Column("cpu_util", "1"),
    Column("gpu_util", "1"),
    Column("memory_util", "1"),
    Column("gpu_memory_util", "1"),
    Column("uplink", "share of the NIC"),
    Column("downlink", "share of the NIC"),
)
# A part: a job's tasks on one node, as the reward model sees it (reward.py), after what `encode_job` gives.
PART_COLUMNS = (
    Column("is_new", "flag"),
    Column("placed_workers", "tasks", 0.25),
    Column("placed_servers", "tasks", 0.25),
    Column("nodes_used", "nodes", 0.25),
    Column("has_step", "flag"),
    Column("worker_step", "ms", 0.2, is_log=True),
    Column("has_speed", "flag"),
    Column("speed", "linear speed = 1"),
    Column("workers_here", "tasks", 0.5),
    Column("servers_here", "tasks", 0.5),
    Column("traffic", "ms at line rate", 0.2, is_log=True),
    Column("traffic_share", "of a step"),
    Column("cpu_capacity", "cores", 0.2, is_log=True),
    Column("network_capacity", "Gbit/s", 0.2, is_log=True),
    Column("gpus", "GPUs", 0.125),
    Column("gpu_speed", "mean of the cluster = 1"),
    Column("jobs_on_node", "jobs", 0.25),
    Column("tasks_on_node", "tasks", 0.125),
    Column("cpu_held", "1"),
    Column("gpus_held", "1"),
    Column("traffic_of_others", "of their steps"),
    Column("has_links", "flag"),
    Column("peer_traffic", "ms at the rate of the links in the node", 0.2, is_log=True),
)
# A candidate node before the next task of a gang is placed (steps.py): what changes within the gang and within
# the batch, and is therefore not in the tokens that are encoded once.
STEP_COLUMNS = (
    Column("workers_here", "tasks of the gang", 0.5),
    Column("servers_here", "tasks of the gang", 0.5),
    Column("is_used_by_gang", "flag"),
    Column("nodes_used", "nodes", 0.25),
    Column("workers_left", "tasks", 0.25),
    Column("servers_left", "tasks", 0.25),
    Column("workers_fit", "tasks, at most those left", 0.25),
    Column("servers_fit", "tasks, at most those left", 0.25),
    Column("fits_all_left", "flag"),
    Column("is_in_rack_of_gang", "flag"),
    Column("free_cpu_share", "1"),
    Column("free_memory_share", "1"),
    Column("free_network_share", "1"),
    Column("free_gpus", "GPUs", 0.5),
    Column("free_gpu_share", "1"),
    Column("load", "1", 0.25),
    Column("tasks", "tasks", 0.125),
)
COLUMNS: Mapping[str, tuple[Column, ...]] = {
    "nodes": NODE_COLUMNS,
    "jobs": JOB_COLUMNS,
    "pace": LINEAR_SPEED_COLUMNS,
    "placement": PLACEMENT_COLUMNS,
    "parts": PART_COLUMNS,
    "step": STEP_COLUMNS,
    "utilisation": UTILISATION_COLUMNS,
}
# Which tables a net reads: a change of any other table leaves it valid.
MODEL_TABLES: Mapping[str, tuple[str, ...]] = {
    "reward": ("jobs", "parts"),
    "policy": ("nodes", "jobs", "pace", "placement", "step"),
    "ldwp": ("utilisation",),
}
# Nets of earlier releases read only so many columns of a table. New columns are therefore appended to it, and such a
# net goes on serving without them.
EARLIER_COLUMNS: Mapping[str, Sequence[int]] = {"parts": (len(PART_COLUMNS) - 2,)}
NODE_FEATURES, JOB_FEATURES = len(NODE_COLUMNS), len(JOB_COLUMNS) + len(LINEAR_SPEED_COLUMNS)
STATIC_JOB_FEATURES = [column.name for column in JOB_COLUMNS].index("is_new")
PART_FEATURES = STATIC_JOB_FEATURES + len(PART_COLUMNS)
# Names of the reward model's token columns: a job's unchanging ones, then those of its tasks on a node.
TOKEN_COLUMNS = tuple(column.name for column in (*JOB_COLUMNS[:STATIC_JOB_FEATURES], *PART_COLUMNS))
STEP_FEATURES = len(STEP_COLUMNS)


def feature_schema(model: str, *others: str) -> dict[str, object]:
    """The tables that these models read as plain data, with their hash: a net may only serve with the tables of its
    training. Name several models for a bundle with several nets. Raises KeyError for a model that MODEL_TABLES does
    not name."""
    return _schema(_tables_of(model, *others), {})


def earlier_schemas(model: str, *others: str) -> list[str]:
    """Hashes of the tables that nets of earlier releases of these models read: see EARLIER_COLUMNS."""
    names = _tables_of(model, *others)
    counts = [(table, count) for table in names for count in EARLIER_COLUMNS.get(table, ())]
    return [str(_schema(names, {table: count})["hash"]) for table, count in counts]


def _tables_of(*models: str) -> list[str]:
    return sorted({table for name in models for table in MODEL_TABLES[name]})


def _schema(names: Sequence[str], counts: Mapping[str, int]) -> dict[str, object]:
    """The tables of these names, of some of them the first columns alone, with their hash."""
    tables = {
        name: [[each.name, each.unit, each.scale, each.is_log] for each in COLUMNS[name][: counts.get(name)]]
        for name in names
    }
    return {"tables": tables, "hash": hashlib.sha256(repr(sorted(tables.items())).encode()).hexdigest()}
