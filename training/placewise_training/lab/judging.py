"""Judges the settings of a training run, several at a time, and keeps finished judgements. Judges nothing itself."""

import json
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

_JUDGED = "judged.part.json"

Judge = Callable[[Any], dict[str, Any]]
# Sets progress: (title, done, total).
Show = Callable[[str, int, int], None]


def judged_all(
    settings: Mapping[str, Sequence[Any]],
    judge: Judge,
    out: Path,
    of: Mapping[str, Any],
    processes: int,
    is_resumed: bool,
    show: Show,
) -> dict[str, dict[str, Any]]:
    """What `judge` says of the folds of every setting, those with most folds first; kept as they come in `out`, so that
    a resumed run of the same arguments, `of`, has them. `judge` is called in other processes: a function that they can
    import."""
    metrics = _judged_before(out, of) if is_resumed else {}
    missing = sorted(set(settings) - set(metrics), key=lambda name: -len(settings[name]))
    show("judging", len(metrics), len(settings) + 1)
    for name, found in _in_turn(missing, settings, judge, processes):
        metrics[name] = found
        (out / _JUDGED).write_text(json.dumps({"of": of, "metrics": metrics}), "utf-8")
        show(f"judged: {name}", len(metrics), len(settings) + 1)
    return {name: metrics[name] for name in settings}


def _in_turn(
    names: Sequence[str], settings: Mapping[str, Sequence[Any]], judge: Judge, processes: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and judgement, as each is done. Spawned processes, as a fork of torch's threads may hang."""
    if min(processes, len(names)) < 2:
        yield from ((name, judge(settings[name])) for name in names)
        return
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        waiting = {pool.submit(judge, settings[name]): name for name in names}
        for done in as_completed(waiting):
            yield waiting[done], done.result()


def _judged_before(out: Path, of: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Judgements of an interrupted run with the same arguments."""
    path = out / _JUDGED
    if not path.is_file():
        return {}
    stored = json.loads(path.read_text("utf-8"))
    return dict(stored["metrics"]) if stored["of"] == of else {}


def cpu_s() -> float:
    """CPU seconds of this process and of those it waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
