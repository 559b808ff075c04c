"""The two queues of Proteus: how Q and Z move from slot to slot, and S(n). Formulas on plain numbers; decides nothing.
A queue's state also remembers the shapes that were admitted, so that Place honours them (`with_shapes`).

Q holds Cost_i(1) of every waiting job, in seconds of one GPU; Z is the delay queue. Arrivals and service in a slot
count from the next slot on: a state is "as of" its slot, however often it is asked for in it.

The slot never goes back: while a clock that was set back catches up, the queue stands still (the same
answers, Q and Z untouched). Slots without a request are made up for in closed form, but for no more than a day's
growth of Z: a clock that leapt forward by a year must not leave a Z that takes a year of service to work off. Code that
changes the slot length of a queue renumbers it (`renumbered`), as slot numbers of two lengths cannot be compared.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from placewise_core.domain.cluster import QueueSettings, QueueState
from placewise_core.domain.decision import AdmitPlan, Verdict
from placewise_core.domain.job import Job

Array = NDArray[np.float64]
_MOST_CREDITED_S = 86_400.0
# A shape nobody placed in this many slots is forgotten: the host went its own way.
_KEPT_SLOTS = 8640


def advanced(queue: QueueState, slot: int, settings: QueueSettings) -> QueueState:
    """The state at `slot`, by equations (7) and (8); `queue` itself if that is not after its own slot."""
    if queue.slot < 0:
        return replace(queue, slot=slot)
    if slot <= queue.slot:
        return queue
    served = {job for job, (_, _, at) in queue.admitted.items() if at == queue.slot and job in queue.waiting}
    served_s = math.fsum([queue.waiting[job] for job in served])
    waiting = {job: cost for job, cost in queue.waiting.items() if job not in served}
    backlog_s = next_backlog(queue.backlog_s, served_s, queue.arrivals_s) if waiting else 0.0
    delay_s = next_delay(queue.backlog_s, queue.delay_s, served_s, settings.epsilon_s)
    delay_s = _idle_slots(backlog_s, delay_s, slot - queue.slot - 1, settings)
    return QueueState(  # not `replace`, here and below, which takes five times as long: it is done at every question
        queue.queue,
        backlog_s,
        delay_s,
        slot,
        queue.seq,
        waiting,
        admitted=queue.admitted,
        decided_slot=queue.decided_slot,
        head=queue.head,
    )


def followed(
    queue: QueueState, slot: int, settings: QueueSettings, listed: Collection[str], started: Collection[str]
) -> QueueState:
    """The state at a later slot of a queue whose jobs may start at any time: Q is the work of those that are `listed`
    and have not `started`, and (8) counts the work of those that started as served. Shapes of jobs that are no longer
    listed are forgotten."""
    if queue.slot < 0:
        return replace(queue, slot=slot)
    admitted = {job: answer for job, answer in queue.admitted.items() if job in listed}
    served_s = math.fsum([cost for job, cost in queue.waiting.items() if job in started])
    waiting = {job: cost for job, cost in queue.waiting.items() if job in listed and job not in started}
    backlog_s = math.fsum(waiting.values())
    delay_s = next_delay(queue.backlog_s, queue.delay_s, served_s, settings.epsilon_s)
    delay_s = _idle_slots(backlog_s, delay_s, slot - queue.slot - 1, settings)
    return QueueState(
        queue.queue,
        backlog_s,
        delay_s,
        slot,
        queue.seq,
        waiting,
        admitted=admitted,
        decided_slot=slot,
        head=queue.head,
    )


def joined(
    queue: QueueState,
    arrived: Mapping[str, float],
    admitted: Mapping[str, tuple[int, int, int]],
    decided_slot: int,
) -> QueueState:
    """The state with the arrivals and decisions of its slot. `arrived` maps jobs to Cost_i(1)."""
    waiting = {**queue.waiting, **arrived} if arrived else queue.waiting
    arrivals_s = queue.arrivals_s + sum(arrived.values()) if arrived else queue.arrivals_s
    return QueueState(
        queue.queue,
        queue.backlog_s,
        queue.delay_s,
        queue.slot,
        queue.seq,
        waiting,
        arrivals_s,
        admitted,
        decided_slot,
        queue.head,
    )


def numbered(queue: QueueState, seq: int, decisions: Mapping[str, str]) -> QueueState:
    """The state as the change of that number, with the decision behind each job admitted."""
    return QueueState(
        queue.queue,
        queue.backlog_s,
        queue.delay_s,
        queue.slot,
        seq,
        queue.waiting,
        queue.arrivals_s,
        queue.admitted,
        queue.decided_slot,
        queue.head,
        decisions,
    )


def next_backlog(backlog_s: float, served_s: float, arrivals_s: float) -> float:
    """Equation (7): Q' = max[Q − k·Cost_i(1), 0] + Σ arrivals."""
    return max(backlog_s - served_s, 0.0) + arrivals_s


def next_delay(backlog_s: float, delay_s: float, served_s: float, epsilon_s: float) -> float:
    """Equation (8): Z' = max[Z + 1{Q>0}(ε − k·Cost_i(1)) − 1{Q=0} Z/2, 0]."""
    change = epsilon_s - served_s if backlog_s > 0 else -delay_s / 2
    return max(delay_s + change, 0.0)


def _idle_slots(backlog_s: float, delay_s: float, slots: int, settings: QueueSettings) -> float:
    """Z after slots in which nothing was served and nothing arrived: (8) repeated, in closed form."""
    if slots <= 0:
        return delay_s
    if backlog_s > 0:
        credited = min(slots, max(1, int(_MOST_CREDITED_S / settings.slot_s)))
        return delay_s + credited * settings.epsilon_s
    return math.ldexp(delay_s, -min(slots, 2200))  # no double survives more halvings than that


def renumbered(queue: QueueState, now_s: float, settings: QueueSettings) -> QueueState:
    """The same queue in the slot numbers of a new slot length: for when settings change, and at no other time.

    It stands one slot back, so that the next request moves it on.
    """
    slot = math.floor(now_s / settings.slot_s) - 1
    admitted = {job: (nodes, per_node, slot - 1) for job, (nodes, per_node, _) in queue.admitted.items()}
    waiting = {job: cost for job, cost in queue.waiting.items() if job not in queue.admitted}
    backlog_s = math.fsum(waiting.values())
    return replace(
        queue, slot=slot, decided_slot=slot - 1, admitted=admitted, waiting=waiting, backlog_s=backlog_s, arrivals_s=0.0
    )


def without(queue: QueueState, gone: set[str]) -> QueueState:
    """The state after jobs left unserved (cancelled, or started by the host's own will): their work leaves Q."""
    if not gone:
        return queue
    waiting = {job: cost for job, cost in queue.waiting.items() if job not in gone}
    left_s = math.fsum([cost for job, cost in queue.waiting.items() if job in gone])
    return QueueState(
        queue.queue,
        max(queue.backlog_s - left_s, 0.0) if waiting else 0.0,
        queue.delay_s,
        queue.slot,
        queue.seq,
        waiting,
        queue.arrivals_s,
        queue.admitted,
        queue.decided_slot,
        queue.head,
    )


def drift_plus_penalty(cost_s: Array, single_s: float, queue: QueueState, settings: QueueSettings) -> Array:
    """S(n) of equation (14) for k = 1, (K,): V·C(n) + c² − c·(Z + Q), every time divided by τ; S(0) = 0."""
    square, urgency = _served(single_s, queue, settings)
    return settings.v * cost_s / settings.tau_s + square - urgency


def drift_plus_penalties(
    costs_s: Sequence[float], single_s: float, queue: QueueState, settings: QueueSettings
) -> list[float]:
    """As drift_plus_penalty, of a few shapes. An array of so few numbers would take longer."""
    square, urgency = _served(single_s, queue, settings)
    v, tau_s = settings.v, settings.tau_s
    return [v * cost_s / tau_s + square - urgency for cost_s in costs_s]


def _served(single_s: float, queue: QueueState, settings: QueueSettings) -> tuple[float, float]:
    """c² and c·(Z + Q), every time divided by τ."""
    tau_s = settings.tau_s
    served = single_s / tau_s
    return served * served, served * (queue.delay_s + queue.backlog_s) / tau_s


def with_shapes(plan: AdmitPlan, jobs: Sequence[Job], slot: int) -> AdmitPlan:
    """The plan with every chosen shape in `queue.admitted`; the same plan if all of them are there already.

    Policies that keep a queue themselves (proteus) have written theirs; for the others this is the only state. A rigid
    job brings its shape along, so nothing is remembered (and nothing written) for it. The slot is that of the job's
    first shape.
    """
    known = plan.queue.admitted
    new: dict[str, tuple[int, int, int]] = {}
    for job, a in zip(jobs, plan.admissions, strict=True):
        is_shaped = a.verdict is Verdict.ADMIT and a.nodes > 0 and not job.is_rigid
        if is_shaped and known.get(a.job_id, (0, 0, 0))[:2] != (a.nodes, a.gpus_per_node):
            _, _, since = known.get(a.job_id, (0, 0, slot))
            new[a.job_id] = (a.nodes, a.gpus_per_node, since)
    if not new:
        return plan
    kept = {job: answer for job, answer in known.items() if slot - answer[2] < _KEPT_SLOTS}
    return AdmitPlan(plan.admissions, joined(plan.queue, {}, {**kept, **new}, plan.queue.decided_slot))
