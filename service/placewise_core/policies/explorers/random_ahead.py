"""Random that looks ahead: it draws only nodes after which the rest of the gang still fits. Its propensity is exact."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from placewise_core.domain.job import TaskGroup
from placewise_core.gang.gang import Gang
from placewise_core.gang.greedy import can_fit
from placewise_core.gang.policy import Proposal
from placewise_core.policies.plan import plan_of
from placewise_core.policies.random_fit import Random

_WALKED = 1024  # tasks placed to try completions, per gang that counting says nothing of: bounds the time


def tasks_walked(tasks: int, nodes: int) -> int:
    """Most tasks that RandomAhead places to try completions of a gang that counting says nothing of."""
    return min(nodes, _WALKED // max(1, tasks**2)) * tasks**2


class RandomAhead(Random):
    """Uniform, task by task, over nodes after which a completion of the gang is known. Never runs into a dead end.

    Countable groups keep a plan for the rest of the gang, at first best fit's. A node is open if the plan has a task of
    the group there, or if it takes another one beside all that are planned. Other gangs try best fit after each of
    at most 1024 / tasks² nodes per task, its own always among them; large ones get best fit's placement. All of this
    follows from the nodes drawn so far, so the product of 1/n is exact. A gang that one domain must hold draws a node
    first, for its domain alone.
    """

    def _placed(self, gang: Gang, given: Mapping[str, int] | None) -> Proposal | None:
        if any(gang.wanted(group) is None for group in gang.job.groups):
            return None
        if gang.domains is None:
            return self._drawn(gang, given)
        nodes: list[int] = gang.usable.nonzero()[0].tolist()
        m = _chosen(gang, gang.groups()[0], nodes, given) if nodes else -1
        if m < 0:
            return None
        drawn = self._drawn(gang.keep_to(m), given)
        chance = np.count_nonzero(gang.usable) / len(nodes)
        return drawn and replace(drawn, propensity=drawn.propensity * chance)

    @staticmethod
    def _drawn(gang: Gang, given: Mapping[str, int] | None) -> Proposal | None:
        """As `_placed`, of a gang that may be on any nodes or is kept to a domain."""
        if all(gang.is_countable(group) for group in gang.job.groups):
            return _drawn_by_plan(gang, given)
        rest = _copy(gang).finish() if can_fit(gang.job, gang.view, gang.context) else None
        if rest is None:
            return None
        propensity = 1.0
        for group in gang.groups():
            while gang.remaining_of(group):
                rests = _open_ended(gang, group, rest)
                propensity /= len(rests)
                m = _chosen(gang, group, list(rests), given)
                if m < 0 or not gang.take(group, m):
                    return None
                rest = rests[m]
        return Proposal(gang.assignments(), propensity)


def _drawn_by_plan(gang: Gang, given: Mapping[str, int] | None) -> Proposal | None:
    plan, propensity = plan_of(gang), 1.0
    if plan is None:
        return None
    for group in gang.groups():
        while gang.remaining_of(group):
            nodes: list[int] = plan.open_to(group).nonzero()[0].tolist()
            propensity /= len(nodes)
            m = _chosen(gang, group, nodes, given)
            if m < 0:
                return None
            gang.take(group, m)
            plan.change(group, m)
            gang.context.slices.pause()
    return Proposal(gang.assignments(), propensity)


def _chosen(gang: Gang, group: TaskGroup, nodes: Sequence[int], given: Mapping[str, int] | None) -> int:
    """One of the nodes, drawn; the given one if it is among them, or −1."""
    if given is None:
        return nodes[int(gang.context.rng.integers(len(nodes)))]
    m = given.get(gang.next_name(group), -1)
    return m if m in nodes else -1


def _open_ended(gang: Gang, group: TaskGroup, rest: list[int]) -> dict[int, list[int]]:
    """Nodes for the group's next task after which best fit completes the gang, ascending, each with the nodes of the
    tasks after it. `rest`: best fit's own from this task on. It places these one by one, so the first of them is open,
    and the others complete the gang after that one."""
    rests: dict[int, list[int] | None] = {rest[0]: rest[1:]}
    most = _WALKED // gang.job.task_count**2
    if most > 1:
        wanted = gang.wanted(group)
        assert wanted is not None
        nodes: list[int] = gang.takers(group, gang.mask_of(group, wanted)).nonzero()[0].tolist()
        if len(nodes) > most:
            nodes = [nodes[i] for i in np.linspace(0, len(nodes) - 1, most)[1:].astype(int).tolist()]
        for m in nodes:
            if m != rest[0]:
                rests[m] = _copy(gang, (group, m)).finish()
            gang.context.slices.pause()
    return {m: found for m, found in sorted(rests.items()) if found is not None}


def _copy(gang: Gang, *more: tuple[TaskGroup, int]) -> Gang:
    """The same gang with the same tasks placed, and with `more`."""
    copied = gang.alike()
    for group, m in [*gang.placed, *more]:
        copied.take(group, m)
    return copied
