"""Limits of YARN's own that a decision must keep, on a real cluster. `make e2e-yarn` runs this.

Nothing is reserved for a gang that YARN would not allocate now: the service holds what YARN holds.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from tests.e2e.yarn.yarn_cluster import send, wait_for
from tests.e2e.yarn.yarn_gangs import Driver, Spec, account, check_gang
from tests.e2e.yarn.yarn_world import CLUSTER, MARKS, YarnWorld, yarn_world

pytestmark = MARKS
_QUEUE = "yarn.scheduler.capacity.root"
# Of 32 GPUs `small` may have 8 and no more, and each user of `shared` 8.
_QUEUES = {
    f"{_QUEUE}.queues": "default,small,shared",
    f"{_QUEUE}.default.capacity": 50,
    f"{_QUEUE}.default.user-limit-factor": 4,
    f"{_QUEUE}.small.capacity": 25,
    f"{_QUEUE}.small.maximum-capacity": 25,
    f"{_QUEUE}.shared.capacity": 25,
}
_YARNS_OWN = "org.apache.hadoop.yarn.server.resourcemanager.scheduler.placement.LocalityAppPlacementAllocator"
_SETTINGS = {
    "placewise.decide-budget-ms": 3000,
    "placewise.queues": "root.default,root.small,root.shared",
    "yarn.cluster.max-application-priority": 10,
}


def gang(name: str, containers: int, gpus: int, seconds: float, queue: str = "default", **more: object) -> Spec:
    waves = [[{"count": containers, "gpus": gpus, **({"label": more["label"]} if "label" in more else {})}]]
    return {"name": name, "waves": waves, "seconds": seconds, "queue": queue, **more}


def run(world: YarnWorld, driver: str, specs: list[Spec], decided: int) -> Driver:
    """Starts the gangs, and waits until so many have run as decided since the start."""
    started = Driver(world, driver).start(specs)
    wait_for(lambda: len(world.as_decided()) == decided, f"{driver} to run", 60)
    return started


def says(world: YarnWorld, words: str) -> bool:
    return words in world.yarn.log("rm")


def check_all(world: YarnWorld, drivers: list[Driver]) -> None:
    for driver in drivers:
        results = driver.results(120)
        found = account(world, results)
        print(found)
        assert results
        assert found.as_decided == found.total == len(results), found
    wait_for(world.is_quiet, "the service to hear that all containers are over", 30)


def test_a_queue_at_its_maximum_and_a_user_at_the_limit_hold_up_nobody_else() -> None:
    with yarn_world(_SETTINGS, _QUEUES) as world:
        drivers = [run(world, "small", [gang("small-1", 2, 4, 25, "small")], 1)]
        drivers += [Driver(world, "small-late").start([gang("small-2", 1, 2, 0.5, "small")])]
        wait_for(lambda: says(world, "waits: queue root.small is at its maximum"), "the queue to be at its maximum", 60)
        drivers += [run(world, "shared", [gang("shared-1", 2, 4, 25, "shared")], 2)]
        drivers += [Driver(world, "shared-late").start([gang("shared-2", 2, 4, 0.5, "shared")])]
        wait_for(lambda: says(world, "is at the limit in queue root.shared"), "the user's limit", 60)
        drivers += [run(world, "default", [gang("default-1", 2, 4, 15)], 3)]
        wait_for(world.agrees, "the service to count what YARN counts", 30)
        assert sum(gpus for gpus, *_ in world.held().values()) == 24
        check_all(world, drivers)


def test_an_urgent_latecomer_goes_first() -> None:
    with yarn_world(_SETTINGS, _QUEUES) as world:
        drivers = [run(world, "long", [gang("long", 4, 8, 20)], 1)]
        drivers += [Driver(world, "waiting").start([gang(f"waiting-{n}", 4, 8, 0.5) for n in range(3)])]
        wait_for(lambda: world.yarn.log("rm").count(" waits: ") >= 3, "three gangs to wait", 60)
        drivers += [Driver(world, "urgent").start([gang("urgent", 4, 8, 0.5, priority=5)])]
        check_all(world, drivers)
        names = {app: facts["name"] for app, facts in world.yarn.applications().items()}
        order = [names[application] for application in world.decisions()]
        assert order[:2] == ["long", "urgent"]


def test_a_gang_with_a_range_starts_on_the_idle_gpus() -> None:
    """One GPU of each node is idle: four of its eight containers start, the others once there is room."""
    with yarn_world(_SETTINGS, _QUEUES) as world:
        drivers = [run(world, "long", [gang("long", 4, 7, 25)], 1)]
        elastic = run(world, "elastic", [gang("elastic", 8, 1, 0.5, tags=["placewise.min-gpus=2"])], 2)
        assert sum(gpus for gpus, *_ in world.yarn.used().values()) == 32
        (result,) = elastic.results(120)
        decided = [
            world.decided_nodes(decision, name) or Counter()
            for name, decision in world.decisions()[result["application"]]
        ]
        ran = Counter(container["node"] for container in result["waves"][0]["containers"])
        assert decided[0] == Counter(["n1", "n2", "n3", "n4"])
        assert ran == sum(decided, Counter())
        assert world.released() == {}
        check_all(world, drivers)


def test_two_partitions_are_decided_apart() -> None:
    labels = {"yarn.node-labels.enabled": "true", "yarn.node-labels.fs-store.root-dir": "file://${hadoop.tmp.dir}/l"}
    name = "accessible-node-labels"
    queues = {
        **_QUEUES,
        f"{_QUEUE}.{name}": "fast",
        f"{_QUEUE}.{name}.fast.capacity": 100,
        f"{_QUEUE}.default.{name}": "fast",
        f"{_QUEUE}.default.{name}.fast.capacity": 100,
    }
    with yarn_world({**_SETTINGS, **labels}, queues) as world:
        world.yarn.label("fast", ["n3", "n4"])
        specs = [gang(f"plain-{n}", 2, 4, 3) for n in range(4)]
        specs += [gang(f"fast-{n}", 2, 4, 3, label="fast") for n in range(4)]
        driver = Driver(world).start(specs)
        results = driver.results(120)
        found = account(world, results)
        print(found)
        assert found.as_decided == 8
        for result in results:
            nodes = set(world.yarn.containers(result["application"]).values())
            assert nodes <= ({"n3", "n4"} if result["name"].startswith("fast") else {"n1", "n2"}), result
        check_all(world, [])


def test_without_the_jar_a_hold_queue_keeps_an_application_until_it_is_moved() -> None:
    """The weaker way of docs/yarn.md: a mapping puts applications into a queue of capacity 0, REST moves them."""
    queues = {
        f"{_QUEUE}.queues": "default,hold",
        f"{_QUEUE}.default.capacity": 100,
        f"{_QUEUE}.hold.capacity": 0,
        f"{_QUEUE}.hold.maximum-capacity": 0,
        f"{_QUEUE}.hold.maximum-applications": 10000,
        "yarn.scheduler.capacity.queue-mappings": "u:%user:root.hold",
    }
    with yarn_world({}, queues, has_adapter=False) as world:
        nodes = [
            {"id": name, "capacity": {"cpuCores": 32, "memoryGib": 16, "gpus": 8}, "state": "READY"}
            for name in world.yarn.used()
        ]
        call(world, "PUT", "nodes", {"full": True, "nodes": nodes})
        shells = [world.submit_shell(containers=1, gpus=2, command="sleep 10") for _ in range(2)]
        wait_for(lambda: len(states(world)) == 2, "two applications to be accepted", 60)
        time.sleep(5)
        assert states(world) == ["ACCEPTED", "ACCEPTED"]
        assert {app["queue"] for app in world.yarn.applications().values()} == {"root.hold"}
        for application in world.yarn.applications():
            assert admitted(world, application)
            world.yarn.put(f"apps/{application}/queue", {"queue": "root.default"})
            wait_for(lambda name=application: len(world.yarn.containers(name)) == 2, "its containers to run", 60)
            ran = world.yarn.containers(application)
            (node,) = [node for name, node in ran.items() if not name.endswith("_000001")]
            report(world, application, "STARTED", placement=[{"task": "worker-0", "node": node, "demand": _HELD}])
            (job,) = [job for job in world.cluster()["jobs"] if job["jobId"] == application]
            assert (job["state"], [task["node"] for task in job["assignments"]]) == ("RUNNING", [node])
        assert [shell.wait(timeout=120) for shell in shells] == [0, 0]
        assert {app["finalStatus"] for app in world.yarn.applications().values()} == {"SUCCEEDED"}
        for application in world.yarn.applications():
            report(world, application, "FINISHED")
        assert world.is_quiet()


def states(world: YarnWorld) -> list[str]:
    return [app["state"] for app in world.yarn.applications().values() if app["state"] not in ("NEW", "SUBMITTED")]


_HELD = {"gpus": 2, "cpuCores": 1, "memoryGib": 0.125}


def call(world: YarnWorld, method: str, path: str, body: dict[str, object]) -> Any:
    return send(method, f"http://127.0.0.1:{world.rest_port}/v1/clusters/{CLUSTER}/{path}", body)


def report(world: YarnWorld, application: str, kind: str, **more: object) -> None:
    call(world, "POST", "jobs:reportEvents", {"events": [{"jobId": application, "kind": kind, **more}]})


def admitted(world: YarnWorld, application: str) -> bool:
    job = {"id": application, "groups": [{"role": "WORKER", "count": 1, "demand": _HELD}]}
    question = {"queue": "root.default", "policy": "fifo", "jobs": [job], "place": {"requestId": f"{application}/1"}}
    (admission,) = call(world, "POST", "jobs:admitOrWait", question)["admissions"]
    return bool(admission["verdict"] == "ADMIT")


_MONITOR = "yarn.resourcemanager.monitor.capacity.preemption"
_PREEMPTION = {
    "placewise.decide-budget-ms": 3000,
    "placewise.queues": "root.default",
    "yarn.resourcemanager.scheduler.monitor.enable": "true",
    f"{_MONITOR}.monitoring_interval": 500,
    f"{_MONITOR}.max_wait_before_kill": 500,
    f"{_MONITOR}.total_preemption_per_round": 1.0,
    f"{_MONITOR}.natural_termination_factor": 1.0,
}
# `other` holds 28 of 32 GPUs, 12 more than its half; the gang wants the other half and has to wait.
_HALVES = {
    f"{_QUEUE}.queues": "default,other",
    **{f"{_QUEUE}.{queue}.capacity": 50 for queue in ("default", "other")},
    **{f"{_QUEUE}.{queue}.user-limit-factor": 4 for queue in ("default", "other")},
}


def greedy(world: YarnWorld, seconds: float) -> Driver:
    driver = Driver(world, "greedy").start([gang("greedy", 4, 7, seconds, "other", tags=["placewise=off"])])
    wait_for(lambda: sum(gpus for gpus, *_ in world.yarn.used().values()) == 28, "28 GPUs to be in use", 60)
    return driver


def preempted(world: YarnWorld) -> int:
    return sum(app["numNonAMContainerPreempted"] for app in world.yarn.applications().values())


def test_no_gang_is_held_back_in_a_queue_for_which_yarn_may_preempt() -> None:
    with yarn_world(_PREEMPTION, _HALVES) as world:
        other = greedy(world, 60)
        driver = Driver(world, "default").start([gang("default", 4, 4, 0.5)])
        wait_for(lambda: preempted(world) > 0, "YARN to pre-empt as it does without the adapter", 60)
        found = account(world, driver.results(120))
        assert len(found.released) == 1, found
        assert not says(world, " waits: ")
        assert says(world, "gangs of queue root.default are left to YARN: YARN may pre-empt containers of root.other")
        assert "error" not in other.results(120)[0]
        wait_for(world.is_quiet, "the service to hear that all containers are over", 30)


def test_a_gang_that_waits_preempts_nobody() -> None:
    """The monitor is on, and no other queue loses containers to that of the gang."""
    with yarn_world(_PREEMPTION, {**_HALVES, f"{_QUEUE}.other.disable_preemption": "true"}) as world:
        other = greedy(world, 25)
        waiting = Driver(world, "default").start([gang("default", 4, 4, 0.5)])
        wait_for(lambda: says(world, " waits: "), "the gang to wait", 60)
        time.sleep(10)  # 20 looks of the monitor
        assert preempted(world) == 0
        assert sum(gpus for gpus, *_ in world.yarn.used().values()) == 28
        check_all(world, [waiting])
        assert "error" not in other.results(60)[0]
        assert preempted(world) == 0


def test_a_gang_runs_outside_its_blacklist() -> None:
    """Two gangs refuse one half of the nodes each. A third one refuses nodes while it waits."""
    with yarn_world(_SETTINGS, _QUEUES) as world:
        halves = [["n1", "n2"], ["n3", "n4"]]
        both = Driver(world, "both")
        both.start([gang(f"both-{n}", 2, 8, 12, blacklist=refused) for n, refused in enumerate(halves)])
        wait_for(lambda: len(world.as_decided()) == 2, "both gangs to run", 60)
        late: Spec = gang("late", 1, 8, 0.5, blacklist=["n1", "n2", "n3"], blacklistAfterMs=3000)
        drivers = [both, Driver(world, "late").start([late])]
        wait_for(lambda: says(world, " waits: "), "the third gang to wait", 60)
        check_all(world, drivers)
        for result in [result for driver in drivers for result in driver.ended()]:
            refused = late["blacklist"] if result["name"] == "late" else halves[int(result["name"][-1])]
            nodes = set(world.yarn.containers(result["application"]).values())
            assert nodes
            assert not nodes & set(refused), result
        assert not says(world, "is withdrawn")


def test_other_asks_are_left_to_yarn_and_count_as_used() -> None:
    """Asks with a placement constraint, without GPUs, for one host, and those of an application that names its own
    allocator. A gang beside them is decided."""
    constraints = {"yarn.resourcemanager.placement-constraints.handler": "scheduler"}
    asks = {
        "apart": {"count": 4, "gpus": 2, "apart": True},
        "plain": {"count": 2, "gpus": 0},
        "strict": {"count": 2, "gpus": 1, "host": "n2"},
        "own": {"count": 2, "gpus": 1},
    }
    others: list[Spec] = [{"name": name, "waves": [[ask]], "seconds": 15} for name, ask in asks.items()]
    others[-1]["properties"] = {"APPLICATION_PLACEMENT_TYPE_CLASS": _YARNS_OWN}
    with yarn_world({**_SETTINGS, **constraints}, _QUEUES) as world:
        driver = Driver(world, "others").start(others)
        wait_for(lambda: sum(gpus for gpus, *_ in world.yarn.used().values()) == 12, "containers of all four", 60)
        wait_for(world.agrees, "the service to count what YARN counts", 30)
        wait_for(lambda: world.counted("PassedBy") == 1, "YARN to sample its metrics, as it does every ten seconds", 15)
        decided = run(world, "decided", [gang("decided", 2, 4, 0.5)], 1)
        results = driver.results(120)
        found = account(world, results)
        assert (len(found.never_decided), found.released, found.as_decided) == (4, [], 0)
        ran = {
            result["name"]: sorted(container["node"] for wave in result["waves"] for container in wave["containers"])
            for result in results
        }
        assert (ran["apart"], ran["strict"]) == (["n1", "n2", "n3", "n4"], ["n2", "n2"])
        check_all(world, [decided])


def test_an_application_master_with_gpus_is_left_to_yarn_and_counts_as_used() -> None:
    with yarn_world(_SETTINGS, _QUEUES) as world:
        shell = world.submit_shell(containers=2, gpus=4, command="sleep 15", master_gpus=2)
        wait_for(lambda: sum(gpus for gpus, *_ in world.yarn.used().values()) == 10, "master and gang to run", 60)
        wait_for(world.agrees, "the service to count what YARN counts", 30)
        decided = run(world, "decided", [gang("decided", 2, 4, 0.5)], 2)
        assert shell.wait(timeout=120) == 0
        check_gang(world, next(iter(world.decisions())))
        check_all(world, [decided])
        assert world.agrees()


def test_scheduling_properties_say_what_tags_say() -> None:
    """Three containers that are asked for one by one are one gang, whose model the service knows."""
    properties = {"placewise.gang": "3", "placewise.model": "resnet-50", "placewise.gpu-seconds": "60"}
    with yarn_world({**_SETTINGS, "placewise.queues": ""}, _QUEUES) as world:
        specs = [gang("declared", 3, 4, 8, properties=properties, oneByOne=True), gang("plain", 1, 4, 0.5)]
        driver = Driver(world).start(specs)
        wait_for(lambda: len(world.as_decided()) == 1, "the gang to run", 60)
        ((name, _),) = next(iter(world.decisions().values()))
        (job,) = [job for job in world.cluster()["jobs"] if job["jobId"] == name]
        print(job)
        assert len(job["assignments"]) == 3
        assert job["model"] == "resnet-50"
        found = account(world, driver.results(120))
        assert (found.as_decided, len(found.never_decided)) == (1, 1)  # the other application has no tag
        check_all(world, [])
