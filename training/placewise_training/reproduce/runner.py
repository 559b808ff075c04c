"""Runs the trials of a paper, seed by seed over all experiments. Judges nothing."""

import time
from collections.abc import Callable, Iterator, Sequence

from placewise_training.lab.work.workers import Here, Workers
from placewise_training.reproduce.design import InterruptedRunError, NeedsBundleError, TrialOf, TrialOutcome
from placewise_training.reproduce.paper import Paper
from placewise_training.reproduce.results import Results, RunOrigin

Attempt = Callable[[TrialOf], TrialOutcome | NeedsBundleError]
INTERRUPTED = "interrupted"
OUT_OF_TIME = "out of time"
UNFINISHED = "not finished"


def trial_count(paper: Paper, seeds: int) -> int:
    """How many trials a run of that many seeds has."""
    return sum(len(e.trials()) * (max(seeds, e.least_seeds) if e.is_seeded else 1) for e in paper.experiments)


def run(
    paper: Paper,
    seeds: Sequence[int],
    *,
    progress: Callable[[int], None] | None = None,
    limit_s: float = float("inf"),
    keep: Callable[[Results], None] | None = None,
    known: Results | None = None,
    origin: RunOrigin | None = None,
    attempt: Attempt | None = None,
    workers: Workers | None = None,
) -> Results:
    """Every trial of every seed. Ctrl-C or the time limit ends it early: `stopped` then names the reason.

    `workers` call `attempt`, by default `paper.attempt` here.
    One round over all experiments comes before the second seed, so that an early end leaves complete results of fewer
    seeds; `keep` is given the results after each experiment of a round. The time limit is checked between
    trials. Trials in `known` are not run again. `origin` joins those of `known` once a trial was run; one with a bundle
    names the rows that it made.
    """
    known = known or Results(sittings=0)
    results = Results(seeds=tuple(seeds), stopped=UNFINISHED, sittings=known.sittings, origins=known.origins)
    _keep_known(known, results, _plan(paper, seeds))
    began = time.perf_counter() - known.wall_s
    done, last = 0, None
    made: dict[str, dict[str, list[str]]] = {}
    own = origin if origin is None or "bundle" not in origin else {**origin, "rows": made}
    left = (one for one in _plan(paper, seeds) if one.seed not in known.runs.get(one[:3], ()))
    outcomes = (workers or Here()).mapped(attempt or paper.attempt, left)
    try:
        for one in _plan(paper, seeds):
            if time.perf_counter() - began - known.wall_s > limit_s:
                results.stopped = OUT_OF_TIME
                break
            here = one.seed, one.experiment
            if last not in (None, here) and keep is not None:
                results.wall_s = time.perf_counter() - began
                keep(results)
            last = here
            cell = one[:3]
            if one.seed not in known.runs.get(cell, ()):
                results.sittings = known.sittings + 1
                results.origins = known.origins if own is None else (*known.origins, own)
                outcome = next(outcomes)
                if isinstance(outcome, NeedsBundleError):
                    results.missing[cell] = str(outcome) or "needs a bundle"
                else:
                    results.add(cell, one.seed, outcome)
                    settings = made.setdefault(one.experiment, {}).setdefault(one.method, [])
                    if one.setting not in settings:
                        settings.append(one.setting)
            done += 1
            if progress is not None:
                progress(done)
        else:
            results.stopped = ""
    except (KeyboardInterrupt, InterruptedRunError):
        results.stopped = INTERRUPTED
    finally:
        outcomes.close()
    results.wall_s = time.perf_counter() - began
    return results


def _keep_known(known: Results, results: Results, plan: Iterator[TrialOf]) -> None:
    """All of them before the first trial: an early end must not lose those of later rounds."""
    for one in plan:
        if one.seed in known.runs.get(one[:3], ()):
            results.add(one[:3], one.seed, known.runs[one[:3]][one.seed])


def _plan(paper: Paper, seeds: Sequence[int]) -> Iterator[TrialOf]:
    most = max([len(seeds), *(e.least_seeds for e in paper.experiments)])
    for i, seed in enumerate([*seeds, *range(len(seeds), most)]):
        for experiment in paper.experiments:
            wanted = max(len(seeds), experiment.least_seeds) if experiment.is_seeded else 1
            if i < wanted:
                for setting, method in experiment.trials():
                    yield TrialOf(experiment.key, setting, method, seed)
