"""The command `placewise reproduce`. Parses, shows progress, writes files; the papers' modules hold the trials."""

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from placewise_training.cli import UsageError, progress_bar
from placewise_training.lab.origin import origin
from placewise_training.lab.register import INTERRUPTED
from placewise_training.lab.work.asked import HELP, METAVAR, RayCommand, workers_of
from placewise_training.reproduce import document, registry, report, runner
from placewise_training.reproduce.bundle_origin import bundle_origin
from placewise_training.reproduce.paper import Paper
from placewise_training.reproduce.results import Results, RunOrigin

QUICK_LIMIT_S = 35.0  # --quick ends within a minute, start-up and plots on a busy machine included
FULL_SEEDS, QUICK_SEEDS = 5, 2
_DOCS, _ALL = "docs", "all"
_PARTIAL = "{}.partial.json"
reproduce_app = typer.Typer(add_completion=False)


@reproduce_app.command(name="reproduce", cls=RayCommand)
def reproduce_command(
    paper: Annotated[str, typer.Argument(help=f"{', '.join(registry.PAPERS)}, all, or docs (write the document).")],
    quick: Annotated[bool, typer.Option("--quick", help="Smaller, two seeds, within a minute.")] = False,
    seeds: Annotated[int, typer.Option(min=0, help="Paired seeds; 0: 5, or 2 when quick.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for NAME.json and the plots.")] = None,
    bundle: Annotated[Path | None, typer.Option(help="Bundle of learned policies; else the shipped one.")] = None,
    ablations: Annotated[bool, typer.Option("--ablations", help="Of harmony: the variants of its policy.")] = False,
    variants: Annotated[Path | None, typer.Option(help="Folder of those variants; else build/ablations.")] = None,
    rejudge: Annotated[
        bool, typer.Option("--rejudge", help="Of docs: judges the results again and keeps the verdicts.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Runs only the rows that --out has not yet.")] = False,
    ray: Annotated[str | None, typer.Option(metavar=METAVAR, help=HELP)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Runs every figure and table of a paper's evaluation and says which of its claims hold here."""
    if paper == _DOCS:
        _write_document(out or Path("docs/reproduction"), rejudges=rejudge)
        return
    if rejudge:
        raise UsageError("--rejudge is for docs")
    names = list(registry.PAPERS) if paper == _ALL else [paper]
    if paper not in (_ALL, *registry.PAPERS):
        raise UsageError(f"PAPER is one of {', '.join(registry.PAPERS)}, all, docs; not {paper!r}")
    if ablations or variants:
        if paper not in ("harmony", registry.ABLATIONS):
            raise UsageError("--ablations and --variants are for harmony")
        names = [registry.ABLATIONS]
    if resume and out is None:
        raise UsageError("--resume needs --out, the folder that has the rows")
    sources = [registry.Source(name, quick, bundle, variants) for name in names]
    made = _loaded(sources)
    made_by: RunOrigin = origin() if bundle is None else {**origin(), "bundle": bundle_origin(bundle)}
    reports = []
    with workers_of(ray) as workers:
        for source, experiments in zip(sources, made, strict=True):
            known = _known(experiments, out, is_quick=quick) if resume and out is not None else None
            run = partial(
                runner.run,
                experiments,
                known=known,
                attempt=source.attempt if ray else None,
                workers=workers,
                origin=made_by,
            )
            reports.append(_reproduce(experiments, seeds, out, run, is_quick=quick, is_quiet=as_json))
            if reports[-1]["stopped"] == runner.INTERRUPTED:
                break
    if as_json:
        json.dump(reports[0] if paper != _ALL else {"papers": reports}, sys.stdout, ensure_ascii=False, allow_nan=False)
        sys.stdout.write("\n")
    if any(found["stopped"] == runner.INTERRUPTED for found in reports):
        raise typer.Exit(INTERRUPTED)


def _loaded(sources: Sequence[registry.Source]) -> list[Paper]:
    try:
        for folder in (sources[0].bundle, sources[0].variants):
            if folder is not None:
                _check_learnt_from_no_log(folder)
        return [source.paper() for source in sources]
    except ValueError as error:
        raise UsageError(str(error)) from error


def _check_learnt_from_no_log(folder: Path) -> None:
    """Raises ValueError for a report of a net that learnt from a log: it might be one of the judge's."""
    for path in sorted(folder.rglob("*.json")):
        try:
            found = json.loads(path.read_text("utf-8"))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        if isinstance(found, dict) and "log" in found:
            raise ValueError(f"{path}: learnt from a log, which may be one of the truth that judges")


def _known(made: Paper, out: Path, *, is_quick: bool) -> Results | None:
    """The folder's results of that paper: the partial ones if there are some, else the whole ones."""
    for path in (out / _PARTIAL.format(made.name), out / f"{made.name}.json"):
        if path.exists():
            found = json.loads(path.read_text(encoding="utf-8"))
            if (found["mode"] == "quick") is not is_quick:
                raise UsageError(f"{path} was made in mode {found['mode']}; choose another --out")
            return report.from_json(made, found)
    return None


def _reproduce(
    made: Paper, seeds: int, out: Path | None, run: Callable[..., Results], *, is_quick: bool, is_quiet: bool
) -> report.Json:
    count = seeds or (QUICK_SEEDS if is_quick else FULL_SEEDS)
    limit_s = QUICK_LIMIT_S if is_quick else float("inf")
    hidden = is_quiet or not sys.stderr.isatty()

    def keep(results: Results) -> None:
        if out is not None:
            _write_json(report.as_json(made, results, is_quick=is_quick), out)

    with progress_bar(made.name, runner.trial_count(made, count), is_hidden=hidden) as show:
        results = run(range(count), progress=show, limit_s=limit_s, keep=keep)
    found = report.as_json(made, results, is_quick=is_quick)
    if out is not None:
        _write(found, out)
    if not is_quiet:
        report.print_tables(found, Console())
    return found


def _write(found: report.Json, out: Path) -> None:
    """The JSON and the plots. A whole run removes its partial results."""
    from placewise_training.reproduce.plots import draw  # noqa: PLC0415 (matplotlib takes a second to import)

    _write_json(found, out)
    if not found["partial"]:
        (out / _PARTIAL.format(found["paper"])).unlink(missing_ok=True)
    draw(found, out if not found["partial"] else out / "partial")


def _write_json(found: report.Json, out: Path) -> None:
    """NAME.json; NAME.partial.json for partial results, so that they replace no whole ones."""
    out.mkdir(parents=True, exist_ok=True)
    name = _PARTIAL.format(found["paper"]) if found["partial"] else f"{found['paper']}.json"
    text = json.dumps(found, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    (out / name).write_text(text + "\n", encoding="utf-8")


def _write_document(folder: Path, *, rejudges: bool) -> None:
    try:
        if rejudges:
            for found in document.read_reports(folder):
                _write_json(document.rejudged(found, origin()["commit"]), folder)
        reports = [document.worded(found) for found in document.read_reports(folder)]
    except ValueError as error:
        raise UsageError(str(error)) from error
    if not reports:
        raise UsageError(f"{folder} holds no reproduction; run `placewise reproduce PAPER --out {folder}` first")
    target = folder.parent / f"{folder.name}.md"
    target.write_text(document.markdown(reports, folder, folder.name), encoding="utf-8")
    Console().print(f"wrote {target}")
