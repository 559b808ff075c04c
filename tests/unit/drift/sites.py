"""Logs of simulated sites, with forecasts of speed in them; from a job on something may change."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tests.fakes.logs.simulated_log import simulated_log
from tests.fakes.place_cases import view_of

from placewise_core.domain.commands import JobEventKind
from placewise_core.gang.neighbours import declared_speed
from placewise_log.record import DecisionRecord, Entry, OutcomeRecord
from placewise_training.drift.compare import Drift, drift_of_log
from placewise_training.sim.hardware import NodeSpec, harmony_cluster
from placewise_training.sim.jobs import SimJob
from placewise_training.sim.speed.base import Footprint, NodeLoad, Spot
from placewise_training.sim.speed.composed import ComposedSpeed
from placewise_training.sim.truths import make_truth
from placewise_training.sim.workloads import HarmonyWorkload

JOBS = 500
BLOCK_S = 7200.0


class SlowedFrom(ComposedSpeed):
    """A truth of which one constant, the speed of all GPUs, is another from a job on."""

    def __init__(self, truth: ComposedSpeed, first: int, factor: float) -> None:
        super().__init__(truth.catalogue, truth.sharing, overlap=truth.overlap, seed=truth.seed)
        self._first, self._factor = first, factor

    def footprint(self, job: SimJob, spots: Sequence[Spot], nodes: Mapping[str, NodeLoad]) -> Footprint:
        made = super().footprint(job, spots, nodes)
        if job.number >= self._first:
            made.noise *= self._factor
        return made


def log_of(
    folder: Path,
    seed: int,
    *,
    slower: float = 1.0,
    later: Callable[[SimJob], bool] = lambda job: True,
    nodes: Sequence[NodeSpec] | None = None,
) -> Path:
    """A log of JOBS jobs. Of the second half all run `slower` times as fast, and only `later` ones come."""
    truth = make_truth("site", seed)
    made = HarmonyWorkload(jobs=2 * JOBS, per_interval=3.0, pattern="poisson").generate(truth, seed)
    chosen = [*made[: JOBS // 2], *[job for job in made[JOBS // 2 :] if later(job)][: JOBS // 2]]
    jobs = [
        replace(job, submit_time_s=slot.submit_time_s, job=replace(job.job, submit_time_s=slot.submit_time_s))
        for job, slot in zip(chosen, made, strict=False)
    ]
    played = SlowedFrom(truth, made[JOBS // 2].number, slower)
    changed = _with_speeds()
    asyncio.run(simulated_log(folder, nodes or harmony_cluster(6), jobs, played, seed=seed, changed=changed))
    return folder


def _with_speeds() -> Callable[[Entry], Entry]:
    """The answers forecast a linear speed; reports of progress have the mean speed since the start."""
    starts: dict[str, float] = {}
    nowhere = view_of(())  # the declared speed is the same on every view

    def changed(entry: Entry) -> Entry:
        if isinstance(entry, DecisionRecord) and entry.place is not None:
            jobs = {job.id: job for job in entry.jobs}
            decisions = tuple(
                replace(each, predicted_speed=declared_speed(jobs[each.job_id], each.assignments, nowhere))
                for each in entry.place.decisions
            )
            return replace(entry, place=replace(entry.place, decisions=decisions))
        if isinstance(entry, OutcomeRecord):
            event = entry.event
            if event.kind is JobEventKind.STARTED:
                starts[event.job_id] = event.event_time_s
            elif event.kind is JobEventKind.PROGRESS:
                speed = event.epochs_done / (event.event_time_s - starts[event.job_id])
                return replace(entry, event=replace(event, speed=speed))
        return entry

    return changed


def found_in(log: Path, **options: object) -> Drift:
    return drift_of_log(log, 0.5, BLOCK_S, **options)  # type: ignore[arg-type]
