"""Judges the settings of a training run, several at a time, and keeps finished judgements. Judges nothing itself."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from placewise_training.lab.work.asked import workers_of

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
    with workers_of(None, min(processes, len(missing))) as workers:
        for at, found in workers.as_done(judge, [settings[name] for name in missing]):
            metrics[missing[at]] = found
            (out / _JUDGED).write_text(json.dumps({"of": of, "metrics": metrics}), "utf-8")
            show(f"judged: {missing[at]}", len(metrics), len(settings) + 1)
    return {name: metrics[name] for name in settings}


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
