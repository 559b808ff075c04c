"""Placewise on a real YARN: one ResourceManager and four NodeManagers with 8 GPUs each. `make e2e-yarn` runs this.

Their nodes are read from the NodeManagers' log folders, and the decided nodes from the service's record of the
decision. The prints are the figures.
"""

from __future__ import annotations

import random
import signal
import statistics
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from tests.e2e.yarn.yarn_artefacts import HADOOP, JAR
from tests.e2e.yarn.yarn_cluster import wait_for
from tests.e2e.yarn.yarn_gangs import (
    Account,
    Driver,
    Spec,
    account,
    check_gang,
    check_none_lost_or_doubled,
    mixed,
)
from tests.e2e.yarn.yarn_world import ALLOCATOR, MARKS, YarnWorld, yarn_world

pytestmark = MARKS
# On a shared machine an answer can take longer than the default of 100 ms, which the tests of faults use.
_PATIENT = {"placewise.decide-budget-ms": 3000}
_BUDGET_MS = 100  # the default of placewise.decide-budget-ms
_NOISE_MS = 20  # by which most gangs of two runs differ
Note = Callable[[str, object], None]


@pytest.fixture
def world() -> Iterator[YarnWorld]:
    with yarn_world(_PATIENT) as world:
        yield world


def test_distributed_shells_run_where_the_service_said(world: YarnWorld) -> None:
    clients = [world.submit_shell(containers=4, gpus=2), world.submit_shell(containers=2, gpus=8)]
    assert [client.wait(timeout=180) for client in clients] == [0, 0]
    applications = world.yarn.applications()
    assert [app["finalStatus"] for app in applications.values()] == ["SUCCEEDED", "SUCCEEDED"]
    for application in applications:
        check_gang(world, application)
    assert world.released() == {}
    wait_for(world.is_quiet, "the service to hear that all containers are over", 30)


def test_the_doctor_finds_nothing_and_undo_is_two_properties(world: YarnWorld) -> None:
    command = [*world.yarn.java("rm", [JAR, f"{HADOOP}/*"], 128), "placewise.yarn.Doctor"]
    reported = subprocess.run(command, cwd=world.root, check=True, capture_output=True, text=True, timeout=120).stdout
    assert "no problem found" in reported
    world.yarn.kill("rm")
    before = len(world.yarn.log("rm"))
    undone = ("yarn.resourcemanager.application-master-service.processors", ALLOCATOR)
    world.yarn.settings = {name: value for name, value in world.yarn.settings.items() if name not in undone}
    world.yarn.write()
    world.yarn.start_rm()
    wait_for(lambda: world.yarn.running_nodes() == 4, "four NodeManagers to return", 60)
    assert world.submit_shell(containers=2, gpus=2).wait(timeout=180) == 0
    assert "Placewise" not in world.yarn.log("rm")[before:]


def drive(world: YarnWorld, specs: list[Spec], timeout_s: float = 240, name: str = "driver") -> Account:
    found = account(world, Driver(world, name).start(specs).results(timeout_s))
    print(found)
    return found


_FILLERS: list[Spec] = [
    {"name": f"filler-{n}", "tags": ["placewise=off"], "waves": [[{"count": 1, "gpus": 3}]], "seconds": 30}
    for n in range(2)
]


@pytest.mark.parametrize("ordering", ["fifo", "placewise.yarn.PlacewiseOrderingPolicy"])
def test_mixed_gangs_run_as_decided_under_contention(ordering: str, record_property: Note) -> None:
    with yarn_world(_PATIENT, {"yarn.scheduler.capacity.root.default.ordering-policy": ordering}) as world:
        beside = Driver(world, "fillers").start(_FILLERS)
        found = drive(world, mixed(60, random.Random(20)))
        beside.results(60)
        record_property("gangs", found)
        assert found.as_decided == found.total == 60, found
        assert world.yarn.log("rm").count(" waits: ") >= 10
        wait_for(world.is_quiet, "the service to hear that all containers are over", 30)
        assert (world.started_twice(), world.log().doubled()) == ([], [])


def test_waves_are_questions_of_their_own(world: YarnWorld, record_property: Note) -> None:
    waves = [[{"count": 2, "gpus": 2}], [{"count": 1, "gpus": 4}], [{"count": 3, "gpus": 1}]]
    specs = [{"name": f"waves-{n}", "delayMs": 200 * n, "waves": waves, "seconds": 0.3} for n in range(20)]
    found = drive(world, specs)
    record_property("gangs", f"three waves of 20 applications: {found}")
    assert found.as_decided == 60, found


def test_a_dry_run_holds_nothing_and_agrees_seldom(record_property: Note) -> None:
    """The control: the same gangs as YARN places them, against the decisions that were only logged."""
    with yarn_world({**_PATIENT, "placewise.dry-run": "true"}) as world:
        beside = Driver(world, "fillers").start(_FILLERS)
        results = Driver(world).start(mixed(60, random.Random(20))).results(300)
        beside.results(60)
        found = account(world, results)
        agreed = sum(ran_as_logged(world, result["application"]) for result in results)
        placed = len(world.dry_decisions())  # the others would have waited
        words = f"dry run: {found}; {agreed} ran on the nodes of their decision, of {placed} with a place"
        record_property("gangs", words)
        print(words)
        assert placed >= 15
        assert (found.as_decided, len(found.released)) == (0, 60)
        assert world.yarn.log("rm").count("gang appattempt_") == len(world.released())  # one line for each
        assert agreed < 0.3 * placed


def ran_as_logged(world: YarnWorld, application: str) -> bool:
    ran = Counter(world.yarn.containers(application).values())
    return any(ran == world.decided_nodes(decision, gang) for gang, decision in world.dry_decisions()[application])


def test_twenty_gangs_and_service_killed(world: YarnWorld, record_property: Note) -> None:
    """The short form for every change: as decided, then without the service, then with it again; nothing is lost."""
    with_service = drive(world, mixed(20, random.Random(20), longest_s=1.5))
    assert with_service.as_decided == 20, with_service
    world.kill_service()
    without = drive(world, mixed(10, random.Random(21), longest_s=1.5), name="without")
    assert (len(without.released), without.elsewhere, without.never_decided) == (10, [], []), without
    long = Driver(world, "long").start([{"name": "long", "waves": [[{"count": 3, "gpus": 5}]], "seconds": 20}])
    wait_for(lambda: sum(gpus for gpus, *_ in world.yarn.used().values()) == 15, "the long gang to run", 60)
    world.start_service()
    wait_for(world.agrees, "the service to count what YARN counts", 60)
    assert sum(gpus for gpus, *_ in world.held().values()) == 15
    (last,) = long.results(60)
    assert "error" not in last
    wait_for(world.is_quiet, "the service to hear that all containers are over", 30)
    assert set(world.yarn.used().values()) == {(0, 0, 0)}
    faced = check_none_lost_or_doubled(world, [*Driver(world).ended(), last])
    record_property("fault", f"service killed: {faced}; before: {with_service}; while it was away: {without}")


def waits_ms(results: list[Spec]) -> dict[str, int]:
    """From ask to last container, by the gang's name."""
    return {one["name"]: sum(wave["allocatedMs"] - wave["askedMs"] for wave in one["waves"]) for one in results}


def test_gangs_go_on_when_the_service_does_not(record_property: Note) -> None:
    """The service is killed and hangs, three times each, on a load that the bare cluster finishes.

    Released gangs are compared with the same gangs on the bare cluster, and the slowest of all with its slowest.
    """
    specs = mixed(44, random.Random(7), longest_s=1.0, every_ms=1500)
    with yarn_world({}, {"yarn.scheduler.capacity.root.default.ordering-policy": "fifo"}, has_adapter=False) as world:
        results = Driver(world).start(specs).results(240)
        control = account(world, results)
        alone_ms = waits_ms(results)
    assert len(alone_ms) == len(specs)
    assert len(control.never_decided) == control.total == len(specs), control
    record_property("gangs", f"without Placewise: {control}")
    for number in (signal.SIGKILL, signal.SIGSTOP):
        with yarn_world() as world:
            results = stopped_three_times(world, specs, number)
            found, took_ms = account(world, results), waits_ms(results)
            released = {one["name"] for one in results if f"{one['application']} wave 1" in found.released}
            added_ms = {name: took_ms[name] - alone_ms[name] for name in released}
            middle, slowest = statistics.median(added_ms.values()), max(took_ms, key=took_ms.__getitem__)
            wait_for(world.is_quiet, "the service to hear that all containers are over", 60)
            assert world.agrees()
            faced = check_none_lost_or_doubled(world, results)
            added = (
                f"against the same gangs without Placewise: p50 {middle:+.0f} ms, longest {in_words(added_ms)} (n "
                f"{len(added_ms)}); slowest of all {slowest}, {took_ms[slowest]} ms, alone {max(alone_ms.values())} ms"
            )
            record_property("fault", f"service {number.name}, 3 times each: {faced}; {found}; {added}")
            print(f"{number.name}: {faced}; {found}; {added}; {took_ms} {alone_ms} {found.released}")
            assert len(took_ms) == len(specs)
            assert (found.elsewhere, found.never_decided) == ([], [])
            assert min(len(found.released), found.as_decided) >= 3
            # A service that hangs is known by the budget alone: one gang waits for it each time.
            late = [name for name, more in added_ms.items() if more > _BUDGET_MS / 2]
            assert len(late) <= (3 if number is signal.SIGSTOP else 0), added_ms
            assert middle <= _NOISE_MS, added_ms
            assert took_ms[slowest] <= max(alone_ms.values()) + 2 * _BUDGET_MS, took_ms


def in_words(added_ms: dict[str, int]) -> str:
    """The four longest."""
    return ", ".join(f"{name} {added_ms[name]:+}" for name in sorted(added_ms, key=added_ms.__getitem__)[-4:])


def stopped_three_times(world: YarnWorld, specs: list[Spec], number: signal.Signals) -> list[Spec]:
    """Results of the gangs. The third time until all is over: then gangs that waited are released as well."""
    driver = Driver(world).start(specs)
    for turn in range(1, 4):
        wait_for(lambda n=7 * turn: len(driver.ended()) >= n, "gangs to end", 120)
        before = len(world.released())
        world.signal_service(number)
        wait_for(lambda n=before: len(world.released()) > n, "a gang to be released", 60)
        if turn < 3:
            bring_back(world, number)
            wait_for(world.agrees, "the service to count what YARN counts", 60)
    results = driver.results(240)
    bring_back(world, number)
    return results


def bring_back(world: YarnWorld, number: signal.Signals) -> None:
    """The service, after that signal."""
    if number == signal.SIGSTOP:
        world.signal_service(signal.SIGCONT)
    else:
        world.kill_service()
        world.start_service()
