"""A client's own book of the holder of each GPU and core: finds double assignments. Pure; knows no service.

Sound, not timid: an entry is struck out *before* the client asks to release it, and at its expiry by the store's clock
(the same machine's). So every holding still in the book is held, and an answer that overlaps it breaks the promise.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from placewise.v1.cluster_pb2 import Assignment
from placewise_core.basics.frozen import frozen

Unit = tuple[str, int]  # node, GPU index


@frozen
class Holding:
    """Resources of one job until it is released or `expire_time_s` passes (0: until released)."""

    job_id: str
    gpus: tuple[Unit, ...]
    cpu_cores: Mapping[str, float]
    expire_time_s: float


@dataclass(slots=True)
class BenchLedger:
    """`cpu_cores` maps nodes to the cores free for this client's jobs at the start."""

    cpu_cores: Mapping[str, float]
    violations: list[str] = field(default_factory=list)
    _holders: dict[Unit, str] = field(default_factory=dict)
    _holdings: dict[str, Holding] = field(default_factory=dict)
    _used_cores: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def __len__(self) -> int:
        return len(self._holdings)

    def take(self, job_id: str, assignments: Sequence[Assignment], expire_time_s: float, now_s: float) -> None:
        """Books an answer; notes every GPU and core that is booked already."""
        self.strike_expired(now_s)
        if 0 < expire_time_s <= now_s:
            return  # the answer came after its own expiry: it holds nothing any more
        cores: dict[str, float] = defaultdict(float)
        gpus = tuple((a.node, index) for a in assignments for index in a.gpu_indices)
        for assignment in assignments:
            cores[assignment.node] += assignment.demand.cpu_cores
        for unit in gpus:
            holder = self._holders.get(unit)
            if holder is not None:
                self.violations.append(f"GPU {unit[1]} of {unit[0]} is held by {holder} and was given to {job_id}")
            self._holders[unit] = job_id
        if len(set(gpus)) != len(gpus):
            self.violations.append(f"{job_id} was given a GPU twice")
        for node, amount in cores.items():
            self._used_cores[node] += amount
            if self._used_cores[node] > self.cpu_cores[node]:
                self.violations.append(f"{node}: {self._used_cores[node]:g} cores held, {self.cpu_cores[node]:g} there")
        self._holdings[job_id] = Holding(job_id, gpus, cores, expire_time_s)

    def held(self, now_s: float) -> frozenset[str]:
        """Jobs that hold something, and have not expired by now."""
        return frozenset(h.job_id for h in self._holdings.values() if not 0 < h.expire_time_s <= now_s)

    def strike(self, job_id: str) -> None:
        """Removes a job's holding; call it before asking for the release."""
        holding = self._holdings.pop(job_id, None)
        if holding is None:
            return
        for unit in holding.gpus:
            if self._holders.get(unit) == job_id:
                del self._holders[unit]
        for node, amount in holding.cpu_cores.items():
            self._used_cores[node] -= amount

    def strike_expired(self, now_s: float) -> None:
        """Removes expired holdings."""
        expired = [h.job_id for h in self._holdings.values() if 0 < h.expire_time_s <= now_s]
        for job_id in expired:
            self.strike(job_id)
