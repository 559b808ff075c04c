"""Runs the trials of a paper, seed by seed over all experiments. Judges nothing."""

import time
from collections.abc import Callable, Iterator, Sequence

from placewise_training.lab.origin import Origin
from placewise_training.reproduce.design import Experiment, InterruptedRunError, NeedsBundleError
from placewise_training.reproduce.paper import Paper
from placewise_training.reproduce.results import Results

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
    origin: Origin | None = None,
) -> Results:
    """Every trial of every seed. Ctrl-C or the time limit ends it early: `stopped` then names the reason.

    One round over all experiments comes before the second seed, so that an early end leaves complete results of fewer
    seeds; `keep` is given the results after each experiment of a round. The time limit is checked between
    trials. Trials in `known` are not run again. `origin` joins those of `known` once a trial was run.
    """
    known = known or Results(sittings=0)
    results = Results(seeds=tuple(seeds), stopped=UNFINISHED, sittings=known.sittings, origins=known.origins)
    began = time.perf_counter() - known.wall_s
    done, last = 0, None
    try:
        for experiment, setting, method, seed in _plan(paper, seeds):
            if time.perf_counter() - began - known.wall_s > limit_s:
                results.stopped = OUT_OF_TIME
                break
            here = seed, experiment.key
            if last not in (None, here) and keep is not None:
                results.wall_s = time.perf_counter() - began
                keep(results)
            last = here
            cell = (experiment.key, setting, method)
            if seed in known.runs.get(cell, ()):
                results.add(cell, seed, known.runs[cell][seed])
            elif cell not in results.missing:
                results.sittings = known.sittings + 1
                results.origins = known.origins if origin is None else (*known.origins, origin)
                try:
                    results.add(cell, seed, experiment.trial(setting, method, seed))
                except NeedsBundleError as error:
                    results.missing[cell] = str(error) or "needs a bundle"
            done += 1
            if progress is not None:
                progress(done)
        else:
            results.stopped = ""
    except (KeyboardInterrupt, InterruptedRunError):
        results.stopped = INTERRUPTED
    results.wall_s = time.perf_counter() - began
    return results


def _plan(paper: Paper, seeds: Sequence[int]) -> Iterator[tuple[Experiment, str, str, int]]:
    most = max([len(seeds), *(e.least_seeds for e in paper.experiments)])
    for i, seed in enumerate([*seeds, *range(len(seeds), most)]):
        for experiment in paper.experiments:
            wanted = max(len(seeds), experiment.least_seeds) if experiment.is_seeded else 1
            if i < wanted:
                for setting, method in experiment.trials():
                    yield experiment, setting, method, seed
