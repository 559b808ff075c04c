"""The command `placewise evaluate`. Reads a log, judges, prints, writes the report; the modules beside it compute."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from placewise_log.store import LogStore
from placewise_training.cli import UsageError, print_json
from placewise_training.evaluate.again import CandidatePolicy
from placewise_training.evaluate.evaluation import NeverAskedError, evaluation
from placewise_training.evaluate.logged import Usable
from placewise_training.evaluate.report import Evaluation, as_json, lines, page
from placewise_training.evaluate.usual import usual_growths
from placewise_training.lab.work.asked import HELP, METAVAR, PROCESSES_HELP, RayCommand, workers_of
from placewise_training.log.placed import REWARD, Reward, placed_jobs
from placewise_training.sim.policies import NeedsBundleError, opened

_REPORT, _PAGE = "evaluation.json", "evaluation.html"
REFUSED = 5  # exit code: it worked, and the answer is no
evaluate_app = typer.Typer(add_completion=False)


class NothingToEvaluateError(Exception):
    """The log holds too little to cut it into stretches."""

    exit_code = REFUSED


@evaluate_app.command(name="evaluate", cls=RayCommand)
def evaluate_command(
    log: Annotated[Path, typer.Option(help="Folder that `placewise log export` wrote.")],
    policy: Annotated[
        list[str] | None, typer.Option(help="Candidate; repeat to choose the best of several. Of a bundle: its policy.")
    ] = None,
    bundle: Annotated[
        list[Path] | None,
        typer.Option(help="Candidate bundle; asked for the logged decisions again, by default as the policy in force."),
    ] = None,
    incumbent: Annotated[
        Path | None, typer.Option(help="Bundle that the log's policies had; by default the shipped one.")
    ] = None,
    reward: Annotated[Reward, typer.Option(help="Column of `joined` that is the reward.")] = REWARD,
    block_min: Annotated[float, typer.Option(min=1, help="Length of a block of time, several horizons.")] = 120.0,
    reward_bound: Annotated[
        float, typer.Option(min=0, help="Largest possible reward; 0: the largest in the log.")
    ] = 0.0,
    out: Annotated[Path | None, typer.Option(help="Folder for the report.")] = None,
    processes: Annotated[int, typer.Option(min=0, help=PROCESSES_HELP)] = 1,
    ray: Annotated[str | None, typer.Option(metavar=METAVAR, help=HELP)] = None,
    as_json_: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Would another policy have placed jobs better? Estimated from the log of the policy in force."""
    if not policy and not bundle:
        raise UsageError("name a candidate: --policy, --bundle or both")
    try:
        digest = LogStore(log).digest
        jobs = list(placed_jobs(log, reward))
        usable = Usable.of(jobs, 60.0 * block_min, usual_growths(log, jobs, reward))
        bound = reward_bound or max(one.reward or 0.0 for one in usable.jobs)
        facts = {"log": str(log), "digest": digest, "reward": reward, "reward_bound": bound, "block_min": block_min}
        candidates = _candidates(bundle or [], policy or [usable.in_force])
        with workers_of(ray, processes) as workers:
            found = evaluation(
                log, usable, candidates or policy or [], opened(incumbent), bound, out, facts, workers
            ).evaluation
    except (NeverAskedError, NeedsBundleError) as error:
        raise UsageError(str(error)) from error
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


def _candidates(bundles: list[Path], policies: list[str]) -> list[CandidatePolicy]:
    """Each policy on the nets of each bundle."""
    return [
        CandidatePolicy(f"{folder.resolve().name}/{name}", name, opened(folder))
        for folder in bundles
        for name in policies
    ]


def _write(found: Evaluation, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(as_json(found), indent=1, ensure_ascii=False, allow_nan=False)
    (out / _REPORT).write_text(text + "\n", encoding="utf-8")
    (out / _PAGE).write_text(page(found), encoding="utf-8")
