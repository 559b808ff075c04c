"""Random that looks ahead: it draws only nodes after which the rest of the gang still fits. Its propensity is exact."""

from collections.abc import Mapping, Sequence

import numpy as np

from placewise_core.domain.job import TaskGroup
from placewise_core.gang.gang import Gang
from placewise_core.gang.greedy import BestFit, can_fit
from placewise_core.gang.policy import Proposal
from placewise_core.policies.random_fit import Random

_LOOKS = 64  # completions tried per gang: bounds the time, since each walks the whole gang


class RandomAhead(Random):
    """Uniform, task by task, over nodes from which best fit completes the gang. Never runs into a dead end.

    One countable group needs no look: its tasks take one slot each, in any order. Other gangs choose each task's node
    among at most 64 / (tasks of the gang) nodes, best fit's own always among them. Those follow from the state alone,
    so the product of 1/n stays exact.
    """

    def _placed(self, gang: Gang, given: Mapping[str, int] | None) -> Proposal | None:
        if any(gang.wanted(group) is None for group in gang.job.groups):
            return None
        if not can_fit(gang.job, gang.view, gang.context) or _rest(_copy(gang)) is None:
            return None
        propensity = 1.0
        for group in gang.groups():
            while gang.remaining_of(group):
                nodes = _open_ended(gang, group)
                propensity /= len(nodes)
                if given is None:
                    m = nodes[int(gang.context.rng.integers(len(nodes)))]
                else:
                    m = given.get(gang.next_name(group), -1)
                if m not in nodes or not gang.take(group, m):
                    return None
        return Proposal(gang.assignments(), propensity)


def _open_ended(gang: Gang, group: TaskGroup) -> Sequence[int]:
    """Nodes for the group's next task after which best fit completes the gang. Best fit completes it now, so at least
    one does."""
    wanted = gang.wanted(group)
    assert wanted is not None
    nodes: list[int] = gang.takers(group, gang.mask_of(group, wanted)).nonzero()[0].tolist()
    if len(gang.job.groups) == 1 and wanted.is_countable:
        return nodes
    most = max(1, _LOOKS // gang.job.task_count)
    if len(nodes) > most:
        own = _rest(_copy(gang))
        assert own
        spread = np.linspace(0, len(nodes) - 1, most)[1:].astype(int).tolist()
        nodes = sorted({own[0], *(nodes[i] for i in spread)})
    return [m for m in nodes if _rest(_copy(gang, (group, m))) is not None]


def _copy(gang: Gang, *more: tuple[TaskGroup, int]) -> Gang:
    """The same gang with the same tasks placed, and with `more`."""
    copied = Gang(gang.job, gang.view, gang.context)
    for group, m in [*gang.placed, *more]:
        copied.take(group, m)
    return copied


def _rest(gang: Gang) -> list[int] | None:
    """Places the rest of the gang by best fit: the nodes, or None where that runs into a dead end."""
    found: list[int] = []
    for group in gang.groups():
        while gang.remaining_of(group):
            wanted = gang.wanted(group)
            assert wanted is not None
            mask = gang.takers(group, gang.mask_of(group, wanted))
            offer = gang.offer(group, mask)
            if offer is None or not mask.any():
                return None
            m = int(np.where(mask, BestFit().scores(offer)[0], -np.inf).argmax())
            if not gang.take(group, m):
                return None
            found.append(m)
            gang.context.slices.pause()
    return found
