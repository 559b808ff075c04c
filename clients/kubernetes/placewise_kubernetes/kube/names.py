"""Every label, annotation and well-known name the adapter reads or writes, in one place. No behaviour."""

from __future__ import annotations

DOMAIN = "placewise.dev"

# Read from pods (a label or an annotation; a label wins).
JOB = f"{DOMAIN}/job"
GANG = f"{DOMAIN}/gang"
ROLE = f"{DOMAIN}/role"
QUEUE = f"{DOMAIN}/queue"
PRIORITY = f"{DOMAIN}/priority"
USER = f"{DOMAIN}/user"
MODEL = f"{DOMAIN}/model"
ARCHITECTURE = f"{DOMAIN}/architecture"
EPOCHS = f"{DOMAIN}/epochs"
BATCH_SIZE = f"{DOMAIN}/batch-size"
DATASET_SIZE = f"{DOMAIN}/dataset-size"
SINGLE_GPU_SECONDS = f"{DOMAIN}/single-gpu-seconds"
GPU_MODEL = f"{DOMAIN}/gpu-model"
MAX_PER_NODE = f"{DOMAIN}/max-per-node"
KEEP_TOGETHER = f"{DOMAIN}/keep-together"
EXCLUSIVE_NETWORK = f"{DOMAIN}/exclusive-network"
IN_ORDER = f"{DOMAIN}/in-order"
IGNORE = f"{DOMAIN}/ignore"
DIVISIBLE = f"{DOMAIN}/divisible"
SERIAL = f"{DOMAIN}/serial"
KIND = f"{DOMAIN}/kind"

# The role of a pod that names none.
DEFAULT_ROLE = "worker"

# Written to pods.
WAKE = f"{DOMAIN}/wake"
RELEASED = f"{DOMAIN}/released"
GANG_ID = f"{DOMAIN}/gang-id"
"""The last part of the gang's id, on pods that outlived an earlier gang of their name."""
DECISION = f"{DOMAIN}/decision"
GPU_INDICES = f"{DOMAIN}/gpu-indices"
SHARE_SCALE = f"{DOMAIN}/share-scale"
SHARE_FRACTION = f"{DOMAIN}/share-fraction"
SHARE_UNIT = f"{DOMAIN}/share-unit"
SHARE_SECONDS = f"{DOMAIN}/share-seconds"
DECISION_NOTES = (DECISION, GPU_INDICES, SHARE_SCALE, SHARE_FRACTION, SHARE_UNIT, SHARE_SECONDS)
"""They come and go with a decision."""
NODE = f"{DOMAIN}/node"
"""Node that a gated pod was decided for; stays on it."""

# Condition of a gated pod: why it waits.
ADMITTED = f"{DOMAIN}/Admitted"

# The scheduling gate by which a pod waits for us.
GATE = f"{DOMAIN}/admit"

# Labels that nodes have at the service alone: their HyperNodes, and who hands out their GPUs.
HYPER_NODE = f"hypernode.{DOMAIN}/"
GPU_SOURCE = f"{DOMAIN}/gpu-source"
BY_CLAIM, BY_PLUGIN = "claim", "device-plugin"

# Read from nodes.
RACK = f"{DOMAIN}/rack"
MAX_JOBS_PER_GPU = f"{DOMAIN}/max-jobs-per-gpu"

# Gangs of other projects.
POD_GROUP_LABELS = ("scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io")
VOLCANO_GROUP = "scheduling.k8s.io/group-name"
VOLCANO_TASK = "volcano.sh/task-spec"
KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
BATCH_JOB_LABELS = ("batch.kubernetes.io/job-name", "job-name")

MANAGER = "placewise"
