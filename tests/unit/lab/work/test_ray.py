"""`--ray` and the way to Ray, with a stand-in for Ray itself."""

import builtins
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from placewise_training.gate.command import gate_app
from placewise_training.lab import origin
from placewise_training.lab.work import asked, on_ray
from placewise_training.lab.work.on_ray import OnRay, RayMissingError, RayUnreachableError
from placewise_training.lab.work.workers import LostItemError, UnsentItemError


class RayError(Exception):
    pass


class RayTaskError(RayError):
    pass


class FakeRay:
    """Does tasks when they are asked for, the last one given first. `deaths`: by item, how many workers die of it."""

    def __init__(self, deaths: dict[int, int] | None = None) -> None:
        self.exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)
        self.deaths = deaths or {}
        self.given: dict[str, Any] = {}
        self.waiting: list[tuple[Any, ...]] = []
        self.most = 0
        self.cancelled = 0
        self.at_exit: list[Any] = []
        self.is_on = False
        self.port, self.wait_s = 0, 0.0

    def init(self, **given: Any) -> None:
        if given["address"] == "ray://gone:1":
            raise ConnectionError("ray client connection timeout")
        self.given, self.is_on = given, True

    def is_initialized(self) -> bool:
        return self.is_on

    def shutdown(self) -> None:
        self.is_on = False

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0}

    def put(self, function: Any) -> Any:
        return function

    def remote(self, **options: Any) -> Any:
        assert options == {"max_retries": 0}  # it is we who count
        return lambda perform: SimpleNamespace(remote=lambda *given: (len(self.waiting), perform, *given))

    def wait(self, references: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        self.most = max(self.most, len(references))
        Event().wait(self.wait_s)
        return [references[-1]], []

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: "n1")

    def nodes(self) -> list[dict[str, Any]]:
        others = {"NodeID": "n2", "NodeManagerAddress": "10.0.0.2", "NodeManagerPort": 1}
        return [others, {"NodeID": "n1", "NodeManagerAddress": "127.0.0.1", "NodeManagerPort": self.port}]

    def get(self, reference: Any) -> Any:
        _, perform, function, item = reference
        if self.deaths.get(item, 0):
            self.deaths[item] -= 1
            raise RayError("The worker died unexpectedly while executing this task.\nCheck the logs")
        if item == "strange":
            raise RayTaskError("ModuleNotFoundError: placewise_training")
        return perform(function, item)

    def cancel(self, reference: Any, *, force: bool) -> None:
        assert force
        self.cancelled += 1


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    ray = FakeRay()
    monkeypatch.setattr(on_ray, "atexit", SimpleNamespace(register=ray.at_exit.append, unregister=ray.at_exit.append))
    monkeypatch.setitem(sys.modules, "ray", ray)  # type: ignore[arg-type]
    return ray


def negated(item: int) -> int:
    if item == 5:
        raise ValueError("five")
    return -item


def test_results_come_in_order_and_a_dead_worker_changes_none(fake: FakeRay) -> None:
    fake.deaths = {1: 2, 4: 1}
    with OnRay("2") as workers:
        assert list(workers.mapped(negated, [*range(5), 6, 7, 8])) == [0, -1, -2, -3, -4, -6, -7, -8]
    assert fake.most == 4  # two for each core
    assert not fake.is_on


def test_an_item_that_no_worker_survives_is_named_and_the_others_are_given_up(fake: FakeRay) -> None:
    fake.deaths = {7: 3}
    with OnRay("local") as workers, pytest.raises(LostItemError) as lost:
        list(workers.mapped(negated, [7, 8, 9, 10]))
    assert str(lost.value) == (
        "3 workers died of item 1, 7; the last one: The worker died unexpectedly while executing this task."
    )


def test_an_error_of_an_item_is_raised_as_it_is(fake: FakeRay) -> None:
    with OnRay("local") as workers, pytest.raises(ValueError, match="five"):
        list(workers.mapped(negated, [1, 5, 2, 3, 4, 6]))


def test_a_worker_that_cannot_begin_is_no_dead_worker(fake: FakeRay) -> None:
    with OnRay("local") as workers, pytest.raises(UnsentItemError, match=r"'strange'.*ModuleNotFoundError"):
        list(workers.mapped(negated, ["strange"]))  # type: ignore[list-item]


def test_what_is_left_over_is_cancelled(fake: FakeRay) -> None:
    with OnRay("local") as workers:
        results = workers.as_done(negated, range(9))
        next(results)
        results.close()  # type: ignore[attr-defined]
    assert fake.cancelled == 3


@pytest.mark.parametrize(
    ("address", "given"),
    [
        ("local", {"address": "local", "num_cpus": None, "_node_ip_address": "127.0.0.1"}),
        ("3", {"address": "local", "num_cpus": 3, "_node_ip_address": "127.0.0.1"}),
        ("head:6379", {"address": "head:6379"}),
        ("ray://head:10001", {"address": "ray://head:10001"}),
    ],
)
def test_it_is_started_here_or_joined_where_it_is(fake: FakeRay, address: str, given: dict[str, Any]) -> None:
    with OnRay(address):
        pass
    assert {name: fake.given[name] for name in given} == given
    is_joined = address.startswith(("head", "ray"))
    assert fake.given.get("runtime_env", {}).get("env_vars", {}).get("OMP_NUM_THREADS") == ("1" if is_joined else None)


def test_a_ray_that_goes_away_is_no_endless_wait(fake: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is there is waited for."""
    monkeypatch.setattr(on_ray, "_LOOK_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as node:
        fake.port = node.getsockname()[1]
        with OnRay("local") as workers:
            results = workers.as_done(negated, range(9))
            fake.wait_s = 0.1
            assert next(results) == (3, -3)
            fake.wait_s = 60.0
            node.close()
            with pytest.raises(RayUnreachableError, match="Ray at local went away: "):
                next(results)
    assert fake.cancelled == 0
    ended: list[int] = []
    monkeypatch.setattr(on_ray.os, "_exit", ended.append)
    fake.at_exit[0]()
    assert ended == [3]
    assert fake.at_exit[1] == fake.shutdown  # is left out, as it would wait


def test_a_ray_that_this_process_has_joined_stays(fake: FakeRay) -> None:
    fake.is_on = True
    with OnRay("local"):
        assert fake.given == {}
    assert fake.is_on


def test_no_answer_is_the_exit_code_of_what_does_not_answer(fake: FakeRay) -> None:
    with pytest.raises(RayUnreachableError, match="no Ray answers at ray://gone:1: ray client connection") as raised:
        OnRay("ray://gone:1").__enter__()
    assert raised.value.exit_code == 3


def _without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = builtins.__import__

    def imported(name: str, *given: Any, **named: Any) -> Any:
        if name == "ray":
            raise ModuleNotFoundError("No module named 'ray'")
        return usual(name, *given, **named)

    monkeypatch.setattr(builtins, "__import__", imported)


def test_without_ray_one_line_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _without_ray(monkeypatch)
    arguments = ["--log", str(tmp_path), "--bundle", str(tmp_path), "--incumbent", str(tmp_path), "--ray"]
    found = CliRunner().invoke(gate_app, arguments).exception
    assert isinstance(found, RayMissingError)
    assert (str(found), found.exit_code) == ("--ray needs Ray: pip install 'placewise[ray]'", 1)


@pytest.mark.parametrize(
    ("typed", "understood"),
    [
        (["--ray"], ["--ray", "local"]),
        (["--ray", "--json"], ["--ray", "local", "--json"]),
        (["--ray", "harmony", "--quick"], ["--ray", "local", "harmony", "--quick"]),
        (["--ray", "2"], ["--ray", "2"]),
        (["--ray", "head:6379", "--json"], ["--ray", "head:6379", "--json"]),
        (["--ray", "ray://head:10001"], ["--ray", "ray://head:10001"]),
        (["--ray=2"], ["--ray=2"]),
        (["--json"], ["--json"]),
    ],
)
def test_the_address_may_be_left_out(typed: Sequence[str], understood: Sequence[str]) -> None:
    assert asked.with_address(typed) == understood


@pytest.mark.parametrize("typed", [["--ray"], ["--ray", "2"], ["--ray=ray://head:1"], []])
def test_the_origin_of_a_result_is_the_same_wherever_it_was_made(
    monkeypatch: pytest.MonkeyPatch, typed: Sequence[str]
) -> None:
    monkeypatch.setattr(origin, "_commit", lambda root: "1a2b3c")
    monkeypatch.setattr(sys, "argv", ["placewise", "reproduce", *typed, "harmony", "--quick"])
    assert origin.origin()["command"] == "placewise reproduce harmony --quick"


def test_any_command_takes_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str | None, int]] = []
    monkeypatch.setattr(asked, "OnRay", lambda address: made.append((address, 0)))
    kinds: list[Callable[[], Any]] = [lambda: asked.workers_of("2", 4), lambda: asked.workers_of(None, 1)]
    assert [type(each()).__name__ for each in kinds] == ["NoneType", "Here"]
    assert made == [("2", 0)]
