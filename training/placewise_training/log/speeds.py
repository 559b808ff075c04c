"""How fast a run was, from its reports: a speed, or a bound of it if all that is known is that it had not ended. Pure.

A job that has reported nothing and not ended by the time T that the log ends has done less than all of its epochs: its
speed is at most e_n / (T − t_n). To leave such jobs out would make slow placements look better than they are.
"""

import math
from typing import Final, NamedTuple

from placewise_core.domain.realised import Run
from placewise_training.log.index import Logged

HORIZON_S: Final = 1200.0  # as reward_20min
LEAST_S: Final = 30.0  # a shorter stretch says nothing: reports are rounded, starts are late


class Speed(NamedTuple):
    """Epochs per second over [`from_s`, `until_s`]. With `is_bound` the speed is at most this."""

    epochs_per_s: float
    is_bound: bool
    from_s: float
    until_s: float


def speed_of(logged: Logged, from_s: float, change_s: float = math.inf) -> Speed | None:
    """The speed from `from_s` on, over HORIZON_S at most, until the job ends or its neighbours change at `change_s`,
    though for LEAST_S. None if nothing is known of it."""
    run = logged.run
    from_s = max(from_s, run.start_s)
    until_s = min(from_s + HORIZON_S, max(change_s, from_s + LEAST_S), run.end_s)
    heard_s = run.points[-1][0]
    if heard_s > from_s:
        until_s = min(until_s, heard_s)
        before, after = run.epochs_at(from_s), run.epochs_at(until_s)
        if until_s - from_s < min(LEAST_S, run.end_s - from_s) or before is None or after is None:
            return _bound(run, from_s, logged.known_s)
        if after > before:
            return Speed((after - before) / (until_s - from_s), False, from_s, until_s)
    return _bound(run, from_s, logged.known_s)


def _bound(run: Run, from_s: float, known_s: float) -> Speed | None:
    """From the epochs that the job still had to do."""
    done = run.epochs_at(from_s) or 0.0
    if run.total_epochs <= done or known_s - from_s < LEAST_S:
        return None
    return Speed((run.total_epochs - done) / (known_s - from_s), True, from_s, known_s)
