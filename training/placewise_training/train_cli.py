"""`placewise train`: one subcommand per trainer, its options made from the trainer's Args. Trains nothing itself."""

import dataclasses
import inspect
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from placewise_training import export_stdm, stdm_card, train_stdm
from placewise_training.cli import INTERRUPTED
from placewise_training.export import MODEL, export_reward
from placewise_training.model_card import write_card
from placewise_training.train_reward import Args, train

train_app = typer.Typer(help="Train the models, export them to ONNX, and write their cards.", no_args_is_help=True)


@train_app.callback()
def _group() -> None:
    """Train the models, export them to ONNX, and write their cards."""


def _reward(**options: Any) -> None:
    as_json, card = options.pop("as_json"), options.pop("card")
    args = Args(**options)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=as_json or not sys.stderr.isatty(),
    )
    try:
        with bar:
            tasks: dict[str, Any] = {}

            def show(title: str, done: int, total: int) -> None:
                stage = title.partition(",")[0]
                if stage not in tasks:
                    tasks[stage] = bar.add_task(title, total=total)
                bar.update(tasks[stage], completed=done, description=title)

            report = train(args, show)
    except KeyboardInterrupt:
        Console(stderr=True).print(f"stopped; go on with --resume (checkpoint in {args.out})")
        raise typer.Exit(INTERRUPTED) from None
    model = export_reward(args.out, args.out)
    if card:
        write_card(args.out, card)
    if as_json:
        json.dump({**report, "model": str(model), "bytes": model.stat().st_size}, sys.stdout)
        sys.stdout.write("\n")
    else:
        _print(report["metrics"], str(args.out / MODEL))


def _print(metrics: dict[str, dict[str, float]], model: str) -> None:
    table = Table(title=model, title_justify="left")
    for column in ("samples of", "error", "within 10 %", "error, no reports", "best constant"):
        table.add_column(column, justify="left" if column == "samples of" else "right")
    for name, row in metrics.items():
        cells = (
            "mean_relative_error",
            "within_10_percent",
            "mean_relative_error_blind",
            "mean_relative_error_constant",
        )
        table.add_row(name, *(f"{row[cell]:.1%}" for cell in cells))
    Console().print(table)


def _signature(trainer_args: Any) -> inspect.Signature:
    """The fields of a trainer's Args as keyword parameters that Typer understands."""
    parameters = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=Annotated[field.type, typer.Option(help=field.metadata["help"])],
        )
        for field in dataclasses.fields(trainer_args)
    ]
    card = Annotated[str, typer.Option(help="Also write the model card here (Markdown).")]
    as_json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
    parameters.append(inspect.Parameter("card", inspect.Parameter.KEYWORD_ONLY, default="", annotation=card))
    parameters.append(inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=as_json))
    return inspect.Signature(parameters)


_reward.__signature__ = _signature(Args)  # type: ignore[attr-defined]
_reward.__doc__ = "Train the reward model: where jobs are → how fast each of them runs."
train_app.command(name="reward")(_reward)


def _stdm(**options: Any) -> None:
    as_json, card = options.pop("as_json"), options.pop("card")
    args = train_stdm.Args(**options)
    shown = Console(stderr=True)

    def show(title: str, done: int, total: int) -> None:
        if not as_json:
            shown.print(f"{done}/{total} {title}", highlight=False)

    try:
        train_stdm.train(args, show)
    except KeyboardInterrupt:
        shown.print("stopped: nothing was written")
        raise typer.Exit(INTERRUPTED) from None
    model = export_stdm.export_stdm(args.out, args.out)
    report = json.loads((args.out / train_stdm.REPORT).read_text("utf-8"))
    if card:
        stdm_card.write_card(args.out, Path(card))
    if as_json:
        json.dump({**report, "model": str(model), "bytes": model.stat().st_size}, sys.stdout)
        sys.stdout.write("\n")
        return
    table = Table(title=str(model), title_justify="left")
    for column in ("rows judged", "method", "mean absolute error"):
        table.add_column(column)
    for name, found in report["metrics"].items():
        for method, errors in found["methods"].items():
            table.add_row(name, method, f"{errors['mae']:.4f}")
    Console().print(table)


_stdm.__signature__ = _signature(train_stdm.Args)  # type: ignore[attr-defined]
_stdm.__doc__ = "Train what completes subtask metrics (IAWP), and judge it against plain methods."
train_app.command(name="stdm")(_stdm)
