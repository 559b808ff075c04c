"""Every command that changes Redis, bundles or tokens by itself leaves an audit record, also if it fails."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from placewise.v1.bundle_pb2 import ListBundlesResponse
from placewise_service.cli import invoke
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
    "gate --record": (words("gate --record --log folder --bundle new --incumbent old"), "new", "UsageError"),
    "retrain": (words("retrain --log folder --start old --out folder"), "folder", "RetrainError"),
    "train ldwp-online": (publish, "-dqn-000001", "ValueError"),
}


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


def test_the_table_has_all_of_them() -> None:
    sources = [*ROOT.glob("service/placewise_service/**/*.py"), *ROOT.glob("training/placewise_training/**/*.py")]
    assert {call for path in sources for call in _CALLS.findall(path.read_text("utf-8"))} == set(COMMANDS)
