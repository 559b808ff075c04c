"""`placewise train`: one subcommand per trainer, its options made from the trainer's Args. Trains nothing itself."""

import dataclasses
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from placewise_training.cli import INTERRUPTED
from placewise_training.lab import train_all
from placewise_training.ldwp import card as ldwp_card
from placewise_training.ldwp import export as export_ldwp
from placewise_training.ldwp import train as train_ldwp
from placewise_training.policy import args as policy_args
from placewise_training.policy import card as policy_card
from placewise_training.policy import export as export_policy
from placewise_training.policy import train as train_policy
from placewise_training.reward.card import write_card
from placewise_training.reward.export import MODEL, export_reward
from placewise_training.reward.train import Args, train
from placewise_training.sharing import card as sharing_card
from placewise_training.sharing import export as export_sharing
from placewise_training.sharing import train as train_sharing
from placewise_training.stdm import card as stdm_card
from placewise_training.stdm import export as export_stdm
from placewise_training.stdm import train as train_stdm
from placewise_training.throughput import card as throughput_card
from placewise_training.throughput import train as train_throughput

train_app = typer.Typer(help="Train the models, export them to ONNX, and write their cards.", no_args_is_help=True)


@train_app.callback()
def _group() -> None:
    """Train the models, export them to ONNX, and write their cards."""


@contextmanager
def _staged_bar(*, is_hidden: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A bar on stderr per stage of a training: the part of the title before its comma."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    shown = Console(stderr=True)
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=shown, disable=is_hidden) as bar:
        tasks: dict[str, TaskID] = {}

        def show(title: str, done: int, total: int) -> None:
            stage = title.partition(",")[0]
            if stage not in tasks:
                tasks[stage] = bar.add_task(title, total=total)
            bar.update(tasks[stage], completed=done, description=title)

        yield show


def _reward(**options: Any) -> None:
    as_json, card = options.pop("as_json"), options.pop("card")
    args = Args(**options)
    try:
        with _staged_bar(is_hidden=as_json or not sys.stderr.isatty()) as show:
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


def _policy(**options: Any) -> None:
    as_json, card = options.pop("as_json"), options.pop("card")
    args = policy_args.Args(**options)
    try:
        with _staged_bar(is_hidden=as_json or not sys.stderr.isatty()) as show:
            train_policy.train(args, show)
    except KeyboardInterrupt:
        Console(stderr=True).print(f"stopped; go on with --resume (checkpoint in {args.out})")
        raise typer.Exit(INTERRUPTED) from None
    graphs = export_policy.export_policy(args.out, args.out)
    if card:
        policy_card.write_card(args.out, card)
    report = json.loads((args.out / train_policy.REPORT).read_text("utf-8"))
    if as_json:
        json.dump({**report, "models": [str(graph) for graph in graphs]}, sys.stdout)
        sys.stdout.write("\n")
        return
    table = Table(title=str(graphs[0]), title_justify="left")
    for column in ("policy", "average JCT on the judging truth, seconds"):
        table.add_column(column, justify="left" if column == "policy" else "right")
    for name, by_seed in report["metrics"].get("avg_jct_s", {}).items():
        table.add_row(name, f"{sum(by_seed.values()) / len(by_seed):,.0f}")
    Console().print(table)


_policy.__signature__ = _signature(policy_args.Args)  # type: ignore[attr-defined]
_policy.__doc__ = "Train Harmony's policy: tokens of nodes and jobs → where each task goes, and which job goes first."
train_app.command(name="policy")(_policy)


def _stdm(**options: Any) -> None:
    as_json, card = options.pop("as_json"), options.pop("card")
    args = train_stdm.Args(**options)
    try:
        with _staged_bar(is_hidden=as_json or not sys.stderr.isatty()) as show:
            train_stdm.train(args, lambda title, done, total: show(f"stdm, {title}", done, total))
    except KeyboardInterrupt:
        Console(stderr=True).print(f"stopped; go on with --resume (what is done is in {args.out})")
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


def _ldwp(**options: Any) -> None:
    as_json, card = options.pop("as_json"), options.pop("card")
    args = train_ldwp.Args(**options)
    try:
        with _staged_bar(is_hidden=as_json or not sys.stderr.isatty()) as show:
            report = train_ldwp.train(args, show)
    except KeyboardInterrupt:
        Console(stderr=True).print(f"stopped; go on with --resume (checkpoint in {args.out})")
        raise typer.Exit(INTERRUPTED) from None
    model = export_ldwp.export_ldwp(args.out, args.out)
    if card:
        ldwp_card.write_card(args.out, Path(card))
    if as_json:
        json.dump({**report, "model": str(model), "bytes": model.stat().st_size}, sys.stdout)
        sys.stdout.write("\n")
        return
    table = Table(title=str(model), title_justify="left")
    for column in ("load", "nodes chosen by", "tasks per minute", "mean turnaround (s)"):
        table.add_column(column)
    for load, found in report["metrics"].items():
        for name, row in found.items():
            cells = (f"{row[key]['mean']:.1f} ± {row[key]['half_width']:.1f}" for key in ("throughput", "turnaround_s"))
            table.add_row(load, name, *cells)
    Console().print(table)


_ldwp.__signature__ = _signature(train_ldwp.Args)  # type: ignore[attr-defined]
_ldwp.__doc__ = "Train LDWP's Q net: a pipeline task and the state of nodes → the value of each."
train_app.command(name="ldwp")(_ldwp)


_stdm.__signature__ = _signature(train_stdm.Args)  # type: ignore[attr-defined]
_stdm.__doc__ = "Train what completes subtask metrics (IAWP), and judge it against plain methods."
train_app.command(name="stdm")(_stdm)


def _sharing(**options: Any) -> None:
    as_json, card = options.pop("as_json"), options.pop("card")
    args = train_sharing.Args(**options)
    try:
        with _staged_bar(is_hidden=as_json or not sys.stderr.isatty()) as show:
            train_sharing.train(args, lambda title, done, total: show(f"sharing, {title}", done, total))
    except KeyboardInterrupt:
        Console(stderr=True).print(f"stopped; go on with --resume (what is done is in {args.out})")
        raise typer.Exit(INTERRUPTED) from None
    model = export_sharing.export_sharing(args.out, args.out)
    report = json.loads((args.out / train_sharing.REPORT).read_text("utf-8"))
    if card:
        sharing_card.write_card(args.out, Path(card))
    if as_json:
        json.dump({**report, "model": str(model), "bytes": model.stat().st_size}, sys.stdout)
        sys.stdout.write("\n")
        return
    table = Table(title=str(model), title_justify="left")
    for column in ("held back", "co-runs known", "method", "mean absolute error"):
        table.add_column(column)
    for name, by_known in report["judged"].items():
        for known, found in by_known.items():
            for method, errors in found["methods"].items():
                table.add_row(name, known, method, f"{errors['mae']:.4f}")
    Console().print(table)


_sharing.__signature__ = _signature(train_sharing.Args)  # type: ignore[attr-defined]
_sharing.__doc__ = "Train what completes slowdowns on shared GPUs from one or two co-runs, and judge it."
train_app.command(name="sharing")(_sharing)


def _throughput(**options: Any) -> None:
    as_json, card = options.pop("as_json"), options.pop("card")
    args = train_throughput.Args(**options)
    try:
        with _staged_bar(is_hidden=as_json or not sys.stderr.isatty()) as show:
            report = train_throughput.train(args, lambda title, done, total: show(f"fitting, {title}", done, total))
    except KeyboardInterrupt:
        Console(stderr=True).print(f"stopped; go on with --resume (what is done is in {args.out})")
        raise typer.Exit(INTERRUPTED) from None
    if card:
        throughput_card.write_card(report, Path(card))
    if as_json:
        json.dump(report, sys.stdout)
        sys.stdout.write("\n")
        return
    table = Table(title=str(args.out / train_throughput.REPORT), title_justify="left")
    for column in ("form", "error, placements held back", "median", "within 10 %"):
        table.add_column(column)
    for form, row in report["held_out"].items():
        cells = ("held_out_mean_error", "held_out_median_error", "held_out_within_10_percent")
        table.add_row(form, *(f"{row[cell]:.1%}" for cell in cells))
    Console().print(table)


_throughput.__signature__ = _signature(train_throughput.Args)  # type: ignore[attr-defined]
_throughput.__doc__ = "Fit the throughput model: shape and batch → samples per second, per network and GPU model."
train_app.command(name="throughput")(_throughput)
train_all.register(train_app)
