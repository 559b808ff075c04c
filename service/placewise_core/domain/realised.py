"""The reward of a placement, for the decision log, training and evaluation. Pure arithmetic.

Features are as of the decision, labels strictly after it: a run's time begins at the later of its decision and its
start.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final

from placewise_core.basics.frozen import frozen

HORIZONS_MIN: Final = (5, 20, 60)  # 20 is the interval of the Harmony paper


@frozen
class Run:
    """One run of a job on nodes, from `start_s` to `end_s` (epoch seconds), infinite while it lasts.

    `points` are (time, epochs done), ascending in both, from the start on and to the last word of the host.
    `total_epochs` is e_n, 0 if unknown.
    """

    job_id: str
    nodes: frozenset[str]
    start_s: float
    end_s: float
    total_epochs: float
    points: Sequence[tuple[float, float]]

    def epochs_at(self, time_s: float) -> float | None:
        """Epochs done by then, linear between two reports; None after the last one while the job runs."""
        points = self.points
        if time_s >= self.end_s or time_s == points[-1][0]:
            return points[-1][1]
        if time_s <= points[0][0]:
            return points[0][1]
        if time_s > points[-1][0]:
            return None
        after = bisect_right(points, time_s, key=_time_of)
        (t0, e0), (t1, e1) = points[after - 1], points[after]
        return e0 + (e1 - e0) * (time_s - t0) / (t1 - t0)


def reward_h(run: Run, neighbours: Iterable[Run], horizon_s: float, now_s: float) -> float | None:
    """Progress that a job and its neighbourhood made over H seconds from its start, in jobs done (dimensionless).

        reward_h = Σ_{n ∈ {j} ∪ N_j} c_n / e_n,    c_n = E_n(t_j + H) − E_n(t_j)

    as (1) of the Harmony paper has it for an interval. j is the job of `run`, started at t_j. N_j are `neighbours`: the
    jobs that j shares nodes with under any placement that it could have been given, as far as they were decided before
    j and run at t_j. E_n(t) are the epochs that n has done by t, which stay as they are after its end. e_n is the
    total.

    N_j does not depend on the chosen placement, so a placement earns by its effect on jobs. A sum over the jobs beside
    the chosen one would rise with their number, even if all of them were slowed down. Jobs that come later
    belong to no N_j: their places answer to this choice.

    None until H has passed, and if an e_n, or a progress that the sum needs, is not known.
    """
    until_s = run.start_s + horizon_s
    if now_s < until_s:
        return None
    total = 0.0
    for each in (run, *neighbours):
        before, after = each.epochs_at(run.start_s), each.epochs_at(until_s)
        if before is None or after is None or each.total_epochs <= 0:
            return None
        total += (after - before) / each.total_epochs
    return total


def points_of(
    start_s: float,
    end_s: float | None,
    total_epochs: float,
    reports: Iterable[tuple[float, float | None, float | None]],
    *,
    has_finished: bool,
) -> tuple[tuple[float, float], ...]:
    """The points of a run from its reports: (time, epochs per second, epochs done), None for a missing number.

    Epochs done count before speeds, which are those since the report before. The run begins with the epochs that were
    reported at its start or before it. Without a report at its start it begins with at least those that the first
    report's speed leaves over, as a run from a checkpoint does. Its end has all epochs if it finished.
    """
    last_s, last, is_reported = start_s, 0.0, False
    points: list[tuple[float, float]] = []
    for time_s, speed, epochs in sorted(reports, key=_report_time):
        if time_s <= start_s:
            last, is_reported = max(last, epochs or 0.0), time_s == start_s
            continue
        if (end_s is not None and time_s > end_s) or (not speed and not epochs):
            continue
        grown = (speed or 0.0) * (time_s - last_s)
        if not points:
            if epochs and speed and not is_reported:
                last = max(last, epochs - grown)
            points.append((start_s, last))
        last = max(last, epochs or last + grown)
        if time_s > last_s:
            points.append((time_s, last))
        else:
            points[-1] = (time_s, last)
        last_s = time_s
    points = points or [(start_s, last)]
    if end_s is not None and end_s > last_s:
        points.append((end_s, max(last, total_epochs) if has_finished else last))
    if total_epochs > 0:
        return tuple((time_s, min(epochs, total_epochs)) for time_s, epochs in points)
    return tuple(points)


def mean_speed_of(points: Sequence[tuple[float, float]]) -> float | None:
    """Epochs per second over all of the points: the mean of speeds, weighted by time. None if no time passed."""
    (first_s, first), (last_s, last) = points[0], points[-1]
    return (last - first) / (last_s - first_s) if last_s > first_s else None


def _time_of(point: tuple[float, float]) -> float:
    return point[0]


def _report_time(report: tuple[float, float | None, float | None]) -> float:
    return report[0]
