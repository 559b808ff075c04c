"""Decisions, outcomes and a ring in memory, for tests of the export."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

from placewise_core.domain.cluster import Assignment
from placewise_core.domain.commands import JobEvent, JobEventKind, PlaceCommand
from placewise_core.domain.decision import DecisionMeta, JobDecision, Outcome, PlaceDecision
from placewise_core.domain.job import Job, JobId, NodeId, Role
from placewise_log.logs import Log, LogState
from placewise_log.record import DecisionRecord, Entry, OutcomeRecord, encode
from placewise_service.declog.export import ExportReport, export

NOON_S = 1_763_726_400.0  # 2025-11-21 12:00 UTC
DAY_S = 86_400.0


def decision_id(n: int, time_s: float = NOON_S) -> str:
    """A UUIDv7 of that time."""
    head = f"{int(time_s * 1000):012x}"
    return f"{head[:8]}-{head[8:]}-7000-8000-{n:012x}"


def task_on(node: str, *gpus: int) -> Assignment:
    return Assignment("worker-0", Role.WORKER, NodeId(node), gpu_indices=gpus)


def decision(
    n: int, *, time_s: float = NOON_S, outcome: Outcome = Outcome.PLACED, dry: bool = False, job_id: str = ""
) -> DecisionRecord:
    """A Place decision about one job on GPU 0 of n1, submitted 5 s before."""
    job = JobId(job_id or f"j{n}")
    decided = JobDecision(job, outcome, (task_on("n1", 0),), predicted_speed=2.0, reservation_id="" if dry else f"r{n}")
    answer = PlaceDecision((decided,), DecisionMeta(decision_id(n, time_s), "tetris"))
    command = PlaceCommand("c", (Job(job, submit_time_s=time_s - 5),), is_dry_run=dry)
    return DecisionRecord.of_place(command, answer, time_s=time_s, seed=2**63 + n, latency_ms=0.5)


def outcome(n: int, kind: JobEventKind, at_s: float, *, decided_s: float = NOON_S, **event: object) -> OutcomeRecord:
    return OutcomeRecord(
        "c",
        at_s + 0.1,
        JobEvent(JobId(f"j{n}"), kind, event_time_s=at_s, **event),  # type: ignore[arg-type]
        decision_id=decision_id(n, decided_s),
    )


class FakeRing:
    """A ring in memory that can refuse its nth call."""

    def __init__(self, *entries: Entry) -> None:
        self.now_s = NOON_S + 60
        self.entries: list[tuple[str, bytes]] = []
        self.position = "0"
        self.dropped = dict.fromkeys(Log, 0)
        self.host_time_s: float | None = None
        self.calls_left = -1
        self.add(*entries)

    def add(self, *entries: Entry | bytes) -> None:
        for entry in entries:
            data = entry if isinstance(entry, bytes) else encode(entry)
            self.entries.append((f"{int(NOON_S * 1000)}-{len(self.entries):06d}", data))

    def _count(self) -> None:
        if self.calls_left == 0:
            raise ConnectionError("cut")
        self.calls_left -= 1

    async def ping(self) -> float:
        return self.now_s

    async def clusters(self) -> Sequence[str]:
        return ["c"]

    async def read_decisions(
        self, cluster: str, after: str, count: int, log: Log = Log.DECISIONS
    ) -> Sequence[tuple[str, bytes]]:
        if log is not Log.DECISIONS:
            return []
        self._count()
        return [(p, d) for p, d in self.entries if after == "0" or p > after][:count]

    async def mark_exported(self, cluster: str, position: str, log: Log = Log.DECISIONS) -> None:
        self._count()
        self.position = max(self.position, position)

    async def log_state(self, cluster: str, log: Log = Log.DECISIONS) -> LogState:
        return LogState(self.position, self.dropped[log], self.host_time_s)


def rows(directory: Path, table: str) -> list[dict[str, object]]:
    return [row for path in sorted(directory.glob(f"{table}/*/*.parquet")) for row in pq.read_table(path).to_pylist()]


async def run(ring: FakeRing, directory: Path, **options: float | str) -> ExportReport:
    return await export(ring, directory, **options)  # type: ignore[arg-type]


def job_rows(directory: Path, **having: object) -> list[dict[str, object]]:
    """Rows of the joined table with these values."""
    return [row for row in rows(directory, "joined") if having.items() <= row.items()]


def files(directory: Path, pattern: str) -> list[Path]:
    """Files of an export, in order."""
    return sorted(directory.glob(pattern))
