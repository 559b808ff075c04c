"""Gangs for a real YARN, and the account of where they ran against where they should have run."""

from __future__ import annotations

import json
import math
import random
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.e2e.hosts import decision_log
from tests.e2e.yarn.yarn_artefacts import DRIVER, HADOOP
from tests.e2e.yarn.yarn_world import YarnWorld

Spec = dict[str, Any]
UNBEGUN = "died with its node before it began"
"""Place of a container that has no log folder."""


def mixed(count: int, rng: random.Random, longest_s: float = 3.0, every_ms: int = 150) -> list[Spec]:
    """Half of the gangs have 2 to 4 containers, a fifth has unequal asks."""
    specs = []
    for number in range(count):
        tasks = rng.randint(2, 4) if rng.random() < 0.5 else 1
        asks = [{"count": tasks, "gpus": rng.choice([1, 2, 4, 8] if tasks < 4 else [1, 2, 4])}]
        if number % 5 == 0:
            asks.append({"count": 1, "gpus": rng.choice([gpus for gpus in (1, 2) if gpus != asks[0]["gpus"]])})
        seconds = round(rng.uniform(0.3, longest_s), 2)
        specs.append({"name": f"gang-{number}", "delayMs": number * every_ms, "waves": [asks], "seconds": seconds})
    return specs


@dataclass
class Driver:
    """One JVM with all applications, started by `start`."""

    world: YarnWorld
    name: str = "driver"
    process: subprocess.Popen[bytes] | None = None

    def start(self, specs: Sequence[Spec]) -> Driver:
        path = self.world.root / f"{self.name}.json"
        path.write_text(json.dumps(specs))
        java = self.world.yarn.java("rm", [DRIVER, f"{HADOOP}/*"], 384)
        with (
            (self.world.root / f"{self.name}.out").open("wb") as out,
            (self.world.root / "driver.log").open("ab") as log,
        ):
            self.process = subprocess.Popen(
                [*java, "placewise.yarn.GangDriver", str(path)], stdout=out, stderr=log, cwd=self.world.root
            )
        self.world.clients.append(self.process)
        self.world.submitted += len(specs)
        return self

    def results(self, timeout_s: float) -> list[dict[str, Any]]:
        """One per application. Raises TimeoutExpired if they do not all end."""
        assert self.process is not None
        try:
            self.process.wait(timeout=timeout_s)
        finally:
            self.process.kill()
        return self.ended()

    def ended(self) -> list[dict[str, Any]]:
        """Those that have ended so far."""
        text = (self.world.root / f"{self.name}.out").read_text()
        return [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]


@dataclass
class Account(decision_log.Account):
    """All gangs that were submitted: the containers' log folders against the service's decisions."""

    waits_ms: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        waits = sorted(self.waits_ms) or [0.0]
        middle, longest = waits[len(waits) // 2], waits[-1]
        return f"{super().__str__()}; ask to last container: p50 {middle:.0f} ms, longest {longest:.0f} ms"


def account(world: YarnWorld, results: Sequence[dict[str, Any]]) -> Account:
    """Joins containers with decisions by the decision's id, wave by wave."""
    found, decisions, released = Account(), world.decisions(), world.released()
    for result in results:
        application = result["application"]
        assert "error" not in result, result
        ran = world.yarn.containers(application)
        gangs = decisions.get(application, [])
        noted = [gang for gang in released if application.split("_", 1)[1] in gang]
        for number, wave in enumerate(result["waves"]):
            found.waits_ms.append(wave["allocatedMs"] - wave["askedMs"])
            name = f"{application} wave {number + 1}"
            really = Counter(ran.get(container["id"], UNBEGUN) for container in wave["containers"])
            decided = [pair for pair in gangs if f"/w{number + 1}." in pair[0]]
            if not decided or decided[-1][0] in released:
                (found.released if noted else found.never_decided).append(name)
            elif (nodes := world.decided_nodes(decided[-1][1], decided[-1][0])) is None:
                found.unwritten.append(name)
            elif really == nodes:
                found.as_decided += 1
            else:
                found.elsewhere.append(f"{name}: {dict(really)} for {decided}")
    return found


def check_gang(world: YarnWorld, application: str, attempts: int = 1) -> None:
    """Each attempt of a distributed shell ran exactly on the nodes of its decision. Its first container is the
    ApplicationMaster's."""
    pairs = world.decisions()[application]
    assert len(pairs) == attempts
    for number, (gang, decision) in enumerate(pairs, 1):
        ran = [
            node
            for name, node in world.yarn.containers(application).items()
            if name.split("_")[-2] == f"{number:02}" and not name.endswith("_000001")
        ]
        assert Counter(ran) == world.decided_nodes(decision, gang)


def ended_s(world: YarnWorld, results: Sequence[dict[str, Any]]) -> dict[str, float]:
    """When the last container of each decided gang ended, by the NodeManagers."""
    ended, decisions = world.yarn.ended_s(), world.decisions()
    found = {}
    for result in results:
        for gang, _ in decisions.get(result["application"], []):
            wave = result["waves"][int(gang.partition("/w")[2].partition(".")[0]) - 1]
            found[gang] = max(ended.get(container["id"], math.inf) for container in wave["containers"])
    return found


def check_none_lost_or_doubled(world: YarnWorld, results: Sequence[dict[str, Any]] = (), killed: int = 0) -> str:
    """Every application that was submitted and not `killed` has ended well. Returns both counts in words.

    `results`: of a test that kills the service, with which ends of gangs die.
    """
    succeeded = [app for app in world.yarn.applications().values() if app["finalStatus"] == "SUCCEEDED"]
    lost, doubled = world.submitted - killed - len(succeeded), world.log().doubled(ended_s(world, results))
    assert (lost, doubled, world.started_twice()) == (0, [], [])
    return f"{lost} lost, {len(doubled)} doubled"
