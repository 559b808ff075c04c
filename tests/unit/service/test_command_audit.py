"""Every command that changes Redis, bundles or tokens by itself leaves an audit record, also if it fails."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from typer.main import get_command

from placewise.v1.bundle_pb2 import ListBundlesResponse
from placewise_service.cli import app, invoke
from placewise_training.ldwp.online.publishing import Publisher

ROOT = Path(__file__).parents[3]
_CALLS = re.compile(r'\baudited\(\s*"([^"]+)"')


class ServiceWithoutBundles:
    def list_bundles(self, _: object) -> ListBundlesResponse:
        return ListBundlesResponse()


def damaged_aof(folder: Path) -> list[str]:
    (folder / "redis").mkdir()
    (folder / "redis" / "appendonly.aof").write_bytes(b"junk")
    return ["state", "check", "--cut"]


def words(line: str) -> Callable[[Path], Any]:
    return lambda _: invoke(line.split())


def publish(folder: Path) -> None:
    with pytest.raises(ValueError, match="a bundle's name"):
        Publisher(ServiceWithoutBundles(), folder, folder / "no-run", keep=2).publish(0, 0)  # type: ignore[arg-type]


# The record's call → what makes it, its subject, its result. Few succeed: how much work that is tells nothing here.
COMMANDS: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "token create": (words("token create a --file tokens --scope read"), "a", "OK"),
    "token revoke": (words("token revoke a --file tokens"), "a", "REFUSED"),
    "bundle build": (words("bundle build new --from nowhere"), "new", "BAD_INPUT"),
    "bundle sign": (words("bundle sign old --key no.key"), "old", "NEGATIVE"),
    "log export": (words("log export out"), "out", "UNREACHABLE"),
    "log migrate": (words("log migrate folder"), "folder", "OK"),
    "state check --cut": (lambda folder: invoke(damaged_aof(folder)), "redis/appendonly.aof", "OK"),
    "gate --record": (words("gate --record new --log folder --bundle made --incumbent old"), "new", "UsageError"),
    "retrain": (words("retrain --log folder --start old --out folder"), "folder", "RetrainError"),
    "train ldwp-online": (publish, "-dqn-000001", "ValueError"),
}

# The service records what these ask of it, or, of `serve` and `bench`, is what they start.
BY_THE_SERVICE = {
    "serve", "replay",
    "cluster apply", "cluster settings", "cluster delete",
    "bundle activate", "bundle rollback", "bundle shadow", "bundle canary", "bundle promote", "bundle kill",
    "bench place", "bench learned", "bench admit", "bench partition", "bench shadow", "bench contention", "bench chaos",
}  # fmt: skip
# These read, or write files that are neither a bundle's nor tokens: keys, models, reports.
CHANGE_NOTHING = {
    "cluster list", "cluster show", "whatif", "doctor", "token list",
    "log stats", "log tail", "log show",
    "bundle list", "bundle history", "bundle compare", "bundle verify", "bundle keygen",
    "demo learn", "drift", "evaluate", "profile", "reproduce", "simulate",
    "train reward", "train policy", "train harmony-paper", "train ldwp", "train ldwp-paper", "train stdm", "train ncf",
    "train sharing", "train throughput", "train capability", "train all",
}  # fmt: skip


@pytest.mark.parametrize("call", COMMANDS)
def test_a_command_that_changes_something_is_on_record(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLACEWISE_STATE_DIR", ".")
    monkeypatch.setenv("PLACEWISE_AUDIT__FILE", "audit")
    (tmp_path / "folder").mkdir()
    run, subject, result = COMMANDS[call]
    run(tmp_path)
    [row] = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    assert (row["call"], row["subject"], row["result"], row["method"]) == (call, subject, result, "local")


@pytest.mark.parametrize("line", ["state check", "gate --log folder --bundle new --incumbent old"])
def test_a_command_that_only_looks_is_not(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLACEWISE_STATE_DIR", ".")
    monkeypatch.setenv("PLACEWISE_AUDIT__FILE", "audit")
    invoke(line.split())
    assert not (tmp_path / "audit").exists()


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[str]:
    """All that the command line has, as one calls them."""
    if not hasattr(command, "list_commands"):
        yield " ".join(words)
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        yield from commands(command.get_command(context, name), (*words, name))


def test_each_command_is_known_to_change_something_or_nothing() -> None:
    """A new one fails here until somebody says which it is."""
    on_record = {call.partition(" --")[0] for call in COMMANDS}
    found = list(commands(get_command(app)))
    assert sorted(found) == sorted([*on_record, *BY_THE_SERVICE, *CHANGE_NOTHING])


def test_the_table_has_all_that_leave_a_record() -> None:
    sources = [*ROOT.glob("service/placewise_service/**/*.py"), *ROOT.glob("training/placewise_training/**/*.py")]
    assert {call for path in sources for call in _CALLS.findall(path.read_text("utf-8"))} == set(COMMANDS)
