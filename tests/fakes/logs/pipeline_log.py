"""A log that a simulation of pipelines would have left: one decision for each task, the view it read, start and end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from tests.fakes.declog import NOON_S, decision_id
from tests.fakes.logs.simulated_log import LoggedRing

from placewise_core.domain.cluster import Assignment
from placewise_core.domain.commands import JobEvent, JobEventKind, PlaceCommand
from placewise_core.domain.decision import DecisionMeta, JobDecision, Outcome, PlaceDecision
from placewise_core.domain.job import JobId, NodeId, Role
from placewise_core.policies.studies.alternatives import Alternative
from placewise_core.view.view import ClusterView
from placewise_log.record import DecisionRecord, Draw, Entry, OutcomeRecord, ViewRead
from placewise_log.views import Snapshot, encode_snapshot
from placewise_service.declog.export import export
from placewise_training.sim.hardware import NodeSpec
from placewise_training.sim.pipelines.applications import PipelineTask
from placewise_training.sim.pipelines.choosers import NodeChooser
from placewise_training.sim.pipelines.engine import PipelineSimulation
from placewise_training.sim.pipelines.queues import NodeQueue
from placewise_training.sim.pipelines.units import IawpUnits


@dataclass(slots=True)
class _Logging:
    """`chooser` decides, or, for half of the tasks, chance."""

    chooser: NodeChooser
    seed: int
    name: str = "logging"
    entries: list[Entry] = field(default_factory=list)
    views: list[bytes] = field(default_factory=list)

    def choose(self, task: PipelineTask, view: ClusterView, nodes: Mapping[str, NodeQueue], now_s: float) -> str:
        rng, n, time_s = np.random.default_rng((self.seed, task.number)), task.number + 1, NOON_S + now_s
        is_explored = rng.random() < 0.5
        own = self.chooser.choose(task, view, nodes, now_s)
        chosen = [*nodes][int(rng.integers(len(nodes)))] if is_explored else own
        odds = {node: 0.5 / len(nodes) + 0.5 * (node == own) for node in nodes}
        job = replace(task.job, submit_time_s=NOON_S + task.submit_time_s)
        given = Assignment("worker-0", Role.WORKER, NodeId(chosen))
        decided = JobDecision(job.id, Outcome.PLACED, (given,), reservation_id=f"r{n}", propensity=odds[chosen])
        answer = PlaceDecision((decided,), DecisionMeta(decision_id(n, time_s), self.chooser.name))
        self.views.append(encode_snapshot(Snapshot.of(f"v{n}", view, time_s, ())))
        made = (
            DecisionRecord.of_place(
                PlaceCommand("c", (job,)), answer, time_s=time_s, seed=n, latency_ms=1.0,
                draws=(Draw(job.id, explorer="random" if is_explored else "", rate=0.5),),
                reads=(ViewRead(f"v{n}", view.version, now_s, view.digest()),),
            )
        )  # fmt: skip
        options = tuple(
            Alternative(job.id, "random", (node,), node == chosen, p, float(node == own)) for node, p in odds.items()
        )
        self.entries.append(replace(made, alternatives=options))
        self._say(JobEventKind.STARTED, n, job.id, time_s, time_s, (given,))
        return chosen

    def ended(self, task: PipelineTask, took_s: float) -> None:
        decided_s = NOON_S + task.submit_time_s
        self._say(JobEventKind.FINISHED, task.number + 1, task.job.id, decided_s + took_s, decided_s)

    def _say(
        self, kind: JobEventKind, n: int, job: str, time_s: float, decided_s: float, tasks: tuple[Assignment, ...] = ()
    ) -> None:
        decision = decision_id(n, decided_s)
        event = JobEvent(JobId(job), kind, event_time_s=time_s, placement=tasks, decision_id=decision)
        self.entries.append(OutcomeRecord("c", time_s, event, decision))


async def pipeline_log(
    folder: Path,
    nodes: Sequence[NodeSpec],
    tasks: Sequence[PipelineTask],
    truth: str,
    chooser: NodeChooser,
    *,
    seed: int = 0,
) -> None:
    """Plays the tasks and exports the log."""
    logging = _Logging(chooser, seed)
    simulation = PipelineSimulation(nodes, tasks, truth, logging, IawpUnits(), seed=seed)
    simulation.run()
    for task in tasks:
        logging.ended(task, simulation.turnaround_s[task.number])
    ring = LoggedRing(logging.entries, *logging.views)
    ring.now_s = NOON_S + simulation.now_s + 1.0
    await export(ring, folder)
