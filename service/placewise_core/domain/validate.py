"""The rules that a request must keep before anything is decided. Names the error and its field; never repairs.

Field paths are those of the contract (`jobs[0].groups[1].demand.cpu_cores`), since the caller reads them. Whether a
policy, a node or a cluster exists is for the engine to say: this module looks at nothing but the request.
"""

import re
from collections.abc import Sequence
from operator import attrgetter

from placewise_core.basics.frozen import frozen
from placewise_core.domain.checks import (
    MAX_AMOUNT,
    MAX_ID,
    MAX_NUMBER,
    MAX_TEXT,
    MAX_TIME_S,
    check_amount,
    check_count,
    check_id,
    check_labels,
    check_map,
    check_number,
    check_reading,
    check_text,
    check_time,
    check_unique,
)
from placewise_core.domain.cluster import Assignment, ClusterSettings, Node, NodeTelemetry, QueueSettings
from placewise_core.domain.commands import AdmitCommand, JobEvent, JobEventKind, PartitionCommand, PlaceCommand, Scope
from placewise_core.domain.divisible import ShareProgress
from placewise_core.domain.errors import InvalidRequestError
from placewise_core.domain.job import Job, Resources, Subtask, TaskGroup, quantise
from placewise_core.domain.model_names import canonical

MAX_QUEUES = 1000  # with settings of their own
MAX_EXPLORERS = 16
MAX_WEIGHT = 1000  # of an explorer
MAX_CO_RUNS = 64  # of one job; fewer models are worth measuring against
MAX_LAYERS = 4096  # of one job
_MAX_COUNT = 1_000_000
_MOST_RELATIVE_SPEED = 2.0  # a little over 1 is noise; more than twice as fast beside co-tenants is a mistake

NO_TELEMETRY = NodeTelemetry()  # of a node that reports none

# A cluster's name stands inside the braces of its Redis keys and in URL paths.
_CLUSTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_UNIT = re.compile(r"(cpu|gpu)[0-9]{1,6}")

_AMOUNTS = ("cpu_cores", "gpus", "memory_gib", "gpu_memory_gib", "network_gbps")
_amounts_of = attrgetter(*_AMOUNTS)
_JOB_NUMBERS = {
    "total_epochs": "total_epochs",
    "batch_size": "batch_size",
    "dataset_size": "dataset_size",
    "iterations": "iterations",
    "single_gpu_s": "single_gpu_seconds",
    "params_millions": "params_millions",
    "attained_gpu_s": "attained_gpu_seconds",
}
_job_numbers_of = attrgetter(*_JOB_NUMBERS)
_UTILS = ("cpu_util", "memory_util", "gpu_util", "gpu_memory_util", "cache_util")
_READINGS = ("tx_gbps", "rx_gbps", "power_watts")
_TEMPERATURES = ("cpu_celsius", "gpu_celsius", "limit_celsius", "ambient_celsius")
_COLDEST, _HOTTEST = -100.0, 1000.0


@frozen
class Limits:
    """How much one request may hold."""

    jobs: int = 256
    tasks_per_gang: int = 1024
    tasks: int = 8192  # of all jobs together; as many subtasks
    subtasks: int = 1024
    nodes: int = 10_000
    gpus_per_node: int = 128
    events: int = 10_000
    items: int = 262_144  # of all lists and maps together
    reserve_ttl_s: float = 3600.0

    @property
    def units(self) -> int:
        """Units that the largest cluster may have."""
        return self.nodes * self.gpus_per_node


def check_place(command: PlaceCommand, limits: Limits) -> None:
    """Raises InvalidRequestError if a Place command breaks a rule."""
    check_cluster(command.cluster)
    check_host_time(command.now_s)
    check_placing(command, limits)
    _check_jobs(command.jobs, limits)
    if command.scope is Scope.NODE:
        check_id(command.node_id, "node_id")
        for i, job in enumerate(command.jobs):
            if not job.subtasks:
                raise InvalidRequestError("a NODE-scope job needs subtasks", f"jobs[{i}].subtasks")


def check_placing(command: PlaceCommand, limits: Limits) -> None:
    """Raises InvalidRequestError where how to place breaks a rule: all of a Place command but cluster and jobs."""
    if command.request_id:
        check_text(command.request_id, "request_id", MAX_ID)
    if command.policy:
        check_text(command.policy, "policy", MAX_ID)
    if not 0.0 <= command.reserve_ttl_s <= limits.reserve_ttl_s:
        raise InvalidRequestError(f"must be 0 … {limits.reserve_ttl_s:g} seconds", "reserve_ttl")


def check_partition(command: PartitionCommand, limits: Limits) -> None:
    """Raises InvalidRequestError if a Partition command breaks a rule."""
    check_cluster(command.cluster)
    check_host_time(command.now_s)
    if command.request_id:
        check_text(command.request_id, "request_id", MAX_ID)
    task = command.task
    check_id(task.id, "task.id")
    if task.kind:
        check_text(task.kind, "task.kind", MAX_ID)
    check_number(task.serial_scale, "task.serial_scale")
    check_number(task.parallel_scale, "task.parallel_scale")
    check_number(task.overhead_s, "task.overhead_s")
    if task.serial_scale + task.parallel_scale <= 0:
        raise InvalidRequestError("serial_scale and parallel_scale must not both be zero", "task.parallel_scale")
    _check_resources(task.demand, "task.demand")
    if command.units:
        check_count(len(command.units), limits.units, "units")
        for i, unit in enumerate(command.units):
            check_id(unit, f"units[{i}]", MAX_TEXT)
        check_unique(command.units, "units")
    if command.progress:
        check_count(len(command.progress), limits.units, "progress")
        for i, share in enumerate(command.progress):
            _check_progress(share, f"progress[{i}]")
        check_unique([f"{share.node}/{share.unit}" for share in command.progress], "progress")


def _check_progress(share: ShareProgress, field: str) -> None:
    check_id(share.node, f"{field}.node", MAX_TEXT)
    check_id(share.unit, f"{field}.unit", MAX_TEXT)
    for name in ("scale", "predicted_s", "done", "elapsed_s"):
        check_number(getattr(share, name), f"{field}.{name}")
    check_number(share.capability, f"{field}.capability")
    if share.capability <= 0:
        raise InvalidRequestError("must be above zero: copy it from the Share of the response", f"{field}.capability")
    if share.done > 1:
        raise InvalidRequestError("must be between 0 and 1", f"{field}.done")


def check_admit(command: AdmitCommand, limits: Limits) -> None:
    """Raises InvalidRequestError if an AdmitOrWait command breaks a rule."""
    check_cluster(command.cluster)
    check_host_time(command.now_s)
    if command.queue:
        check_text(command.queue, "queue", MAX_ID)
    if command.policy:
        check_text(command.policy, "policy", MAX_ID)
    if command.request_id:
        check_text(command.request_id, "request_id", MAX_ID)
    _check_jobs(command.jobs, limits)


def check_host_time(now_s: float | None) -> None:
    """Raises InvalidRequestError for a time of the host that no Timestamp can hold."""
    if now_s is not None:
        check_time(now_s, "now")


def check_cluster(name: str) -> None:
    """Raises InvalidRequestError unless `name` can name a cluster."""
    if not _CLUSTER_NAME.fullmatch(name):
        raise InvalidRequestError(
            f"must be 1 … {MAX_ID} letters, digits, '.', '_' or '-', the first a letter or digit", "cluster"
        )


def check_decision_id(decision_id: str) -> None:
    """Raises InvalidRequestError for a malformed id."""
    check_id(decision_id, "decision_id")


def check_bundle_name(name: str, may_be_empty: bool = False) -> None:
    """Raises InvalidRequestError for a malformed name of a bundle, such as a path."""
    if (not name and not may_be_empty) or (name and not _CLUSTER_NAME.fullmatch(name)):
        raise InvalidRequestError("must be letters, digits, '.', '_' or '-'", "name")


def check_policy_name(name: str) -> None:
    """Raises InvalidRequestError for a name that no policy can have."""
    check_text(name, "policy", MAX_ID)


def check_settings(settings: ClusterSettings) -> None:
    """Raises InvalidRequestError if a cluster's settings make no sense."""
    check_text(settings.place_policy, "settings.place_policy", MAX_ID)
    check_text(settings.admit_policy, "settings.admit_policy", MAX_ID)
    rates = {
        "exploration_rate": settings.exploration_rate,
        "admit_exploration_rate": settings.admit_exploration_rate,
    }
    for name, rate in rates.items():
        if not 0.0 <= rate <= 1.0:
            raise InvalidRequestError("must be 0 … 1", f"settings.{name}")
    check_count(len(settings.queues), MAX_QUEUES, "settings.queues")
    for i, (queue, parameters) in enumerate(settings.queues.items()):
        check_text(queue, f"settings.queues[{i}].queue", MAX_ID)
        _check_queue(parameters, f"settings.queues[{i}]")
    _check_exploration(settings)


def _check_exploration(settings: ClusterSettings) -> None:
    check_count(len(settings.explorers), MAX_EXPLORERS, "settings.explorers")
    for i, explorer in enumerate(settings.explorers):
        field = f"settings.explorers[{i}]"
        check_id(explorer.policy, f"{field}.policy")
        if explorer.policy in [other.policy for other in settings.explorers[:i]]:
            raise InvalidRequestError("named twice: give the policy one weight", f"{field}.policy")
        if not 1 <= explorer.weight <= MAX_WEIGHT:
            raise InvalidRequestError(f"must be 1 … {MAX_WEIGHT}", f"{field}.weight")
    guard = settings.exploration_guard
    check_number(guard.max_gpus, "settings.exploration_guard.max_gpus")
    if guard.min_nodes < 0:
        raise InvalidRequestError("must not be negative", "settings.exploration_guard.min_nodes")


def check_nodes_request(cluster: str, count: int, limits: Limits) -> None:
    """Raises InvalidRequestError for a report of nodes that is too large; check_node looks at each."""
    check_cluster(cluster)
    check_count(count, limits.nodes, "nodes")


def check_node(node: Node, field: str, limits: Limits) -> None:
    """Raises InvalidRequestError if a node breaks a rule."""
    check_id(node.id, f"{field}.id")
    if "/" in node.id:
        raise InvalidRequestError("must not contain '/', which separates a node from its units", f"{field}.id")
    check_text(node.rack, f"{field}.rack", MAX_ID)
    _check_resources(node.capacity, f"{field}.capacity")
    _check_gpus(node, field, limits)
    for name in ("cpu_ghz", "cache_mib", "gpu_ghz", "interconnect_gbps"):
        check_number(getattr(node.hardware, name), f"{field}.hardware.{name}")
    _check_telemetry(node.telemetry, f"{field}.telemetry")
    check_labels(node.labels, f"{field}.labels")


def check_events_request(cluster: str, count: int, limits: Limits) -> None:
    """Raises InvalidRequestError for a report of job events that is too large; check_event looks at each."""
    check_cluster(cluster)
    check_count(count, limits.events, "events")


def _check_jobs(jobs: Sequence[Job], limits: Limits) -> None:
    if not jobs:
        raise InvalidRequestError("needs at least one job", "jobs")
    check_count(len(jobs), limits.jobs, "jobs")
    if len(jobs) > 1:
        check_unique([job.id for job in jobs], "jobs")
        check_count(sum(job.task_count for job in jobs), limits.tasks, "jobs.groups")
        check_count(sum(len(job.subtasks) for job in jobs), limits.tasks, "jobs.subtasks")
    for i, job in enumerate(jobs):
        try:
            check_job(job, limits)
        except InvalidRequestError as error:
            raise error.within(f"jobs[{i}]") from None


def check_job(job: Job, limits: Limits) -> None:
    """Raises InvalidRequestError if a job breaks a rule; its field is one of the job's."""
    check_id(job.id, "id")
    _check_texts(job)
    for name, value in zip(_JOB_NUMBERS.values(), _job_numbers_of(job), strict=True):
        if not 0.0 <= value <= MAX_NUMBER:  # written so that NaN fails
            raise InvalidRequestError(f"must be 0 … {MAX_NUMBER:g}", name)
    if job.submit_time_s:
        check_time(job.submit_time_s, "submit_time")
    if not 1.0 <= job.gpu_sharing.max_slowdown <= MAX_NUMBER:
        raise InvalidRequestError("must be at least 1 (0 means 2)", "gpu_sharing.max_slowdown")
    if job.gpu_sharing.co_runs:
        _check_co_runs(job, "gpu_sharing.co_runs")
    for i, group in enumerate(job.groups):
        try:
            _check_group(group, limits)
        except InvalidRequestError as error:
            raise error.within(f"groups[{i}]") from None
    check_count(job.task_count, limits.tasks_per_gang, "groups")
    if job.elastic is not None or job.shape is not None:
        _check_shape(job)
    if job.subtasks:
        _check_subtasks(job.subtasks, "subtasks", limits)


def _check_texts(job: Job) -> None:
    if job.model:
        check_text(job.model, "model", MAX_ID)
    if job.queue:
        check_text(job.queue, "queue", MAX_ID)
    if job.user:
        check_text(job.user, "user", MAX_ID)


def _check_co_runs(job: Job, field: str) -> None:
    co_runs = job.gpu_sharing.co_runs
    check_count(len(co_runs), MAX_CO_RUNS, field)
    if not job.model:
        raise InvalidRequestError("need the job's model: co-runs are stored under its name", field)
    _check_comparable(job.model, "model")
    for i, co_run in enumerate(co_runs):
        check_id(co_run.model, f"{field}[{i}].model")
        _check_comparable(co_run.model, f"{field}[{i}].model")
        if co_run.gpu_model:
            check_text(co_run.gpu_model, f"{field}[{i}].gpu_model", MAX_ID)
            _check_comparable(co_run.gpu_model, f"{field}[{i}].gpu_model")
        if not 0.0 < co_run.relative_speed <= _MOST_RELATIVE_SPEED:
            raise InvalidRequestError(
                f"must be above 0, at most {_MOST_RELATIVE_SPEED:g}", f"{field}[{i}].relative_speed"
            )
        if not 0.0 <= co_run.neighbour_relative_speed <= _MOST_RELATIVE_SPEED:
            raise InvalidRequestError(f"must be 0 … {_MOST_RELATIVE_SPEED:g}", f"{field}[{i}].neighbour_relative_speed")
        check_number(co_run.step_s, f"{field}[{i}].step_seconds")


def _check_comparable(name: str, field: str) -> None:
    """Names of measured models are compared by their letters and digits; one without any would be every other such."""
    if not canonical(name):
        raise InvalidRequestError("needs a letter a … z or a digit: co-runs are compared by it", field)


def _check_group(group: TaskGroup, limits: Limits) -> None:
    if not 1 <= group.count <= limits.tasks_per_gang:
        raise InvalidRequestError(f"must be 1 … {limits.tasks_per_gang}", "count")
    if group.max_per_node < 0:
        raise InvalidRequestError("must not be negative", "max_per_node")
    if group.gpu_model:
        check_text(group.gpu_model, "gpu_model", MAX_ID)
    _check_resources(group.demand, "demand")
    gpus = group.demand.gpus
    if gpus != int(gpus) and (gpus > 1.0 or not quantise(gpus)):  # what rounds to nothing would need no GPU
        raise InvalidRequestError("must be whole, or a fraction of one GPU of at least 2⁻²⁰", "demand.gpus")
    if group.node_selector:
        check_labels(group.node_selector, "node_selector")


def _check_shape(job: Job) -> None:
    elastic, shape = job.elastic, job.shape
    if elastic is not None and not 1 <= elastic.min_gpus <= elastic.max_gpus <= _MAX_COUNT:
        raise InvalidRequestError("needs 1 ≤ min_gpus ≤ max_gpus", "elastic")
    if shape is not None and (shape.nodes < 1 or shape.gpus_per_node < 1 or shape.gpus > _MAX_COUNT):
        raise InvalidRequestError("needs at least one node and one GPU on each", "shape")


def _check_subtasks(subtasks: Sequence[Subtask], field: str, limits: Limits) -> None:
    check_count(len(subtasks), limits.subtasks, field)
    ids = [subtask.id for subtask in subtasks]
    check_unique(ids, field)
    known = set(ids)
    for i, subtask in enumerate(subtasks):
        check_id(subtask.id, f"{field}[{i}].id")
        check_text(subtask.kind, f"{field}[{i}].kind", MAX_ID)
        check_text(subtask.unit, f"{field}[{i}].unit", MAX_ID)
        check_number(subtask.size, f"{field}[{i}].size")
        check_map(subtask.profile, f"{field}[{i}].profile", MAX_NUMBER)
        for before in subtask.after:
            if before not in known:
                raise InvalidRequestError("names no subtask of this job", f"{field}[{i}].after")


def _check_gpus(node: Node, field: str, limits: Limits) -> None:
    count = node.capacity.gpus
    if count != int(count) or count > limits.gpus_per_node:
        raise InvalidRequestError(f"must be whole, at most {limits.gpus_per_node}", f"{field}.capacity.gpus")
    if node.gpus and count not in (0, len(node.gpus)):
        raise InvalidRequestError("differs from the number of gpus listed", f"{field}.capacity.gpus")
    if not 0 <= node.max_jobs_per_gpu <= _MAX_COUNT:
        raise InvalidRequestError("must not be negative", f"{field}.max_jobs_per_gpu")
    check_count(len(node.gpus), limits.gpus_per_node, f"{field}.gpus")
    check_unique([gpu.index for gpu in node.gpus], f"{field}.gpus")
    for i, gpu in enumerate(node.gpus):
        at = f"{field}.gpus[{i}]"
        if not 0 <= gpu.index < limits.gpus_per_node:
            raise InvalidRequestError(f"must be 0 … {limits.gpus_per_node - 1}", f"{at}.index")
        check_text(gpu.model, f"{at}.model", MAX_ID)
        check_amount(gpu.memory_gib, f"{at}.memory_gib")
        check_reading(gpu.util, 0.0, 1.0, f"{at}.util")
        check_reading(gpu.memory_util, 0.0, 1.0, f"{at}.memory_util")
        check_reading(gpu.celsius, _COLDEST, _HOTTEST, f"{at}.celsius")


def _check_telemetry(telemetry: NodeTelemetry, field: str) -> None:
    if telemetry is NO_TELEMETRY:
        return
    for name in _UTILS:
        check_reading(getattr(telemetry, name), 0.0, 1.0, f"{field}.{name}")
    for name in _READINGS:
        check_reading(getattr(telemetry, name), 0.0, MAX_NUMBER, f"{field}.{name}")
    for name in _TEMPERATURES:
        check_reading(getattr(telemetry, name), _COLDEST, _HOTTEST, f"{field}.{name}")
    check_time(telemetry.observe_time_s, f"{field}.observe_time")


def check_event(event: JobEvent, field: str, limits: Limits) -> None:
    """Raises InvalidRequestError if a job event breaks a rule."""
    check_id(event.job_id, f"{field}.job_id")
    check_time(event.event_time_s, f"{field}.event_time")
    check_number(event.speed, f"{field}.speed")
    check_number(event.epochs_done, f"{field}.epochs_done")
    check_text(event.reservation_id, f"{field}.reservation_id", MAX_ID)
    check_text(event.decision_id, f"{field}.decision_id", MAX_ID)
    check_text(event.reason, f"{field}.reason", MAX_TEXT)
    check_count(len(event.placement), limits.tasks_per_gang, f"{field}.placement")
    for i, assignment in enumerate(event.placement):
        _check_assignment(assignment, f"{field}.placement[{i}]", limits)
    if event.job is not None:
        try:
            check_job(event.job, limits)
        except InvalidRequestError as error:
            raise error.within(f"{field}.job") from None
        if event.job.id != event.job_id:
            raise InvalidRequestError("must be the job_id of the event", f"{field}.job.id")
    _check_share(event, field)
    _check_subtask_outcome(event, field)


def _check_assignment(assignment: Assignment, field: str, limits: Limits) -> None:
    check_text(assignment.task, f"{field}.task", MAX_ID)
    check_id(assignment.node, f"{field}.node")
    check_text(assignment.cpu_unit, f"{field}.cpu_unit", MAX_ID)
    check_text(assignment.subtask, f"{field}.subtask", MAX_ID)
    _check_resources(assignment.demand, f"{field}.demand")
    check_unique(assignment.gpu_indices, f"{field}.gpu_indices")
    for index in assignment.gpu_indices:
        if not 0 <= index < limits.gpus_per_node:
            raise InvalidRequestError(f"must be 0 … {limits.gpus_per_node - 1}", f"{field}.gpu_indices")


def _check_share(event: JobEvent, field: str) -> None:
    share = event.share
    if share is None:
        if event.kind in (JobEventKind.SHARE_FINISHED, JobEventKind.SHARE_MOVE_REQUESTED):
            raise InvalidRequestError(f"{event.kind} needs the share", f"{field}.share")
        return
    for name in ("task_kind", "node", "unit"):
        check_text(getattr(share, name), f"{field}.share.{name}", MAX_ID)
    check_number(share.scale, f"{field}.share.scale")
    check_number(share.seconds, f"{field}.share.seconds")
    check_number(share.overhead_s, f"{field}.share.overhead_seconds")
    if not _COLDEST <= share.peak_celsius <= _HOTTEST:
        raise InvalidRequestError(f"must be {_COLDEST:g} … {_HOTTEST:g}", f"{field}.share.peak_celsius")


def _check_subtask_outcome(event: JobEvent, field: str) -> None:
    outcome = event.subtask
    if outcome is None:
        if event.kind is JobEventKind.SUBTASK_FINISHED:
            raise InvalidRequestError("SUBTASK_FINISHED needs the subtask", f"{field}.subtask")
        return
    for name in ("subtask", "kind"):
        check_id(getattr(outcome, name), f"{field}.subtask.{name}")
    check_text(outcome.node, f"{field}.subtask.node", MAX_ID)
    if not _UNIT.fullmatch(outcome.unit):
        raise InvalidRequestError('must name a core or a GPU, such as "cpu3" or "gpu0"', f"{field}.subtask.unit")
    check_number(outcome.size, f"{field}.subtask.size")
    if not 0.0 < outcome.seconds <= MAX_NUMBER:
        raise InvalidRequestError("must be positive", f"{field}.subtask.seconds")


def _check_queue(queue: QueueSettings, field: str) -> None:
    check_number(queue.v, f"{field}.v")
    check_number(queue.epsilon_s, f"{field}.epsilon_seconds")
    if not 0.0 < queue.tau_s <= MAX_NUMBER:
        raise InvalidRequestError("must be positive", f"{field}.tau_seconds")
    if not 0.001 <= queue.slot_s <= MAX_NUMBER:
        raise InvalidRequestError("must be at least a millisecond", f"{field}.slot_duration")
    if not 0.0 <= queue.bound_s <= MAX_TIME_S:
        raise InvalidRequestError(f"must be 0 … {MAX_TIME_S:g} s", f"{field}.wait_bound")


def _check_resources(resources: Resources, field: str) -> None:
    for name, value in zip(_AMOUNTS, _amounts_of(resources), strict=True):
        if not 0.0 <= value <= MAX_AMOUNT:
            raise InvalidRequestError(f"must be 0 … {MAX_AMOUNT:g}", f"{field}.{name}")
    if resources.extended:
        check_map(resources.extended, f"{field}.extended", MAX_AMOUNT)
