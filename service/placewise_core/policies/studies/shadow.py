"""A shadow's decision about one job, beside the one that was answered. Nothing of it holds.

The shadow reads the copy of the view that the answer was decided on (Study). The reward model in force and the
shadow's own both score both placements, as each of them may prefer the choices of its own side.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar, final

from placewise_core.basics.frozen import frozen
from placewise_core.basics.slices import Slices
from placewise_core.domain.cluster import Assignment, RunningJob, RunState
from placewise_core.domain.decision import JobDecision, Outcome
from placewise_core.gang import neighbours, why
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.policy import PlacementPolicy, Proposal
from placewise_core.policies.search import BestOfK
from placewise_core.policies.studies.alternatives import Study
from placewise_core.speed.completed_interference import InterferenceSource

T = TypeVar("T")


@final
@frozen
class Forecasts:
    """One reward model's forecasts of the answer and of the shadow's placement; None for one that does not exist.

    `answer_per_s` and `shadow_per_s` are Σ c_n/e_n of the job and its neighbours, the `own` ones c/e of the job alone.
    The spreads are those of the job's log-speed; None from a model without.
    """

    answer_per_s: float | None = None
    shadow_per_s: float | None = None
    own_answer_per_s: float | None = None
    own_shadow_per_s: float | None = None
    answer_spread: float | None = None
    shadow_spread: float | None = None


@final
@frozen
class Compared:
    """One job as answered and as its shadow places it.

    `is_same`: equally many workers and parameter servers on each node, or no placement by either. `answer_nodes` and
    `shadow_nodes` are the tasks' nodes in the order of the tasks' names, empty without a placement. `explorer` names
    the policy that explored in the answer, "" for none. `by_active` and `by_shadow` are of the reward models of the
    bundle in force and of the shadow; None without a model, or if it failed.
    """

    job_id: str
    is_same: bool
    answer_nodes: tuple[str, ...]
    shadow_nodes: tuple[str, ...]
    explorer: str
    by_active: Forecasts | None
    by_shadow: Forecasts | None


@frozen
class ShadowInputs:
    """Who decides in the shadow, and with which predictions. `active` and `own` are the reward models, None without."""

    policy: PlacementPolicy
    interference: InterferenceSource
    solo_speed: neighbours.SoloSpeed
    active: BestOfK | None
    own: BestOfK | None


@frozen
class Shadowed:
    """The decision of a shadow about one job. `busy_s` is the time it worked on the placement, pauses apart."""

    decision: JobDecision
    proposal: Proposal | None
    busy_s: float
    compared: Compared


def shadowed(
    study: Study, inputs: ShadowInputs, seed: int, monotonic_s: Callable[[], float], slices: Slices
) -> Shadowed:
    """The shadow's decision, without a deadline. Raises the policy's errors."""
    job, view = study.job, study.view
    interference = inputs.interference.of(view.co_runs, (job,))
    watch = Stopwatch(slices, monotonic_s)
    context = PlaceContext(study.now_s, seed, interference=interference, slices=watch, barred=study.barred)
    proposal = inputs.policy.propose(job, view, context)
    busy_s = watch.stopped()
    if proposal is None:
        outcome, blockers = why.explain(job, view, replace(context, slices=slices))
        decision = JobDecision(job_id=job.id, outcome=outcome, blockers=blockers)
    else:
        decision = _predicted(study, proposal, inputs, context, slices)
    return Shadowed(decision, proposal, busy_s, _compared(study, proposal, inputs, slices))


def _predicted(
    study: Study, proposal: Proposal, inputs: ShadowInputs, context: PlaceContext, slices: Slices
) -> JobDecision:
    job, view, tasks = study.job, study.view, proposal.assignments
    view.add_job(RunningJob(job, tasks, RunState.RESERVED))
    try:
        found = neighbours.predict(job, tasks, view, context.interference, inputs.solo_speed, slices)
    finally:
        view.remove_job(job.id)
    return JobDecision(
        job_id=job.id,
        outcome=Outcome.PLACED,
        assignments=tasks,
        predicted_speed=found.speed,
        neighbours=found.neighbours,
        propensity=proposal.propensity,
    )


def _compared(study: Study, proposal: Proposal | None, inputs: ShadowInputs, slices: Slices) -> Compared:
    answer = study.drawn.proposal if study.drawn is not None else None
    is_same = _counts(answer) == _counts(proposal)
    by_active = by_shadow = _forecasts(study, answer, proposal, inputs.active, slices)
    if inputs.own is not inputs.active:
        by_shadow = _forecasts(study, answer, proposal, inputs.own, slices)
    explorer = study.drawn.explorer if study.drawn is not None else ""
    return Compared(study.job.id, is_same, _nodes(answer), _nodes(proposal), explorer, by_active, by_shadow)


def _counts(proposal: Proposal | None) -> Sequence[tuple[str, str]]:
    """Node and role of every task: equal for placements that differ in the names of their tasks alone."""
    return sorted([(task.node, task.role.value) for task in _tasks(proposal)])


def _nodes(proposal: Proposal | None) -> tuple[str, ...]:
    return tuple([task.node for task in sorted(_tasks(proposal), key=lambda task: task.task)])


def _tasks(proposal: Proposal | None) -> Sequence[Assignment]:
    return proposal.assignments if proposal is not None else ()


def _forecasts(
    study: Study, answer: Proposal | None, proposal: Proposal | None, search: BestOfK | None, slices: Slices
) -> Forecasts | None:
    found = {name: each for name, each in (("answer", answer), ("shadow", proposal)) if each is not None}
    if search is None or not found:
        return None
    try:
        judged = search.judge(study.job, list(found.values()), study.view, slices)
        scores, own = judged.scores, judged.own
    except Exception:  # the decision is worth a record without forecasts
        return None
    values: dict[str, float] = {}
    for k, name in enumerate(found):
        values[f"{name}_per_s"] = float(scores.progress[k])
        values[f"own_{name}_per_s"] = float(own[k])
        if search.has_spread:
            values[f"{name}_spread"] = float(scores.spread[k])
    return Forecasts(**values)


class Stopwatch:
    """Slices that count the seconds of the work between pauses."""

    def __init__(self, slices: Slices, monotonic_s: Callable[[], float]) -> None:
        self._slices = slices
        self._monotonic_s = monotonic_s
        self._busy_s = 0.0
        self._began_s = monotonic_s()

    def stopped(self) -> float:
        """Seconds of work so far."""
        return self._busy_s + self._monotonic_s() - self._began_s

    def pause(self) -> None:
        self._busy_s = self.stopped()
        self._slices.pause()
        self._began_s = self._monotonic_s()

    def aside(self, work: Callable[[], T]) -> T:
        self._busy_s = self.stopped()
        result, seconds = self._slices.aside(lambda: self._timed(work))
        self._busy_s += seconds
        self._began_s = self._monotonic_s()
        return result

    def _timed(self, work: Callable[[], T]) -> tuple[T, float]:
        began_s = self._monotonic_s()
        return work(), self._monotonic_s() - began_s
