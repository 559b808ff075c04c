"""`train all` runs whatever trainers are registered, in order, and passes on what each of them takes."""

from pathlib import Path
from typing import Any

import pytest
import typer

from placewise_training.lab import train_all
from placewise_training.train_cli import train_app


def an_app(calls: list[tuple[str, dict[str, Any]]]) -> typer.Typer:
    app = typer.Typer()

    @app.command(name="first")
    def first(out: Path = Path("x"), seed: int = 0, resume: bool = False, card: str = "", rate: float = 0.5) -> None:
        calls.append(("first", {"out": out, "seed": seed, "resume": resume, "card": card, "rate": rate}))

    @app.command(name="second")
    def second(out: Path = Path("y"), splits: int = 3) -> None:
        calls.append(("second", {"out": out, "splits": splits}))

    train_all.register(app)
    return app


def test_each_trainer_gets_its_folder_its_defaults_and_what_is_passed_on(tmp_path: Path) -> None:
    calls: list[tuple[str, dict[str, Any]]] = []
    names = train_all.run_all(an_app(calls), tmp_path, tmp_path / "cards", {"seed": 7, "resume": True}, lambda _: None)
    assert names == ["first", "second"]
    card = str(tmp_path / "cards" / "first.md")
    assert calls[0][1] == {"out": tmp_path / "first", "seed": 7, "resume": True, "card": card, "rate": 0.5}
    assert calls[1][1] == {"out": tmp_path / "second", "splits": 3}


def test_a_trainer_that_stops_stops_the_rest(tmp_path: Path) -> None:
    calls: list[tuple[str, dict[str, Any]]] = []
    app = typer.Typer()

    @app.command(name="broken")
    def broken() -> None:
        raise typer.Exit(130)

    @app.command(name="after")
    def after() -> None:
        calls.append(("after", {}))

    with pytest.raises(typer.Exit):
        train_all.run_all(app, tmp_path, None, {}, lambda _: None)
    assert not calls


def test_every_shipped_model_has_a_trainer() -> None:
    names = {command.name for command in train_app.registered_commands}
    assert {"reward", "throughput", "stdm", train_all.NAME} <= names
