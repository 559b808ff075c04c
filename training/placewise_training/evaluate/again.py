"""Logged decisions put to a candidate again: how it would have answered on the view that each of them read.

One decision at a time: the earlier jobs of a request stand where the log has them. The candidate may place a job as no
policy in the log would have; the probability of such a placement is that of explorers that draw, else 0.
"""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from placewise_core.gang.context import PlaceContext
from placewise_core.gang.policy import PlacementPolicy, Proposal, action_of
from placewise_core.inputs.reward import WITNESSES, PartEncoder
from placewise_core.policies import explore
from placewise_core.policies.profiled.tables import packaged_tables
from placewise_core.speed.completed_interference import InterferenceSource
from placewise_core.view.heads import barred
from placewise_core.view.nodes import TELEMETRY_COLUMNS
from placewise_core.view.standing import with_groups
from placewise_core.view.view import ClusterView
from placewise_log.reading import ExportedLog
from placewise_log.rebuilding import NotRebuiltError
from placewise_log.record import Draw, Parts, Tensor
from placewise_models.bundle import Bundle
from placewise_training.evaluate.logged import Usable
from placewise_training.lab.work.workers import Workers
from placewise_training.log.placed import Option, PlacedJob
from placewise_training.sim.policies import explorers_of, placement_policy

_PARTS: Final = 16  # of a log, asked apart: each opens the log once
NEAR_LIMIT_CELSIUS: Final = 5.0
_CELSIUS: Final = [TELEMETRY_COLUMNS.index(name) for name in ("cpu_celsius", "gpu_celsius", "limit_celsius")]


@dataclass(frozen=True, slots=True, eq=False)
class CandidatePolicy:
    """A policy on a bundle's nets. `name` is how reports call it."""

    name: str
    policy: str
    bundle: Bundle


@dataclass(frozen=True, slots=True)
class Answer:
    """How the candidate answered one decision: CPU seconds of it and of the policy in force (NaN if that is unknown),
    asked in turn, whether a fallback answered for each, and whether each placed the job near a temperature limit.
    `is_placed` is False if the candidate found no place. Of an unknown policy in force the log's answer counts."""

    seconds: float
    incumbent_s: float
    is_placed: bool
    is_fallback: bool
    incumbent_is_fallback: bool
    is_hot: bool
    incumbent_is_hot: bool


@dataclass(slots=True)
class Conduct:
    """Answers to the decisions that were asked again, and `reasons` why others were not, with their numbers."""

    answers: list[Answer] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: "Conduct") -> "Conduct":
        return Conduct([*self.answers, *other.answers], self.reasons + other.reasons)


class AskedAgain:
    """Asks a candidate. `incumbent` is the bundle that the log's policies had: the policy in force is timed on it, and
    explorers that draw have its net."""

    def __init__(self, directory: Path, candidate: CandidatePolicy, incumbent: Bundle) -> None:
        """Raises ValueError for an unknown policy or one that draws, NeedsBundleError for one whose net is missing."""
        self.candidate = candidate
        self.conduct = Conduct()
        self._policy = placement_policy(candidate.policy, candidate.bundle)
        if self._policy.is_drawing:
            raise ValueError(f"{candidate.policy} draws its placements: only policies that do not can be asked again")
        self._explorers = explorers_of(incumbent)  # the policies in force are among them
        self._log = ExportedLog(directory)
        self._interference = InterferenceSource(packaged_tables().interference, candidate.bundle.sharing)
        self._encoder = PartEncoder(most_witnesses=WITNESSES)

    def asked(self, jobs: Iterable[PlacedJob]) -> list[PlacedJob]:
        """The jobs, in order, each with the candidate's placement among its options: with its name in `policies`. Jobs
        for which it could not be asked, or found no place, stay as they are."""
        return [self._asked(placed) for placed in jobs]

    def _asked(self, placed: PlacedJob) -> PlacedJob:
        try:
            view = self._log.view_at(placed.record, placed.job.id)
        except (NotRebuiltError, ValueError) as error:
            self.conduct.reasons[str(error)] += 1
            return placed
        job = with_groups(placed.job, view)
        placed = replace(placed, job=job)
        proposal, seconds = self._timed(self._policy, placed, view)
        in_force = self._explorers.get(placed.policy)
        theirs, incumbent_s = (None, float("nan")) if in_force is None else self._timed(in_force, placed, view)
        draw = placed.record.draw_of(job.id)
        logged = next(option.nodes for option in placed.options if option.is_chosen)
        self.conduct.answers.append(
            Answer(
                seconds,
                incumbent_s,
                proposal is not None,
                proposal is not None and proposal.is_fallback,
                draw is not None and bool(draw.fallback_reason) if theirs is None else theirs.is_fallback,
                _is_hot(_nodes_of(proposal), view),
                _is_hot(logged if theirs is None else _nodes_of(theirs), view),
            )
        )
        if proposal is None:
            return placed
        return self._with(placed, proposal, view)

    def _timed(self, policy: PlacementPolicy, placed: PlacedJob, view: ClusterView) -> tuple[Proposal | None, float]:
        context = self._context(placed, view)
        began = time.process_time()  # a busy machine slows neither of the two
        policy.order((placed.job,), view, context)
        proposal = policy.propose(placed.job, view, context)
        return proposal, time.process_time() - began

    def _context(self, placed: PlacedJob, view: ClusterView) -> PlaceContext:
        record, job = placed.record, placed.job
        draw = record.draw_of(job.id) or Draw(job.id)
        seed = record.seed if draw.seed is None else draw.seed
        now_s = record.reads[0].now_s
        interference = self._interference.of(view.co_runs, (job,))
        held = barred(view, job, job.gpus, now_s) if view.heads else None
        return PlaceContext(now_s, seed, interference=interference, barred=held)

    def _with(self, placed: PlacedJob, proposal: Proposal, view: ClusterView) -> PlacedJob:
        name = self.candidate.name
        nodes = tuple(node for _, node in action_of(proposal.assignments))
        options = [
            replace(option, policies={**option.policies, name: 1.0}) if option.nodes == nodes else option
            for option in placed.options
        ]
        if all(option.nodes != nodes for option in placed.options):
            share = self._propensity(placed, proposal, view)
            options.append(Option(nodes, False, share, 0.0, {name: 1.0}))
            extra = (self._parts(placed, proposal, view),) if placed.parts else ()
            return replace(placed, options=tuple(options), parts=(*placed.parts, *extra))
        return replace(placed, options=tuple(options))

    def _propensity(self, placed: PlacedJob, proposal: Proposal, view: ClusterView) -> float:
        """P of a placement that neither the policy in force nor an explorer that draws nothing gives: those give only
        placements that the log lists."""
        draw = placed.record.draw_of(placed.job.id)
        exploration = explore.exploration_of(view.settings, self._explorers)
        if draw is None or not draw.rate:
            return 0.0
        context = self._context(placed, view)
        drawing = [each for each in exploration.explorers if each.policy.is_drawing]
        total = sum(each.weight for each in exploration.explorers)
        return sum(
            draw.rate * each.weight / total * each.policy.probability(proposal.assignments, placed.job, view, context)
            for each in drawing
        )

    def _parts(self, placed: PlacedJob, proposal: Proposal, view: ClusterView) -> Parts:
        tokens = self._encoder.encode(placed.job, [proposal.assignments], view)
        return Parts(
            placed.job.id,
            Tensor.pack(tokens.parts),
            Tensor.pack(tokens.job.astype(np.int32)),
            Tensor.pack(tokens.node.astype(np.int32)),
            tuple(view.nodes.records[m].id for m in tokens.places),
            tuple(running.id for running in tokens.neighbours),
        )


def with_candidate(
    usable: Usable,
    directory: Path,
    candidate: CandidatePolicy,
    incumbent: Bundle,
    kept: Sequence[int],
    workers: Workers,
) -> tuple[Usable, Conduct]:
    """The same log, with the candidate asked for the jobs of these rows, and how it conducted itself. Raises as
    AskedAgain."""
    parts = [rows for rows in np.array_split(np.asarray(kept), _PARTS) if len(rows)]
    asked = workers.mapped(
        partial(_asked_part, directory, candidate, incumbent), ([usable.jobs[i] for i in rows] for rows in parts)
    )
    answered: dict[int, PlacedJob] = {}
    conduct = Conduct()
    for rows, (jobs, of_part) in zip(parts, asked, strict=True):
        answered.update(zip(rows.tolist(), jobs, strict=True))
        conduct += of_part
    return usable.replaced(answered), conduct


def _asked_part(
    directory: Path, candidate: CandidatePolicy, incumbent: Bundle, jobs: Sequence[PlacedJob]
) -> tuple[list[PlacedJob], Conduct]:
    again = AskedAgain(directory, candidate, incumbent)
    return again.asked(jobs), again.conduct


def _nodes_of(proposal: Proposal | None) -> set[str]:
    return {task.node for task in proposal.assignments} if proposal is not None else set()


def _is_hot(nodes: Iterable[str], view: ClusterView) -> bool:
    """Whether one of the nodes is within NEAR_LIMIT_CELSIUS of its limit. Nodes beyond that are never offered."""
    columns = [view.nodes.index[node] for node in set(nodes) if node in view.nodes.index]
    cpu, gpu, limit = view.nodes.telemetry[_CELSIUS][:, columns]
    return bool((np.fmax(cpu, gpu) >= limit - NEAR_LIMIT_CELSIUS).any())
