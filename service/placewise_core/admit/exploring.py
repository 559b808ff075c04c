"""Exploration of admission: of admit or wait, and of the shape. Off unless a rate is given.

With probability ε chance answers for a job instead of the policy: WAIT or ADMIT, each with ½ if both are open. ADMIT
comes with a number of GPUs, then a shape of that number, each uniform over the shapes that fit now. For an answer a

    P(a) = (1 − ε)·π(a) + ε·q(a),   q(WAIT) = ½,   q(shape) = ½ · 1/numbers of GPUs · 1/shapes of that number

π(a) is 1 for the policy's answer, given the answers to the jobs before. Which answers are open is settled before
anything is drawn. Shapes are within the job's limits, and on nodes that no head of a queue keeps from it. WAIT is
closed to the head of a queue, and to a job that may reach its bound before the next slot ends. A job that was admitted
in an earlier slot keeps the policy's answer. A job that chance holds back keeps its resources while the others are
answered, as if it started.

One draw per job and slot: a host that asks again within the slot gets the same draw on every replica.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from placewise_core.admit.needs import fewest_gpus
from placewise_core.admit.policy import AdmitContext
from placewise_core.admit.pool import Pool
from placewise_core.admit.shapes import Options
from placewise_core.basics.frozen import frozen
from placewise_core.domain.cluster import MAX_GPUS, MIN_NODES, URGENT, QueueState
from placewise_core.domain.decision import Admission, AdmitDraw
from placewise_core.domain.job import Job, JobId, Priority
from placewise_core.view.heads import barred, is_in_force
from placewise_core.view.view import ClusterView

PROMISED = "PROMISED"  # why a job is spared, besides the guard's verdicts
HEAD, BOUND = "HEAD", "BOUND"  # why a job may not be held back
CHANCE = "chance"  # who answers if the policy does not


@frozen
class DrawnAnswer:
    """The answer to one job: option `i` of `options`, to be taken from `pool`; None for WAIT.

    `is_held_back`: chance said WAIT, and the job would have started so.
    """

    pool: Pool
    options: Options
    i: int | None
    is_held_back: bool = False


class Draws:
    """The draws of one request; `found` has that of each job for which the policy had a choice."""

    def __init__(self, view: ClusterView, queue: QueueState, context: AdmitContext) -> None:
        self._view, self._queue, self._context = view, queue, context
        self.found: dict[JobId, AdmitDraw] = {}

    def draw(self, job: Job, pool: Pool, options: Options, own: int | None) -> DrawnAnswer:
        """`own` is the policy's answer: one of the `options` of `pool`, of which there is one at least, or None."""
        kept = DrawnAnswer(pool, options, own)
        if guard := self._spares(job, pool):
            self.found[job.id] = AdmitDraw(guard=guard)
            return kept
        left = self._left(job, pool)
        shapes = left.options(job)
        closed = self._closed_to_waiting(job) if own is not None else ""
        if closed and not len(shapes):
            self.found[job.id] = AdmitDraw(guard=closed)
            return kept
        rate, waits = self._context.exploration.rate, 0.0 if closed else 0.5 if len(shapes) else 1.0
        seed, (first, second, *which) = self._uniform(job)
        drawn = kept
        if first < rate and second < waits:
            drawn = replace(kept, is_held_back=own is not None)
        elif first < rate:
            drawn = DrawnAnswer(left, shapes, _nth(shapes, *which))
        given = None if drawn.is_held_back or drawn.i is None else _shape(job, drawn.options, drawn.i)
        is_own = given == (None if own is None else _shape(job, options, own))
        chance = waits if given is None else (1.0 - waits) * _odds(job, shapes, given)
        self.found[job.id] = AdmitDraw(
            propensity=(1.0 - rate) * is_own + rate * chance,
            own_propensity=float(is_own),
            explorer=CHANCE if first < rate else "",
            rate=rate,
            guard=closed,
            seed=seed,
        )
        return drawn

    def _spares(self, job: Job, pool: Pool) -> str:
        """Why nothing is drawn for the job, or ""."""
        guard = self._context.exploration.guard
        if guard.is_urgent_spared and job.priority is Priority.URGENT:
            return URGENT
        if 0 < guard.max_gpus < fewest_gpus(job):
            return MAX_GPUS
        if guard.min_nodes and int((pool.gpus > 0 if fewest_gpus(job) else pool.usable).sum()) < guard.min_nodes:
            return MIN_NODES
        admitted = self._queue.admitted.get(job.id)
        return PROMISED if admitted is not None and admitted[2] < self._context.slot else ""

    def _left(self, job: Job, pool: Pool) -> Pool:
        """The pool without the nodes that heads keep from the job."""
        mask = barred(self._view, job, fewest_gpus(job), self._context.now_s) if self._view.heads else None
        return pool if mask is None else pool.without(mask)

    def _closed_to_waiting(self, job: Job) -> str:
        """Why the job may not be held back, or "": the same all through the slot."""
        context, head = self._context, self._queue.head
        heads = [other for other in self._view.heads.values() if other.job == job.id]
        if any(is_in_force(other, self._view, context.now_s) for other in heads):
            return HEAD
        since_s = head.since_s if head is not None and head.job == job.id else job.submit_time_s
        next_slot_ends_s = (context.slot + 2) * context.settings.slot_s
        return BOUND if 0 < since_s < next_slot_ends_s - context.settings.bound_s else ""

    def _uniform(self, job: Job) -> tuple[int | None, list[float]]:
        """The seed of the job's draws, None if the request's serves, and four numbers from 0 to 1."""
        context = self._context
        if context.exploration.is_seeded:
            return None, context.rng.random(4).tolist()
        seed = seed_in_slot(self._view, job, context.slot)
        return seed, np.random.default_rng(seed).random(4).tolist()


def with_draw(admission: Admission, drawn: Mapping[JobId, AdmitDraw]) -> Admission:
    """The answer with its draw, if there was one."""
    draw = drawn.get(admission.job_id)
    return admission if draw is None else replace(admission, draw=draw)


def seed_in_slot(view: ClusterView, job: Job, slot: int) -> int:
    """The seed of an admission's draws, 53 bits. Place draws with another one."""
    drawn = f"admit\n{view.cluster}\n{view.epoch}\n{job.id}\n{slot}".encode()
    return int.from_bytes(hashlib.blake2b(drawn, digest_size=8).digest()) >> 11


def _shape(job: Job, options: Options, i: int) -> tuple[int, int]:
    """The shape as an action: a rigid job has one, however it is spread."""
    return (0, 0) if job.is_rigid else (int(options.nodes[i]), int(options.gpus_per_node[i]))


def _nth(options: Options, count: float, shape: float) -> int:
    """The option that two numbers from 0 to 1 choose: the number of GPUs, then one of its shapes."""
    starts = np.unique(options.gpus, return_index=True)[1].tolist()
    n = int(count * len(starts))
    end = starts[n + 1] if n + 1 < len(starts) else len(options)
    return int(starts[n] + int(shape * (end - starts[n])))


def _odds(job: Job, options: Options, shape: tuple[int, int]) -> float:
    """The probability with which `_nth` chooses this shape."""
    for i in range(len(options)):
        if _shape(job, options, i) == shape:
            alike = int((options.gpus == options.gpus[i]).sum())
            return 1.0 / (len(np.unique(options.gpus)) * alike)
    return 0.0
