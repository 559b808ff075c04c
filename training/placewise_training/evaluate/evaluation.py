"""One evaluation: candidates are compared on one stretch of a log, one is judged on a later one. Prints nothing.

A candidate is a policy that the log asked at each decision, or a bundle, which is asked again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from placewise_core.basics.arrays import BoolArray
from placewise_log.record import decision_time_s
from placewise_models.bundle import Bundle
from placewise_training.evaluate.again import CandidatePolicy, Conduct, with_candidate
from placewise_training.evaluate.decisions import LoggedDecisions
from placewise_training.evaluate.judge import chosen, judged
from placewise_training.evaluate.ledger import Look, counted, identity
from placewise_training.evaluate.logged import Usable
from placewise_training.evaluate.report import Evaluation
from placewise_training.evaluate.stretches import Stretches
from placewise_training.lab.work.workers import Here, Workers

_Batch = tuple[LoggedDecisions | None, BoolArray]
_SETTINGS = ("reward", "block_min", "windows")  # of `described`: by others, the same candidate is tried again


class NeverAskedError(Exception):
    """The log holds no decision for which the candidate's placement is known."""


@dataclass(frozen=True, slots=True, eq=False)
class Evaluated:
    """An evaluation and its grounds: the jobs of the judging stretch with the candidate's options, its decisions
    there, and how a bundle conducted itself; None for a policy of the log."""

    evaluation: Evaluation
    usable: Usable
    judging: BoolArray  # (N,) of the usable jobs
    decisions: LoggedDecisions
    conduct: Conduct | None


def evaluation(
    directory: Path,
    usable: Usable,
    candidates: Sequence[str] | Sequence[CandidatePolicy],
    incumbent: Bundle,
    reward_bound: float,
    out: Path | None,
    described: Mapping[str, Any],
    workers: Workers | None = None,
) -> Evaluated:
    """`described` goes into the report. Raises NeverAskedError, ValueError for too short a log and for a candidate that
    was judged on this stretch by other settings, NeedsBundleError for a bundle that lacks the net."""
    stretches = stretches_for(usable, candidates)
    asked: dict[str, Conduct] = {}
    workers = workers or Here()
    batches: dict[str, _Batch] = {}
    of: dict[str, Usable] = {}
    rows = np.flatnonzero(stretches.judge if len(candidates) == 1 else stretches.choose | stretches.judge)
    for one in candidates:
        name, known = (one, usable) if isinstance(one, str) else (one.name, usable)
        if isinstance(one, CandidatePolicy):
            known, asked[name] = with_candidate(usable, directory, one, incumbent, rows.tolist(), workers)
        of[name], batches[name] = known, known.decisions(name)
        if batches[name][0] is None or not (batches[name][1] & stretches.judge).any():
            raise NeverAskedError(_never_asked(name, usable, asked.get(name)))
    best = next(iter(batches))
    if len(batches) > 1:
        best = chosen(_stretch(batches, stretches.choose), workers) or best
    (log,) = _stretch({best: batches[best]}, stretches.judge).values()
    candidate = next(one for one in candidates if (one if isinstance(one, str) else one.name) == best)
    count = counted(directory, out, _look(candidate, best, _span_s(usable, stretches.judge), described))
    conduct = asked.get(best)
    facts = {
        **described,
        **count.facts,
        **{f"decisions_{name}": int(mask.sum()) for name, mask in stretches._asdict().items()},
        "not_asked": int((~batches[best][1] & stretches.judge).sum()),
        **({"not_asked_reasons": dict(conduct.reasons)} if conduct is not None else {}),
        "overridden": sum(one.is_overridden for one in usable.jobs),
        "left_out": dict(usable.left_out),
    }
    found = Evaluation(
        facts, tuple(batches), count.tried, tuple(judged({best: log}, reward_bound, count.tried, workers=workers))
    )
    return Evaluated(found, of[best], stretches.judge & batches[best][1], log, conduct)


def stretches_for(usable: Usable, candidates: Sequence[str] | Sequence[CandidatePolicy]) -> Stretches:
    """A bundle has learned from no decision that was made after it."""
    made_s = [one.bundle.created_s for one in candidates if isinstance(one, CandidatePolicy)]
    if len(made_s) < len(candidates) or None in made_s:
        return Stretches.of(usable.block)
    latest_s = max(each for each in made_s if each is not None)
    times = [decision_time_s(one.decision_id) or 0.0 for one in usable.jobs]
    return Stretches.unseen(usable.block, np.array(times) > latest_s, len(candidates))


def _never_asked(name: str, usable: Usable, conduct: Conduct | None) -> str:
    if conduct is None:
        return f"{name} was asked about no decision of this log; asked were {', '.join(_asked(usable))}"
    why = ", ".join(f"{count} {reason}" for reason, count in conduct.reasons.items())
    return f"{name} could be asked about no decision of this log: {why or 'none is on the judging stretch'}"


def _stretch(batches: Mapping[str, _Batch], stretch: BoolArray) -> dict[str, LoggedDecisions]:
    return {name: log.taken(stretch[is_known]) for name, (log, is_known) in batches.items() if log is not None}


def _asked(usable: Usable) -> Iterable[str]:
    return sorted({name for one in usable.jobs for option in one.options for name in option.policies})


def _span_s(usable: Usable, stretch: BoolArray) -> tuple[float, float]:
    times = np.array([one.time_s for one in usable.jobs])[stretch]
    return float(times.min()), float(times.max())


def _look(
    candidate: str | CandidatePolicy, name: str, span_s: tuple[float, float], described: Mapping[str, Any]
) -> Look:
    settings = {name: described[name] for name in _SETTINGS if name in described}
    cluster, digest = described.get("cluster", ""), described.get("digest", "")
    return Look(name, identity(candidate), *span_s, cluster, settings, digest)
