"""The command `placewise demo learn`. Shows steps; the modules beside it do the work."""

import json
import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from placewise_training.cli import UsageError
from placewise_training.demo.acts import play
from placewise_training.demo.loop import DemoStep, Sizes
from placewise_training.demo.plot import draw
from placewise_training.demo.service import demo_service
from placewise_training.lab.origin import origin

demo_app = typer.Typer(help="Demonstrations on a cluster with a truth.", no_args_is_help=True, add_completion=False)
REPORT, PLOT = "demo.json", "demo.png"


@demo_app.callback()
def _group() -> None:
    """Demonstrations on a cluster with a truth."""


@demo_app.command()
def learn(
    out: Annotated[Path, typer.Option(help="Folder for logs, bundles, report and plot, which must not exist.")],
    site: Annotated[int, typer.Option(min=0, help="Member of the truth `site`: whose machines these are.")] = 3,
    scale: Annotated[float, typer.Option(min=0.05, help="Share of the usual jobs.")] = 1.0,
    is_keeping: Annotated[bool, typer.Option("--keep", help="Keep logs and bundles beside report and plot.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """The learning loop on a service of its own, from exploring to the promotion, and bundles that must not get there.
    Nothing is chosen so that the candidate wins."""
    if out.exists():
        raise UsageError(f"{out} exists: choose another --out")
    out.mkdir(parents=True)
    sizes, began_s, steps = _scaled(scale), time.monotonic(), list[dict[str, Any]]()
    console = Console(stderr=as_json)

    def show(act: str, step: DemoStep) -> None:
        if not steps or steps[-1]["act"] != act:
            console.print(f"\n{act}", style="bold")
        line = f"  {step.name}: {step.verdict}. {step.text} ({step.seconds:.0f} s)"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
        steps.append({"act": act, **asdict(step)})
        _write(out, site, sizes, steps, began_s)

    with demo_service(out / "work") as service:
        work = out / "work" / "replays"
        work.mkdir()
        play(service, site, sizes, work, show)
    draw(steps, out / PLOT)
    if not is_keeping:
        shutil.rmtree(out / "work")
    console.print(f"\n{out / REPORT}, {out / PLOT}", highlight=False)
    if as_json:
        print((out / REPORT).read_text("utf-8"))


def _scaled(scale: float) -> Sizes:
    usual = Sizes()
    return Sizes(
        learned=max(240, round(scale * usual.learned)),
        judged=max(300, round(scale * usual.judged)),
        canary=max(60, round(scale * usual.canary)),
        fresh=max(20, round(scale * usual.fresh)),
        windows=usual.windows if scale >= 1 else 2,
        effort=usual.effort * min(1.0, scale),
        simulated=usual.simulated if scale >= 1 else 4,
        block_min=usual.block_min if scale >= 1 else 40.0,
    )


def _write(out: Path, site: int, sizes: Sizes, steps: list[dict[str, Any]], began_s: float) -> None:
    """After each step, so that an interrupted run leaves its results."""
    minutes = round((time.monotonic() - began_s) / 60, 1)
    found = {"site": site, "sizes": asdict(sizes), "origin": origin(), "minutes": minutes, "steps": steps}
    (out / REPORT).write_text(json.dumps(found, indent=1, default=str) + "\n", "utf-8")
