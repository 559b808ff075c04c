"""A log that a simulation would have left: decisions with alternatives and inputs of the reward model, and reports.

The real export turns it into tables. The policy in force and the explorer have half of the jobs each.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from tests.fakes.declog import NOON_S, FakeRing, decision_id

from placewise_core.domain.cluster import Assignment
from placewise_core.domain.commands import JobEvent, JobEventKind, PlaceCommand
from placewise_core.domain.decision import DecisionMeta, JobDecision, Outcome, PlaceDecision
from placewise_core.domain.job import Job, JobId
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.policy import PlacementPolicy, Proposal, action_of
from placewise_core.inputs.reward import WITNESSES, PartEncoder
from placewise_core.policies.studies.alternatives import Alternative
from placewise_core.view.view import ClusterView
from placewise_log.logs import Log, LogState
from placewise_log.record import DecisionRecord, Draw, Entry, OutcomeRecord, Parts, Tensor, ViewRead
from placewise_log.views import Snapshot, encode_snapshot
from placewise_service.declog.export import export
from placewise_training.sim.gangs.engine import SimOptions, Simulation
from placewise_training.sim.hardware import NodeSpec
from placewise_training.sim.jobs import SimJob
from placewise_training.sim.policies import placement_policy, shipped
from placewise_training.sim.speed.base import SpeedModel

CLUSTER = "c"
REPORT_S = 120.0


def is_explorers(seed: int, job_id: str) -> bool:
    """Whether the explorer places this job."""
    return bool(zlib.crc32(f"{seed} {job_id}".encode()) % 2)


@dataclass(slots=True)
class Logging(PlacementPolicy):
    """Places by the policy in force or by the explorer, as the job's name decides, and keeps a record of each."""

    own: PlacementPolicy
    explorer: PlacementPolicy
    seed: int
    entries: list[Entry] = field(default_factory=list)
    ids: dict[str, str] = field(default_factory=dict)
    name: str = "logging"
    encoder: PartEncoder = field(default_factory=lambda: PartEncoder(most_witnesses=WITNESSES))
    has_views: bool = False
    views: list[bytes] = field(default_factory=list)  # a snapshot for each decision

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        first = self.own.propose(job, view, context)
        second = self.explorer.propose(job, view, context) if first is not None else None
        if first is None or second is None:
            return first
        is_explored = is_explorers(self.seed, job.id)
        both = [first, second]
        if action_of(first.assignments) == action_of(second.assignments):
            both = [first]
        chosen = both[-1] if is_explored else first
        self._record(job, both, both.index(chosen), view, NOON_S + context.now_s, is_explored=is_explored)
        return chosen

    def _record(
        self, job: Job, given: Sequence[Proposal], chosen: int, view: ClusterView, time_s: float, *, is_explored: bool
    ) -> None:
        n = len(self.ids) + 1
        job = replace(job, submit_time_s=NOON_S + job.submit_time_s)
        self.ids[job.id] = decision_id(n, time_s)
        reads: tuple[ViewRead, ...] = ()
        if self.has_views:
            name = f"v{n}"
            self.views.append(encode_snapshot(Snapshot.of(name, view, time_s, ())))
            reads = (ViewRead(name, view.version, time_s - NOON_S, view.digest()),)
        tokens = self.encoder.encode(job, [each.assignments for each in given], view)
        parts = Parts(
            job.id,
            Tensor.pack(tokens.parts),
            Tensor.pack(tokens.job.astype(np.int32)),
            Tensor.pack(tokens.node.astype(np.int32)),
            tuple(view.nodes.records[m].id for m in tokens.places),
            tuple(running.id for running in tokens.neighbours),
        )
        share = 1.0 if len(given) == 1 else 0.5
        both = (self.own, self.explorer)
        rows = tuple(
            Alternative(
                job.id,
                both[k].name,
                tuple(node for _, node in action_of(each.assignments)),
                k == chosen,
                share,
                1.0 - k,
                policies={policy.name: 1.0 for policy in (both if len(given) == 1 else both[k : k + 1])},
            )
            for k, each in enumerate(given)
        )
        decided = JobDecision(
            JobId(job.id), Outcome.PLACED, given[chosen].assignments, reservation_id=f"r{n}", propensity=share
        )
        answer = PlaceDecision((decided,), DecisionMeta(self.ids[job.id], self.own.name, propensity=share))
        draw = Draw(job.id, 1.0 - chosen, self.explorer.name if is_explored else "", 0.5)
        made = DecisionRecord.of_place(
            PlaceCommand(CLUSTER, (job,)), answer, time_s=time_s, seed=n, latency_ms=1.0, draws=(draw,), reads=reads
        )
        values = {name: getattr(made, name) for name in made.__dataclass_fields__}
        self.entries.append(DecisionRecord(**{**values, "alternatives": rows, "parts": (parts,)}))


class LoggedRing(FakeRing):
    """With the log of views: snapshots, of which the first knows the nodes."""

    def __init__(self, entries: Sequence[Entry], *snapshots: bytes) -> None:
        super().__init__(*entries)
        self._views = [(f"{int(NOON_S * 1000)}-{i:06d}", data) for i, data in enumerate(snapshots)]

    async def read_decisions(
        self, cluster: str, after: str, count: int, log: Log = Log.DECISIONS
    ) -> Sequence[tuple[str, bytes]]:
        if log is Log.VIEWS:
            return [] if after != "0" else self._views
        return await super().read_decisions(cluster, after, count, log)

    async def log_state(self, cluster: str, log: Log = Log.DECISIONS) -> LogState:
        return LogState("0" if log is Log.VIEWS else self.position)

    async def mark_exported(self, cluster: str, position: str, log: Log = Log.DECISIONS) -> None:
        if log is Log.DECISIONS:
            await super().mark_exported(cluster, position, log)


async def simulated_log(
    folder: Path,
    nodes: Sequence[NodeSpec],
    jobs: Sequence[SimJob],
    truth: SpeedModel,
    *,
    policies: tuple[str, str] = ("consolidate", "load-balance"),
    seed: int = 0,
    cut_s: float = float("inf"),
    has_progress: bool = True,
    has_views: bool = False,
    changed: Callable[[Entry], Entry] = lambda entry: entry,
) -> Logging:
    """Plays the jobs and exports the log as it is `cut_s` after the start; `changed` may alter each entry. With
    `has_views` the view that each decision read can be rebuilt."""
    own, explorer = (placement_policy(name, shipped()) for name in policies)
    logging = Logging(own, explorer, seed, has_views=has_views)
    reports: list[OutcomeRecord] = []

    def say(
        kind: JobEventKind, job: SimJob, now_s: float, epochs: float = 0.0, tasks: tuple[Assignment, ...] = ()
    ) -> None:
        if job.id in logging.ids:
            event = JobEvent(
                JobId(job.id), kind, event_time_s=NOON_S + now_s, epochs_done=epochs, placement=tasks,
                decision_id=logging.ids[job.id],
            )  # fmt: skip
            reports.append(OutcomeRecord(CLUSTER, NOON_S + now_s, event, logging.ids[job.id]))

    def heard(now_s: float, what: str, job: SimJob, places: tuple[str, ...]) -> None:
        if what == "start":
            say(JobEventKind.STARTED, job, now_s, tasks=simulation.running[job.id].assignments)
        elif what == "finish":
            say(JobEventKind.FINISHED, job, now_s, job.job.total_epochs)

    options = SimOptions(observers=(heard,), reports_progress=True)
    simulation = Simulation(nodes, jobs, truth, logging, options=options, seed=seed)
    snapshot = encode_snapshot(Snapshot.of("v", simulation.view, NOON_S, ()))
    now_s = 0.0
    while len(simulation.events) and now_s < cut_s:
        now_s = min(cut_s, max(now_s + REPORT_S, simulation.events.next_time_s))
        simulation.run_until(now_s)
        for live in simulation.running.values() if has_progress else ():
            done = live.done_at(now_s) / live.sim.samples
            if done > 0 and now_s > live.start_s:
                say(JobEventKind.PROGRESS, live.sim, now_s, done * live.sim.job.total_epochs)
    ring = LoggedRing([changed(entry) for entry in (*logging.entries, *reports)], snapshot, *logging.views)
    ring.now_s = NOON_S + now_s + 1.0
    await export(ring, folder)
    return logging
