"""Faults of the service, of YARN's daemons and of applications on a real YARN. `make e2e-yarn` runs this.

After each fault the service's account of GPUs, cores and memory by node must be YARN's own.
"""

from __future__ import annotations

import contextlib
import functools
import json
import random
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest
from tests.e2e.hosts.faulty_way import ADMIT_ALL, FaultyWay
from tests.e2e.slurm.slurm_cluster import free_ports
from tests.e2e.yarn.yarn_cluster import YarnCluster, wait_for
from tests.e2e.yarn.yarn_gangs import (
    UNBEGUN,
    Driver,
    Spec,
    account,
    check_gang,
    check_none_lost_or_doubled,
    mixed,
)
from tests.e2e.yarn.yarn_ha import RMS, ElectedCluster, PairedCluster
from tests.e2e.yarn.yarn_world import MARKS, YarnWorld, yarn_world

pytestmark = MARKS
_TIMES = 3
_WITHDRAWN = re.compile(r"Placewise: gang \S+ is withdrawn: (.*)")
Note = Callable[[str, object], None]
_PATIENT = {"placewise.decide-budget-ms": 3000}
_TWO_QUEUES = {
    "yarn.scheduler.capacity.root.queues": "default,held",
    **{f"yarn.scheduler.capacity.root.{queue}.capacity": 50 for queue in ("default", "held")},
    **{f"yarn.scheduler.capacity.root.{queue}.user-limit-factor": 4 for queue in ("default", "held")},
}


@pytest.fixture
def world() -> Iterator[YarnWorld]:
    with yarn_world(_PATIENT) as world:
        yield world


@contextlib.contextmanager
def spoilt_world(
    settings: Mapping[str, object], kind: type[YarnCluster] = YarnCluster
) -> Iterator[tuple[YarnWorld, FaultyWay]]:
    """A YARN of two queues whose way to the service can be spoilt."""
    (port,) = free_ports(1)
    own = {"placewise.url": f"http://127.0.0.1:{port}", "placewise.queues": "root.default,root.held"}
    with (
        contextlib.closing(FaultyWay(port)) as way,
        yarn_world({**own, **settings}, _TWO_QUEUES, way.lead_to, kind) as world,
    ):
        yield world, way


def gang(name: str, containers: int, gpus: int, seconds: float, delay_ms: int = 0, queue: str = "default") -> Spec:
    waves = [[{"count": containers, "gpus": gpus}]]
    return {"name": name, "delayMs": delay_ms, "waves": waves, "seconds": seconds, "queue": queue}


def check_books(world: YarnWorld, gpus: int) -> None:
    """The service counts what YARN counts, and that many GPUs are held."""

    def is_equal() -> bool:
        return world.agrees() and sum(amount[0] for amount in world.yarn.used().values()) == gpus

    wait_for(is_equal, f"the service and YARN to agree on {gpus} GPUs", 60)


def check_end(world: YarnWorld, killed: int = 0) -> str:
    """`killed` applications may have failed. Returns the numbers of lost and doubled ones in words."""
    wait_for(world.is_quiet, "the service to hear that all containers are over", 30)
    assert world.agrees()
    return f"{_TIMES} times each: {check_none_lost_or_doubled(world, killed=killed)}"


# The budget is longer than an answer takes on a busy machine, and shorter than a slow one.
_FAULTS = {"placewise.decide-budget-ms": 1000, "placewise.release-after-ms": 60_000}


def test_a_wrong_answer_releases_the_new_gangs_alone(record_property: Note) -> None:
    """Held gangs outlive every kind of wrong answer, and run as decided once a right one comes."""
    with spoilt_world(_FAULTS) as (world, way):
        for fault in ("ADMIT without a place", "unknown host"):
            spoil(world, way, fault, gpus=0)
        long = Driver(world, "long").start([gang("long", 4, 6, 100)])
        wait_for(lambda: len(world.as_decided()) == 1, "the long gang to run", 60)
        held = Driver(world, "held").start([gang(f"held-{n}", 4, 7, 0.5, queue="held") for n in range(3)])
        wait_for(lambda: world.yarn.log("rm").count(" waits: ") >= 3, "three gangs to be held", 60)
        for fault in ("slow", "error 500", "cut JSON", ADMIT_ALL):
            spoil(world, way, fault, gpus=24)
        way.fault, seen = "unknown host", way.hits["unknown host"]
        first = account(world, long.results(150))
        assert first.as_decided == 1
        wait_for(lambda: way.hits["unknown host"] > seen + 2 * _TIMES, "wrong places for a held gang", 30)
        way.fault = ""
        rest = account(world, held.results(120))
        assert rest.as_decided == 3
        faced = f"wrong answers, {check_end(world)}; hits {dict(way.hits)}"
        check_left_say_why(world)
        record_property("fault", f"{faced}; held before: {first}; while they came: {rest}")


def check_left_say_why(world: YarnWorld) -> None:
    """So does the log, of each container of theirs. One that is over before the adapter looks at it is not reported."""
    whys = {job: why for job, (_, why) in world.log().starts.items() if job.startswith("container_")}
    assert len(world.released()) / 2 < len(whys) <= len(world.released())
    assert all(why.startswith("left to the host: no decision: ") for why in whys.values()), whys


def spoil(world: YarnWorld, way: FaultyWay, fault: str, gpus: int) -> None:
    """New gangs meet the fault three times at least, and are released. Others hold that many GPUs."""
    way.fault = fault
    before, count = len(world.released()), 2 * _TIMES
    new = Driver(world, fault.replace(" ", "-")).start([gang(f"new-{n}", 1, 1, 1, 900 * n) for n in range(count)])
    wait_for(lambda: len(world.released()) == before + count, f"{fault}: new gangs to be released", 60)
    wait_for(lambda: way.hits[fault] >= _TIMES, f"{fault} to be hit", 30)
    way.fault = ""
    assert account(world, new.results(60)).as_decided == 0
    check_books(world, gpus)


def test_the_resource_manager_killed_between_decision_and_allocation(record_property: Note) -> None:
    """It dies while a decision is on its way to it, and an earlier gang runs, whose end the last one reports."""
    with spoilt_world(_PATIENT) as (world, way):
        long = Driver(world, "long").start([gang("long", 2, 4, 180)])
        wait_for(lambda: len(running(way)) == 1, "the long gang to run", 60)
        survivors = running(way)
        found = kill_resource_manager(world, way)
        assert running(way) >= survivors, "ended before its time"
        assert [result.get("error") for result in long.results(240)] == [None]
        record_property("fault", f"ResourceManager killed, {check_end(world)}; {found}")
        assert {kind for job, kind in way.events if job in survivors} == {"STARTED", "FINISHED"}
        assert [event for event, count in way.events.items() if count > 1] == []


def running(way: FaultyWay) -> set[str]:
    """Gangs that have started, by the events, and not ended."""
    started = {job for job, kind in way.events if kind == "STARTED" and "/w" in job}
    return started - {job for job, kind in way.events if kind in ("FINISHED", "FAILED", "CANCELLED")}


def kill_resource_manager(world: YarnWorld, way: FaultyWay) -> str:
    gangs = Driver(world).start([gang(f"gang-{n}", 2 + n % 3, 3, 12, 4000 * n) for n in range(8)])
    for _ in range(_TIMES):
        way.placed = lambda: world.yarn.signal("rm", signal.SIGKILL)
        wait_for(lambda: world.yarn.has_ended("rm"), "a decision to arrive and the kill", 120)
        way.placed = None
        world.yarn.start_rm()
        wait_for(lambda: world.yarn.running_nodes() == 4, "four NodeManagers to return", 60)
        wait_for(world.agrees, "the service to count what YARN counts", 60)
    results = gangs.results(240)
    assert [result.get("error") for result in results] == [None] * 8
    return check_ran_where_some_decision_said(world, results)


def check_ran_where_some_decision_said(world: YarnWorld, results: Sequence[Spec]) -> str:
    """Returns the account in words, with the reason why gangs ran elsewhere than their last decision said."""
    found = account(world, results)
    print(f"{found}; {found.elsewhere}")
    assert (found.released, found.never_decided, found.unwritten) == ([], [], [])
    decisions = world.decisions()
    for result in results:
        ran = Counter(world.yarn.containers(result["application"]).values())
        decided = [world.decided_nodes(decision, gang) for gang, decision in decisions[result["application"]]]
        assert ran <= sum((nodes or Counter() for nodes in decided), Counter()), result
    unbegun = [gang for gang in found.elsewhere if UNBEGUN in gang]
    again = [gang for gang in found.elsewhere if gang not in unbegun and len(decisions[gang.partition(" ")[0]]) > 1]
    assert len(unbegun) + len(again) == len(found.elsewhere), found.elsewhere
    why = f"{len(again)} each container as one of several decisions said, as the rest of a gang is decided again"
    why += f", {len(unbegun)} had a container that died with its node before it began" if unbegun else ""
    return f"{found}; of those elsewhere {why}" if found.elsewhere else str(found)


def test_two_resource_managers_take_turns(record_property: Note) -> None:
    """Each is active twice. No event is reported twice, and no thread is left of an earlier turn."""
    with spoilt_world(_PATIENT, PairedCluster) as (world, way):
        pair = world.yarn
        assert isinstance(pair, PairedCluster)
        gangs = Driver(world).start([gang(f"gang-{n}", 2 + n % 3, 3, 12, 5000 * n) for n in range(12)])
        for active in ("rm2", "rm1", "rm2"):
            started = len(world.as_decided())
            wait_for(lambda started=started: len(world.as_decided()) > started, "another gang to run", 60)
            pair.turn_to(active)
            wait_for(world.agrees, "the service to count what YARN counts", 60)
            for rm in RMS:
                counts = pair.threads(rm)
                assert (counts["placewise-asker"], counts["placewise-clock"]) == (1, 1), rm
                assert counts["placewise-call"] <= 2, rm  # one calls, and one may end
        results = gangs.results(240)
        assert [result.get("error") for result in results] == [None] * 12
        found = check_ran_where_some_decision_said(world, results)
        record_property("fault", f"the other ResourceManager made active, {check_end(world)}; {found}")
        assert len([job for job, kind in way.events if kind == "STARTED" and "/w" in job]) >= 12
        assert [event for event, count in way.events.items() if count > 1] == []


def test_zookeeper_makes_the_other_resource_manager_active(record_property: Note) -> None:
    with spoilt_world(_PATIENT, ElectedCluster) as (world, _):
        pair = world.yarn
        assert isinstance(pair, ElectedCluster)
        gangs = Driver(world).start([gang(f"gang-{n}", 2 + n % 3, 3, 12, 5000 * n) for n in range(12)])
        for _ in range(_TIMES):
            started = len(world.as_decided())
            wait_for(lambda started=started: len(world.as_decided()) > started, "another gang to run", 60)
            pair.kill_active()
            wait_for(world.agrees, "the service to count what YARN counts", 60)
        results = gangs.results(240)
        assert [result.get("error") for result in results] == [None] * 12
        found = check_ran_where_some_decision_said(world, results)
        record_property("fault", f"the active ResourceManager killed, {check_end(world)}; {found}")


def test_node_lost_while_gangs_run_and_wait(world: YarnWorld, record_property: Note) -> None:
    gangs = Driver(world).start(mixed(45, random.Random(3), longest_s=4.0, every_ms=2200))
    for node in ("n2", "n3", "n4"):
        wait_for(lambda node=node: world.yarn.used()[node][0] > 0, f"containers on {node}", 60)
        world.yarn.kill(node)
        wait_for(lambda: world.yarn.running_nodes() == 3, f"{node} to be lost", 60)
        wait_for(lambda: world.known_nodes() == 3, "the service to know it", 30)
        wait_for(world.agrees, "the service to count what YARN counts", 60)
        world.yarn.start_node(node)
        wait_for(lambda: world.known_nodes() == 4, f"{node} to return", 60)
    record_property("fault", f"node lost, {nodes_faced(world, gangs)}")


def nodes_faced(world: YarnWorld, gangs: Driver) -> str:
    """Each application gets all its containers: a container that cannot be launched is asked for again."""
    results = gangs.results(240)
    assert [result.get("error") for result in results] == [None] * 45
    assert world.released() == {}
    found = check_ran_where_some_decision_said(world, results)
    again = sum(wave.get("again", 0) for result in results for wave in result["waves"])
    withdrawn = Counter(_WITHDRAWN.findall(world.yarn.log("rm")))
    reasons = "".join(f" ({count}: {why})" for why, count in withdrawn.items())
    ran = f"{withdrawn.total()} decisions withdrawn{reasons}, {again} containers not launched"
    return f"{check_end(world)}; {found}; {ran}"


def test_node_decommissioned_while_gangs_run_and_wait(record_property: Note) -> None:
    with yarn_world(_PATIENT) as world:
        gangs = Driver(world).start(mixed(45, random.Random(5), longest_s=4.0, every_ms=1500))
        for node in ("n2", "n3", "n4"):
            wait_for(lambda node=node: world.yarn.used()[node][0] > 0, f"containers on {node}", 60)
            world.yarn.exclude([node])
            wait_for(lambda: world.known_nodes() == 3, "the service to know that the node is gone", 60)
            wait_for(world.agrees, "the service to count what YARN counts", 60)
            world.yarn.exclude([])
            world.yarn.kill(node)
            world.yarn.start_node(node)
            wait_for(lambda: world.known_nodes() == 4, f"{node} to return", 60)
        record_property("fault", f"node decommissioned, {nodes_faced(world, gangs)}")


def test_service_that_hangs_three_times_releases_no_held_gang(record_property: Note) -> None:
    """Each time it hangs for less than `release-after-ms`. New gangs are released, held ones run as decided."""
    with yarn_world({**_FAULTS, "placewise.queues": "root.default,root.held"}, _TWO_QUEUES) as world:
        long = Driver(world, "long").start([gang("long", 4, 6, 90)])
        wait_for(lambda: len(world.as_decided()) == 1, "the long gang to run", 60)
        held = Driver(world, "held").start([gang(f"held-{n}", 4, 7, 0.5, queue="held") for n in range(3)])
        wait_for(lambda: world.yarn.log("rm").count(" waits: ") >= 3, "three gangs to be held", 60)
        for number in range(_TIMES):
            world.signal_service(signal.SIGSTOP)
            new = Driver(world, f"new-{number}").start([gang(f"new-{number}", 1, 1, 1)])
            wait_for(lambda number=number: len(world.released()) == number + 1, "the new gang to be released", 60)
            world.signal_service(signal.SIGCONT)
            assert account(world, new.results(60)).as_decided == 0
            check_books(world, gpus=24)
        first, rest = account(world, long.results(150)), account(world, held.results(120))
        assert (first.as_decided, rest.as_decided) == (1, 3)
        record_property("fault", f"service hung, {check_end(world)}; held before: {first}; while it hung: {rest}")


def gpus_in_use(world: YarnWorld) -> int:
    return sum(gpus for gpus, *_ in world.yarn.used().values())


def test_application_master_killed(world: YarnWorld, record_property: Note) -> None:
    """A second attempt asks again, and the first one's containers are free."""
    before: set[str] = set()
    for _ in range(_TIMES):
        shell = world.submit_shell(containers=3, gpus=2, command="sleep 4")
        wait_for(lambda: len(world.yarn.applications()) > len(before), "the application", 60)
        (application,) = set(world.yarn.applications()) - before
        wait_for(lambda name=application: len(world.yarn.containers(name)) == 4, "the gang to run", 60)
        world.yarn.kill_master()
        # Two masters of which one is over, and the second attempt's gang runs: 4 s.
        wait_for(lambda name=application: len(world.yarn.containers(name)) == 8, "the second attempt's gang to run", 90)
        wait_for(lambda: gpus_in_use(world) == 6 and world.agrees(), "the service to count what YARN counts", 10)
        assert shell.wait(timeout=120) == 0
        check_gang(world, application, attempts=2)
        before.add(application)
    ran = f"{len(before)} gangs as decided, and again as decided by the second attempt"
    record_property("fault", f"ApplicationMaster killed, {check_end(world)}; {ran}")


def test_application_killed_while_held(world: YarnWorld, record_property: Note) -> None:
    # Half of the GPUs stay free: YARN asks the gate about no ask that its queue has no room for.
    long = Driver(world, "long").start([gang("long", 4, 4, 30)])
    wait_for(lambda: len(world.as_decided()) == 1, "the long gang to run", 60)
    held = Driver(world, "held").start([gang(f"held-{n}", 4, 8, 0.5) for n in range(_TIMES + 1)])
    wait_for(lambda: world.yarn.log("rm").count(" waits: ") >= _TIMES + 1, "gangs to be held", 60)
    applications = world.yarn.applications()
    by_name = {app["name"]: name for name, app in applications.items()}
    reported = [app["diagnostics"] for app in applications.values() if app["name"].startswith("held-")]
    assert len(reported) == _TIMES + 1
    reasons = ("Placewise: 16 GPUs short", "Placewise: 32 GPUs short")  # the first one's, and of those behind it
    assert [text for text in reported if not text.startswith(reasons)] == []
    assert "Placewise" not in applications[by_name["long"]]["diagnostics"]
    why = functools.partial(activities, world, by_name["held-0"])
    wait_for(lambda: any(map(why().__contains__, reasons)), "app-activities to say why", 20)
    world.yarn.kill_applications([by_name[f"held-{n}"] for n in range(_TIMES)])
    wait_for(lambda: sum("error" in result for result in held.ended()) == _TIMES, "their masters to hear of it", 60)
    check_books(world, gpus=16)
    results = held.results(120)
    assert sorted(result["name"] for result in results if "error" not in result) == [f"held-{_TIMES}"]
    assert account(world, long.results(60)).as_decided == 1
    assert len(world.as_decided()) == 2
    record_property("fault", f"application killed while held, {check_end(world, killed=_TIMES)}")


def activities(world: YarnWorld, application: str) -> str:
    """The scheduler's own record of why an application gets nothing. Each call has it write down the next seconds."""
    return json.dumps(world.yarn.get(f"scheduler/app-activities/{application}?maxTime=10"))
