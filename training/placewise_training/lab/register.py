"""Registers trainers as commands: one each, its options made from the trainer's Args, and one that runs them all."""

import dataclasses
import inspect
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from placewise_core.domain.traces import TraceError
from placewise_training.data.site_rows import read_site_rows
from placewise_training.lab.mlruns import FinishedRun, add_run, numbers
from placewise_training.lab.origin import origin
from placewise_training.lab.work.asked import RayCommand
from placewise_training.lab.work.on_ray import RayUnreachableError
from placewise_training.lab.work.workers import LostItemError

ALL = "all"
INTERRUPTED = 130  # exit code after Ctrl-C
_TRACK = "Also record the run in this folder, as MLflow keeps runs (mlruns)."
Report = Mapping[str, Any]
# Sets progress: (title, done, total).
Show = Callable[[str, int, int], None]


class RefusedError(Exception):
    """The trainer cannot work with these options or files; the message names the fault."""

    exit_code = 2


class MissingCheckpointError(Exception):
    """There is nothing to go on from."""

    exit_code = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Trainer:
    """One command. `args` is a dataclass with the field `out`; every field has help in its metadata.

    `train` leaves the file `report` in `out`. `export` makes the bundle's files there, if there are any. `rows` are the
    lines of the table on the terminal, under `columns`; `stage` begins the titles that `train` shows. `card` makes the
    text of the model card, `figures` draw the files that stand beside it. With `needs_log` it has no default data.
    `checkpoint` is the file in `out` without which `--resume` has nothing to go on from, "" if there is none.
    """

    name: str
    help: str
    args: type[Any]
    train: Callable[[Any, Show], object]
    report: str
    columns: Sequence[str]
    rows: Callable[[Report], Iterable[Sequence[str]]]
    card: Callable[[Report], str]
    figures: Mapping[str, Callable[[Report, Path], None]] = dataclasses.field(default_factory=dict)
    export: Callable[[Path, Path], Path | Sequence[Path]] | None = None
    stage: str = ""
    needs_log: bool = False
    checkpoint: str = ""

    def run(self, args: Any, card: Path | None, track: Path | None = None, *, as_json: bool) -> None:
        """Trains, exports, writes the card, records the run in the file store `track`, and prints. Raises typer.Exit
        after Ctrl-C, MissingCheckpointError, LostItemError, RayUnreachableError."""
        if not self.is_begun(args.out) and args.resume:
            problem = f"--resume finds no {self.checkpoint} in {args.out}"
            raise MissingCheckpointError(f"{problem}: name the --out of the earlier run, or start without --resume")
        start_s = time.time()
        can_resume = any(field.name == "resume" for field in dataclasses.fields(args))
        how = f"; go on with --resume (checkpoint in {args.out})" if can_resume else ""
        try:
            with _staged_bar(is_hidden=as_json or not sys.stderr.isatty()) as show:
                made = self.make(args, show)
        except (LostItemError, RayUnreachableError) as error:
            raise type(error)(f"{error}{how}") from error
        except KeyboardInterrupt:
            Console(stderr=True).print(f"stopped{how}")
            raise typer.Exit(INTERRUPTED) from None
        report = json.loads((args.out / self.report).read_text("utf-8"))
        if card:
            write_card(self, report, card)
        files = [made] if isinstance(made, Path) else made or [args.out / self.report]
        if track:
            add_run(track, self._as_run(args, report, [*files, *([card] if card else [])], start_s))
        if as_json:
            json.dump({**report, **_files(made)}, sys.stdout)
            sys.stdout.write("\n")
        else:
            self._print(report, files)

    def is_begun(self, out: Path) -> bool:
        """Whether a run in this folder can go on."""
        return not self.checkpoint or (out / self.checkpoint).is_file()

    def _as_run(self, args: Any, report: Report, files: Sequence[Path], start_s: float) -> FinishedRun:
        """Options and seed are parameters, hashes of data are tags; the files made, report, card and figures are
        artifacts."""
        data = report.get("data", {})
        hashes = data if isinstance(data, Mapping) else {"training": report["sha256"]}
        shown = {name: report.get(name) for name in ("metrics", "held_out", "loss", "samples", "seconds")}
        shown["later"] = report.get("log", {}).get("later")
        drawn = [path for path in (file.with_name(name) for file in files for name in self.figures) if path.exists()]
        return FinishedRun(
            self.name,
            str(report.get("origin", {}).get("commit", self.name)),
            start_s,
            {each.name: getattr(args, each.name) for each in dataclasses.fields(args)},
            dict(numbers(shown)),
            {**{f"data/{name}": value for name, value in hashes.items()}, **report["origin"]},
            list(dict.fromkeys([*files, args.out / self.report, *drawn])),
        )

    def make(self, args: Any, show: Show) -> Path | Sequence[Path]:
        """Trains, signs the report and exports; the files made."""
        self.train(args, self._titled(show))
        self._sign(args.out / self.report)
        return self.export(args.out, args.out) if self.export else ()

    def _sign(self, path: Path) -> None:
        """Adds the commit and the command to the report: a bundle's manifest takes them from there."""
        report = {**json.loads(path.read_text("utf-8")), "origin": origin()}
        path.write_text(json.dumps(report, indent=2) + "\n", "utf-8")

    def _titled(self, show: Show) -> Show:
        return (lambda title, done, total: show(f"{self.stage}, {title}", done, total)) if self.stage else show

    def _print(self, report: Report, files: Sequence[Path]) -> None:
        table = Table(title=str(files[0]), title_justify="left")
        for column in self.columns:
            table.add_column(column)
        for row in self.rows(report):
            table.add_row(*row)
        Console().print(table)


def write_card(trainer: Trainer, report: Report, path: Path) -> None:
    """The model card of a report, with its figures beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(trainer.card(report), "utf-8")
    for name, draw in trainer.figures.items():
        draw(report, path.with_name(name))


def register(app: typer.Typer, trainers: Sequence[Trainer]) -> None:
    """Adds a command per trainer to `app`, and then the one that runs them all."""
    for trainer in trainers:
        app.command(name=trainer.name, cls=RayCommand)(_command(trainer))

    @app.command(name=ALL)
    def _all(
        out: Annotated[Path, typer.Option(help="Folder; every model gets one of its own in it.")] = Path("var/train"),
        seed: Annotated[int, typer.Option(help="Of every draw of every trainer.")] = 0,
        resume: Annotated[bool, typer.Option(help="Go on from the checkpoints in `out`.")] = False,
        cards: Annotated[Path | None, typer.Option(help="Also write the model cards into this folder.")] = None,
        measured: Annotated[
            Path | None, typer.Option(help="Folder with the site's own rows: trainers that can use them do.")
        ] = None,
        track: Annotated[Path | None, typer.Option(help=_TRACK)] = None,
    ) -> None:
        """Train every model that has default data, one after the other. Takes an hour and a half of one core."""
        read_site_rows(measured)  # a bad row is named now, and not after an hour
        passed = {"seed": seed, "resume": resume, "measured": measured}
        run_all(trainers, out, cards, passed, Console(stderr=True).rule, track)


def run_all(
    trainers: Sequence[Trainer],
    out: Path,
    cards: Path | None,
    passed: Report,
    show: Callable[[str], None],
    track: Path | None = None,
) -> None:
    """Runs every trainer, each into its own folder under `out`. An option of `passed` goes to those that have it;
    `resume` to those that have begun.

    Trainers that need a log are left out. Raises the error of a trainer that fails; those after it are not run.
    """
    for trainer in (each for each in trainers if not each.needs_log):
        show(trainer.name)
        known = {field.name for field in dataclasses.fields(trainer.args)}
        given = {name: value for name, value in passed.items() if name in known}
        if "resume" in given:
            given["resume"] = given["resume"] and trainer.is_begun(out / trainer.name)
        card = cards / f"{trainer.name}.md" if cards else None
        trainer.run(trainer.args(out=out / trainer.name, **given), card, track, as_json=False)


def _command(trainer: Trainer) -> Callable[..., None]:
    """A function whose parameters are the trainer's options, which is how Typer finds them."""

    def command(**options: Any) -> None:
        as_json, card, track = (options.pop(name) for name in ("as_json", "card", "track"))
        try:
            trainer.run(trainer.args(**options), Path(card) if card else None, track, as_json=as_json)
        except TraceError:  # a malformed file, which the message names
            raise
        except (ValueError, OSError) as error:
            raise RefusedError(f"train {trainer.name}: {error}") from error

    command.__doc__ = trainer.help
    vars(command)["__signature__"] = _signature(trainer.args)
    return command


def _signature(trainer_args: type[Any]) -> inspect.Signature:
    fields: list[tuple[str, Any, Any, Any]] = [
        (field.name, field.default, field.type, typer.Option(**field.metadata))
        for field in dataclasses.fields(trainer_args)
    ]
    fields.append(("card", "", str, typer.Option(help="Also write the model card here (Markdown).")))
    fields.append(("track", None, Path | None, typer.Option(help=_TRACK)))
    fields.append(("as_json", False, bool, typer.Option("--json", help="One JSON object on stdout.")))
    return inspect.Signature(
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])
            for name, default, kind, option in fields
        ]
    )


def _files(made: Path | Sequence[Path]) -> dict[str, Any]:
    if isinstance(made, Path):
        return {"model": str(made), "bytes": made.stat().st_size}
    return {"models": [str(path) for path in made]} if made else {}


@contextmanager
def _staged_bar(*, is_hidden: bool) -> Iterator[Show]:
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
