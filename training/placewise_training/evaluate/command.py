"""The command `placewise evaluate`. Reads a log, judges, prints, writes the report; the modules beside it compute."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from placewise_core.basics.arrays import BoolArray
from placewise_training.cli import UsageError, print_json
from placewise_training.evaluate.decisions import LoggedDecisions
from placewise_training.evaluate.judge import chosen, judged
from placewise_training.evaluate.logged import Usable
from placewise_training.evaluate.report import Evaluation, as_json, lines, page
from placewise_training.evaluate.stretches import Stretches
from placewise_training.log.placed import REWARD, placed_jobs

_REPORT, _PAGE, _LEDGER = "evaluation.json", "evaluation.html", "judged.json"
REFUSED = 5  # exit code: it worked, and the answer is no
evaluate_app = typer.Typer(add_completion=False)


class NothingToEvaluateError(Exception):
    """The log holds too little to cut it into stretches."""

    exit_code = REFUSED


@evaluate_app.command(name="evaluate")
def evaluate_command(
    log: Annotated[Path, typer.Option(help="Folder that `placewise log export` wrote.")],
    policy: Annotated[list[str], typer.Option(help="Candidate; repeat to choose the best of several.")],
    reward: Annotated[str, typer.Option(help="Column of `joined` that is the reward.")] = REWARD,
    block_min: Annotated[float, typer.Option(min=1, help="Length of a block of time, several horizons.")] = 120.0,
    reward_bound: Annotated[
        float, typer.Option(min=0, help="Largest possible reward; 0: the largest in the log.")
    ] = 0.0,
    out: Annotated[Path | None, typer.Option(help="Folder for the report; keeps count of candidates judged.")] = None,
    as_json_: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Would another policy have placed jobs better? Estimated from the log of the policy in force."""
    try:
        usable = Usable.of(list(placed_jobs(log, reward)), 60.0 * block_min)
        bound = reward_bound or max(one.reward or 0.0 for one in usable.jobs)
        facts = {"log": str(log), "reward": reward, "reward_bound": bound, "block_min": block_min}
        found = evaluation(usable, policy, bound, out, facts)
    except ValueError as error:
        raise NothingToEvaluateError(f"{log}: {error}") from error
    if out is not None:
        _write(found, out)
    if as_json_:
        print_json(as_json(found))
    else:
        Console().print("\n".join(lines(found)), markup=False, highlight=False, soft_wrap=True)
    if found.is_refused:
        raise typer.Exit(REFUSED)


def evaluation(
    usable: Usable, policies: Sequence[str], reward_bound: float, out: Path | None, described: Mapping[str, Any]
) -> Evaluation:
    """Chooses among several candidates on the second stretch and judges one on the third. Raises UsageError for a
    policy that was never asked, ValueError for too short a log."""
    stretches = Stretches.of(usable.block)
    batches = {name: usable.decisions(name) for name in dict.fromkeys(policies)}
    unknown = [name for name, (log, _) in batches.items() if log is None]
    if unknown:
        raise UsageError(
            f"{unknown[0]} was asked about no decision of this log; asked were {', '.join(_asked(usable))}"
        )
    best = policies[0]
    if len(batches) > 1:
        best = chosen(_stretch(batches, stretches.choose)) or best
    (log,) = _stretch({best: batches[best]}, stretches.judge).values()
    span_s = _span_s(usable, stretches.judge)
    ledger = _judged_before(out)
    tried = {best, *(name for name, (first_s, last_s) in ledger if first_s <= span_s[1] and last_s >= span_s[0])}
    if out is not None:
        _keep(out, [*ledger, (best, span_s)])
    facts = {
        **described,
        **{f"decisions_{name}": int(mask.sum()) for name, mask in stretches._asdict().items()},
        "not_asked": int((~batches[best][1]).sum()),
        "overridden": sum(one.is_overridden for one in usable.jobs),
        "left_out": dict(usable.left_out),
    }
    return Evaluation(facts, tuple(batches), len(tried), tuple(judged({best: log}, reward_bound, len(tried))))


def _stretch(
    batches: Mapping[str, tuple[LoggedDecisions | None, BoolArray]], stretch: BoolArray
) -> dict[str, LoggedDecisions]:
    return {name: log.taken(stretch[is_known]) for name, (log, is_known) in batches.items() if log is not None}


def _asked(usable: Usable) -> Iterable[str]:
    return sorted({name for one in usable.jobs for option in one.options for name in option.policies})


def _span_s(usable: Usable, stretch: BoolArray) -> tuple[float, float]:
    times = np.array([one.time_s for one in usable.jobs])[stretch]
    return float(times.min()), float(times.max())


Ledger = list[tuple[str, tuple[float, float]]]


def _judged_before(out: Path | None) -> Ledger:
    """Candidates judged so far, each with the stretch of time that it was judged on."""
    path = out / _LEDGER if out is not None else None
    if path is None or not path.exists():
        return []
    return [(row["candidate"], (row["first_s"], row["last_s"])) for row in json.loads(path.read_text("utf-8"))]


def _keep(out: Path, ledger: Ledger) -> None:
    out.mkdir(parents=True, exist_ok=True)
    rows = [{"candidate": name, "first_s": first, "last_s": last} for name, (first, last) in dict.fromkeys(ledger)]
    (out / _LEDGER).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def _write(found: Evaluation, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(as_json(found), indent=1, ensure_ascii=False, allow_nan=False)
    (out / _REPORT).write_text(text + "\n", encoding="utf-8")
    (out / _PAGE).write_text(page(found), encoding="utf-8")
