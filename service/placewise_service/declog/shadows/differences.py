"""Where and why two answers to one question of AdmitOrWait, Partition or scope NODE differ, in words. Knows no file.

The reasons are those of the answers themselves: what the side that does less says, else both sides' own forecasts. Each
forecast is by the policy and the bundle of its side.
"""

from collections.abc import Collection, Sequence

from placewise_core.domain.decision import Admission, Blocker, JobDecision, PartitionPlan, Verdict
from placewise_log.record import DecisionRecord

NO_FORECAST = "no forecast by both sides"


def difference(answer: DecisionRecord, shadow: DecisionRecord, i: int) -> tuple[str, str]:
    """(where, why) of job or task number i; A is the answer, B the shadow."""
    if answer.admit is not None and shadow.admit is not None:
        return _of_admissions(answer.admit.plan.admissions[i], shadow.admit.plan.admissions[i])
    if answer.partition is not None and shadow.partition is not None:
        return _of_splits(answer.partition.plan, shadow.partition.plan)
    assert answer.place is not None
    assert shadow.place is not None
    where, why = _of_subtasks(answer.place.decisions[i], shadow.place.decisions[i])
    sides = [side for side, record in (("A", answer), ("B", shadow)) if record.meta.is_fallback]
    return where, f"a fallback decided in {' and '.join(sides)}" if sides else why


def _of_admissions(a: Admission, b: Admission) -> tuple[str, str]:
    admits = [each.verdict is Verdict.ADMIT for each in (a, b)]
    if not all(admits):
        admitting, waiting, by = ("A", "B", b) if admits[0] else ("B", "A", a)
        return f"only {admitting} admits the job", f"{waiting} waits: {_first(by.blockers)}"
    more = (b.nodes * b.gpus_per_node or b.gpus) - (a.nodes * a.gpus_per_node or a.gpus)
    where = "B on more GPUs" if more > 0 else "B on fewer GPUs" if more < 0 else "as many GPUs in another shape"
    return where, _by_forecast(a.expected_finish_time_s, b.expected_finish_time_s)


def _of_splits(a: PartitionPlan, b: PartitionPlan) -> tuple[str, str]:
    units_a, units_b = ({(each.node, each.unit) for each in plan.shares} for plan in (a, b))
    if not units_a or not units_b:
        splitting, other, by = ("A", "B", b) if units_a else ("B", "A", a)
        return f"only {splitting} splits the task", f"{other} has no split: {_first(by.blockers)}"
    more = len(units_b) - len(units_a)
    if units_a == units_b:
        where = "the same units with other scales"
    else:
        where = "B on more units" if more > 0 else "B on fewer units" if more < 0 else "as many units, but others"
    why = _by_forecast(a.predicted_s, b.predicted_s)
    for side, plan, missing in (("B", b, units_a - units_b), ("A", a, units_b - units_a)):
        if reasons := [each.reason for each in plan.excluded if (each.node, each.unit) in missing]:
            why = f"{side} leaves units out: {max(sorted(set(reasons)), key=reasons.count)}"
            break
    return where, why


def _of_subtasks(a: JobDecision, b: JobDecision) -> tuple[str, str]:
    units = [{each.subtask: each.cpu_unit for each in given.assignments} for given in (a, b)]
    more = len(units[1]) - len(units[0])
    if more:
        side, by = ("A", a) if more > 0 else ("B", b)
        return f"B runs {'more' if more > 0 else 'fewer'} subtasks", f"{side} leaves subtasks: {_first(by.blockers)}"
    more = _gpus(units[1].values()) - _gpus(units[0].values())
    if not more:
        return "on as many GPUs and CPU cores, but others", NO_FORECAST
    return f"B runs {'more' if more > 0 else 'fewer'} subtasks on GPUs", NO_FORECAST


def _gpus(units: Collection[str]) -> int:
    return sum(unit.startswith("gpu") for unit in units)


def _first(blockers: Sequence[Blocker]) -> str:
    return blockers[0].reason.value if blockers else "no reason given"


def _by_forecast(a: float, b: float) -> str:
    """Of two times; 0 is unknown."""
    if not a or not b:
        return NO_FORECAST
    if a == b:
        return "both forecast the same end"
    return f"{'B' if b < a else 'A'} forecasts the earlier end, each by its own model"
