"""Commands of trainers: wrong options end in one line, not in a traceback."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from placewise_core.domain.traces import TraceError
from placewise_service.commands.exits import Exit, exit_code
from placewise_training.lab.register import RefusedError, Show, Trainer, register


@dataclass(frozen=True)
class Args:
    out: Path = field(default=Path("var"), metadata={"help": "Folder."})
    resume: bool = field(default=False, metadata={"help": "Go on."})


@pytest.mark.parametrize(
    ("error", "printed"),
    [
        (ValueError("no method is called 'x'"), "train fake: no method is called 'x'"),
        (FileNotFoundError(2, "No such file", "a/b.json"), "train fake: [Errno 2] No such file: 'a/b.json'"),
    ],
)
def test_what_a_trainer_refuses_is_one_line_with_the_code_of_usage(
    error: Exception, printed: str, tmp_path: Path
) -> None:
    def train(args: Args, show: Show) -> None:
        raise error

    app = typer.Typer()
    register(app, [Trainer("fake", "A trainer.", Args, train, "report.json", (), lambda report: (), str)])
    found = CliRunner().invoke(app, ["fake", "--out", str(tmp_path)]).exception
    assert isinstance(found, RefusedError)
    assert (str(found), found.exit_code) == (printed, 2)


def test_a_malformed_row_has_the_code_of_bad_input(tmp_path: Path) -> None:
    def train(args: Args, show: Show) -> None:
        raise TraceError("pairs.csv", 2, 7, "norm_b", "'abc' is not a number")

    app = typer.Typer()
    register(app, [Trainer("fake", "A trainer.", Args, train, "report.json", (), lambda report: (), str)])
    found = CliRunner().invoke(app, ["fake", "--out", str(tmp_path)]).exception
    assert isinstance(found, TraceError)
    assert exit_code(found) == Exit.BAD_INPUT


def test_rows_of_the_site_are_read_before_the_first_training(tmp_path: Path) -> None:
    begun = []

    def train(args: Args, show: Show) -> dict[str, object]:
        begun.append(args)
        return {}

    app = typer.Typer()
    register(app, [Trainer("fake", "A trainer.", Args, train, "report.json", (), lambda report: (), str)])
    (tmp_path / "pairs.csv").write_text("gpu_type,model_a\nH100,a\n")
    found = CliRunner().invoke(app, ["all", "--out", str(tmp_path / "out"), "--measured", str(tmp_path)]).exception
    assert isinstance(found, TraceError)
    assert not begun
