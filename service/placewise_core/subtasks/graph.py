"""The order within a pipeline: the subtasks that are ready. Raises InvalidRequestError if it is no DAG."""

import functools
from collections.abc import Sequence

from placewise_core.domain.errors import InvalidRequestError
from placewise_core.domain.job import Job, Subtask, SubtaskState


def check_pipeline(job: Job, field: str) -> None:
    """Every id once, every predecessor known, no cycle. `field` is the path of the subtasks in the request."""
    fault = _fault(tuple((s.id, s.after) for s in job.subtasks))
    if fault is not None:
        message, where = fault
        raise InvalidRequestError(message, field + where)


@functools.lru_cache(maxsize=4096)  # a node sees the pipelines of a few applications again and again
def _fault(edges: tuple[tuple[str, tuple[str, ...]], ...]) -> tuple[str, str] | None:
    """The error in a pipeline and its place; None if it is a DAG."""
    after: dict[str, set[str]] = {}
    for i, (subtask, before) in enumerate(edges):
        if subtask in after:
            return f"subtask {subtask!r} is there twice", f"[{i}].id"
        after[subtask] = set(before)
    for i, (subtask, _) in enumerate(edges):
        unknown = sorted(after[subtask] - after.keys())
        if unknown:
            return f"no subtask {unknown[0]!r} in this job", f"[{i}].after"
    cyclic = _left_in_cycles(after)
    return (f"subtasks wait for each other: {', '.join(sorted(cyclic)[:8])}", "") if cyclic else None


def _left_in_cycles(after: dict[str, set[str]]) -> set[str]:
    """Subtasks that never become ready (Kahn's algorithm)."""
    waits = {subtask: len(before) for subtask, before in after.items()}
    followers: dict[str, list[str]] = {subtask: [] for subtask in after}
    for subtask, before in after.items():
        for predecessor in before:
            followers[predecessor].append(subtask)
    ready = [subtask for subtask, count in waits.items() if count == 0]
    while ready:
        done = ready.pop()
        del waits[done]
        for follower in followers[done]:
            waits[follower] -= 1
            if waits[follower] == 0:
                ready.append(follower)
    return set(waits)


def split(subtasks: Sequence[Subtask]) -> tuple[list[Subtask], list[tuple[Subtask, int]]]:
    """(ready, pending with the number of predecessors not done), in the order given; neither if running or done."""
    state_done, state_pending = SubtaskState.DONE, SubtaskState.PENDING
    done = {subtask.id for subtask in subtasks if subtask.state is state_done}
    ready, pending = [], []
    for subtask in subtasks:
        if subtask.state is state_pending:
            if done.issuperset(subtask.after):
                ready.append(subtask)
            else:
                pending.append((subtask, len(set(subtask.after) - done)))
    return ready, pending
