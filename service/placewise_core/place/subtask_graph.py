"""The order within a pipeline: which subtasks are ready. Raises InvalidRequestError for what is no DAG."""

from collections.abc import Sequence

from placewise_core.errors import InvalidRequestError
from placewise_core.job import Job, Subtask, SubtaskState


def check_pipeline(job: Job, field: str) -> None:
    """Every id once, every predecessor known, no cycle. `field` is the path of the subtasks in the request."""
    after: dict[str, set[str]] = {}
    for i, subtask in enumerate(job.subtasks):
        if subtask.id in after:
            raise InvalidRequestError(f"subtask {subtask.id!r} is there twice", f"{field}[{i}].id")
        after[subtask.id] = set(subtask.after)
    for i, subtask in enumerate(job.subtasks):
        unknown = sorted(after[subtask.id] - after.keys())
        if unknown:
            raise InvalidRequestError(f"no subtask {unknown[0]!r} in this job", f"{field}[{i}].after")
    cyclic = _left_in_cycles(after)
    if cyclic:
        raise InvalidRequestError(f"subtasks wait for each other: {', '.join(sorted(cyclic)[:8])}", field)


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
    done = {s.id for s in subtasks if s.state is SubtaskState.DONE}
    ready, pending = [], []
    for subtask in subtasks:
        if subtask.state is not SubtaskState.PENDING:
            continue
        missing = len(set(subtask.after) - done)
        if missing:
            pending.append((subtask, missing))
        else:
            ready.append(subtask)
    return ready, pending
