"""Shares of a divisible task in real containers of a real YARN. `make e2e-yarn` runs this.

The variables are read from the containers' output, the shares from the service's record of the decision.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
from tests.e2e.yarn.yarn_gangs import Driver, account
from tests.e2e.yarn.yarn_world import CLUSTER, MARKS, YarnWorld, yarn_world

pytestmark = MARKS
_SETTINGS = {"placewise.decide-budget-ms": 3000}
_LISTENER = {"yarn.nodemanager.container-state-transition-listener.classes": "placewise.yarn.ShareListener"}
_SPLIT = re.compile(r"Placewise: gang (\S+) is split into \d+ shares, decision (\S+)")
_SHARE = re.compile(r"^PLACEWISE_SHARE_(\w+)=(.*)$", re.MULTILINE)
# GPU by node, and its scale.
Cut = dict[tuple[str, str], float]


def decided(world: YarnWorld) -> Cut:
    """The only cut that the service has decided."""
    ((_, decision),) = _SPLIT.findall(world.yarn.log("rm"))
    record = world.ask(f"v1/clusters/{CLUSTER}/decisions/{decision}")
    return {(share["node"], share["unit"]): share["scale"] for share in record["partition"]["shares"]}


def check_shares(world: YarnWorld, application: str, containers: Iterable[str], gpus: list[int]) -> None:
    """Every GPU's share is in one container on its node. The containers have so many GPUs, in ascending order."""
    cut, nodes = decided(world), world.yarn.containers(application)
    seen: list[tuple[str, str]] = []
    sizes = []
    for container in containers:
        share = dict(_SHARE.findall(world.yarn.output(container)))
        units = [(nodes[container], unit) for unit in share["UNIT"].split(",")]
        assert float(share["SCALE"]) == pytest.approx(sum(cut[unit] for unit in units))
        assert float(share["FRACTION"]) == pytest.approx(float(share["SCALE"]) / sum(cut.values()))
        assert float(share["SECONDS"]) > 0
        seen += units
        sizes.append(len(units))
    assert sorted(sizes) == gpus
    assert sorted(seen) == sorted(cut)
    assert sum(cut.values()) == pytest.approx(100_000)


def test_a_listener_on_the_nodes_hands_out_shares() -> None:
    """Distributed shell itself knows nothing of them."""
    with yarn_world({**_SETTINGS, **_LISTENER}) as world:
        shell = world.submit_shell(containers=5, gpus=3, command="env", tags="placewise.divisible=100000")
        assert shell.wait(timeout=180) == 0
        (application,) = world.yarn.applications()
        containers = sorted(world.yarn.containers(application))
        check_shares(world, application, containers[1:], [3] * 5)


def test_without_the_listener_an_application_reads_the_shares_of_its_containers() -> None:
    with yarn_world(_SETTINGS) as world:
        asks = [{"count": 2, "gpus": 1}, {"count": 1, "gpus": 6}]
        tags = ["placewise.divisible=100000", "placewise.serial=5", "placewise.kind=render"]
        spec = {"name": "render", "tags": tags, "waves": [asks], "seconds": 0.5, "showsTags": True}
        (result,) = results = Driver(world).start([spec]).results(120)
        assert account(world, results).as_decided == 1
        (wave,) = result["waves"]
        check_shares(world, result["application"], [one["id"] for one in wave["containers"]], [1, 1, 6])
