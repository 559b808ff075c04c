"""What jobs hold on nodes, and whether more fits: the reference for reserve.lua and shared/holdings.lua. Pure."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from placewise_core.domain.job import JobId
from placewise_service.state.holdings import NETWORK, Hold, NodeCapacity, SeenNode, Tenant
from placewise_service.state.store import Overcommit

_POOLED = (
    ("cpu_cores", "INSUFFICIENT_CPU"),
    ("memory_gib", "INSUFFICIENT_MEMORY"),
    ("gpu_memory_gib", "INSUFFICIENT_GPU_MEMORY"),
    ("network_gbps", "INSUFFICIENT_NETWORK"),
)


@dataclass(slots=True)
class Used:
    """Amounts in use on one node: pooled ones by name, extended ones by name, tenants by GPU index."""

    pooled: dict[str, float] = field(default_factory=lambda: {name: 0.0 for name, _ in _POOLED})
    extended: dict[str, float] = field(default_factory=dict)
    tenants: dict[int, list[Tenant]] = field(default_factory=dict)

    @property
    def is_idle(self) -> bool:
        return not any(self.pooled.values()) and not self.extended and not self.tenants

    def copy(self) -> "Used":
        tenants = {gpu: list(on_gpu) for gpu, on_gpu in self.tenants.items()}
        return Used(dict(self.pooled), dict(self.extended), tenants)


class NodeLedger:
    """Nodes' capacities and amounts in use. Nodes may leave and return: the amounts there stay in use."""

    def __init__(self) -> None:
        self.capacities: dict[str, NodeCapacity] = {}
        self.used: dict[str, Used] = {}

    def copy(self, nodes: Collection[str]) -> "NodeLedger":
        """A ledger to try things on, of these nodes only."""
        other = NodeLedger()
        other.capacities = self.capacities
        other.used = {name: self.used[name].copy() for name in nodes if name in self.used}
        return other

    def take(self, job_id: JobId, holds: Sequence[Hold]) -> None:
        for hold in holds:
            used = self._add(hold, 1)
            tenant = Tenant(job_id, hold.gpu_fraction, hold.gpu_memory_each_gib, bool(hold.is_sharing))
            for gpu in hold.gpus:
                used.tenants.setdefault(gpu, []).append(tenant)

    def give_back(self, job_id: JobId, holds: Sequence[Hold]) -> None:
        """The inverse of take."""
        for hold in holds:
            used = self._add(hold, -1)
            for gpu in hold.gpus:
                tenants = used.tenants.get(gpu, [])
                first = next((i for i, tenant in enumerate(tenants) if tenant.job_id == job_id), None)
                if first is not None:
                    del tenants[first]
                if not tenants:
                    used.tenants.pop(gpu, None)
            if used.is_idle:
                del self.used[hold.node]

    def _add(self, hold: Hold, sign: int) -> Used:
        used = self.used.setdefault(hold.node, Used())
        for name, _ in _POOLED:
            used.pooled[name] += sign * getattr(hold, name)
        for name, amount in hold.extended.items():
            used.extended[name] = used.extended.get(name, 0.0) + sign * amount
            if used.extended[name] == 0:
                del used.extended[name]
        return used

    def conflict(self, hold: Hold, expected: Mapping[str, Collection[JobId]], own: Collection[JobId]) -> str:
        """Why `hold` does not fit, "" if it does. `own` are the jobs of the request: they are no surprise."""
        capacity = self.capacities.get(hold.node)
        if capacity is None:
            return "NODE_UNKNOWN"
        if not capacity.is_ready:
            return "NODE_NOT_READY"
        used = self.used.get(hold.node) or Used()
        if pooled := _pooled_conflict(hold, capacity, used):
            return pooled
        for gpu in hold.gpus:
            seen = expected.get(f"{hold.node}/{gpu}", ())
            if reason := _gpu_conflict(hold, gpu, capacity, used.tenants.get(gpu, []), seen, own):
                return reason
        return ""

    def network_conflict(self, holds: Sequence[Hold], expected: Mapping[str, SeenNode]) -> tuple[str, str] | None:
        """The first node where a gang on several may not be for its network, or another's, and why: another gang has
        the node's, or, if this one wants its own, the node has other amounts or other jobs on GPUs than expected."""
        nodes = dict.fromkeys([hold.node for hold in holds])
        for node in nodes if len(nodes) > 1 else ():
            if node in self.used and NETWORK in self.used[node].extended:
                return node, "NETWORK_TAKEN"
        for node in nodes if NETWORK in holds[0].extended else ():
            if node in expected and not self._is_as(node, expected[node]):
                return node, "NETWORK_CHANGED"
        return None

    def _is_as(self, node: str, seen: SeenNode) -> bool:
        used = self.used.get(node) or Used()
        on_gpus = {tenant.job_id for tenants in used.tenants.values() for tenant in tenants}
        return tuple(used.pooled.values()) == seen[:4] and on_gpus == set(seen.on_gpus)

    def overcommits(self, job_id: JobId, hold: Hold) -> Iterator[Overcommit]:
        """What `hold` overcommits when a host has started the job there all the same: pooled amounts, and GPUs."""
        capacity = self.capacities.get(hold.node)
        if capacity is None:
            return
        used = self.used.get(hold.node) or Used()
        if pooled := _pooled_conflict(hold, capacity, used):
            yield Overcommit(job_id, hold.node, pooled)
        reasons: list[str] = []
        gpus: list[int] = []
        others: dict[JobId, None] = {}
        for gpu in hold.gpus:
            tenants = used.tenants.get(gpu, [])
            seen = {JobId(tenant.job_id) for tenant in tenants}
            there = [JobId(tenant.job_id) for tenant in tenants if tenant.job_id != job_id]
            if there and (reason := _gpu_conflict(hold, gpu, capacity, tenants, seen, set())):
                reasons.append(reason)
                gpus.append(gpu)
                others.update(dict.fromkeys(there))
        if reasons:
            yield Overcommit(job_id, hold.node, reasons[0], tuple(gpus), tuple(others))


def _pooled_conflict(hold: Hold, capacity: NodeCapacity, used: Used) -> str:
    for name, reason in _POOLED:
        amount = getattr(hold, name)
        if amount > 0 and used.pooled[name] + amount > getattr(capacity, name):
            return reason
    for name, amount in hold.extended.items():
        if name != NETWORK and used.extended.get(name, 0.0) + amount > capacity.extended.get(name, 0.0):
            return "INSUFFICIENT_EXTENDED"
    return ""


def _gpu_conflict(
    hold: Hold,
    gpu: int,
    capacity: NodeCapacity,
    tenants: Sequence[Tenant],
    seen: Collection[JobId],
    own: Collection[JobId],
) -> str:
    memory_gib = capacity.gpu_memory_by_index_gib.get(gpu)
    if memory_gib is None:
        return "GPU_UNKNOWN"
    if tenants and not (hold.is_sharing and all(tenant.is_sharing for tenant in tenants)):
        return "GPU_TAKEN"
    there = {tenant.job_id for tenant in tenants if tenant.job_id not in own}
    if there != {job_id for job_id in seen if job_id not in own}:
        return "GPU_TENANTS_CHANGED"
    is_full = len(tenants) >= capacity.max_jobs_per_gpu
    is_split = hold.gpu_fraction < 1 and 1 - sum(t.fraction for t in tenants) < hold.gpu_fraction
    if tenants and (is_full or is_split):
        return "GPU_SHARE_FULL"
    if hold.gpu_memory_each_gib > 0 and memory_gib - sum(t.memory_gib for t in tenants) < hold.gpu_memory_each_gib:
        return "INSUFFICIENT_GPU_MEMORY"
    return ""
