"""Placewise on a real YARN: one ResourceManager and four NodeManagers with 8 GPUs each. `make e2e-yarn` runs this.

Where containers ran is read from the NodeManagers' log folders, where they should run from the service's record of the
decision. The prints are the figures.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest
from tests.e2e.yarn.yarn_artefacts import HADOOP, JAR, missing
from tests.e2e.yarn.yarn_cluster import wait_for
from tests.e2e.yarn.yarn_world import YarnWorld, yarn_world

_LACKING = missing() or ("" if JAR.exists() and HADOOP.exists() else "run make e2e-yarn, which builds the jar")
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.e2e_heavy,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        bool(_LACKING) and "PLACEWISE_TEST_REQUIRE_SCHEDULERS" not in os.environ, reason=f"YARN: {_LACKING}"
    ),
]
# On a shared machine an answer can take longer than the default of 100 ms, which the tests of faults use.
_PATIENT = {"placewise.decide-budget-ms": 3000}


@pytest.fixture
def world() -> Iterator[YarnWorld]:
    with yarn_world(_PATIENT) as world:
        yield world


def check_gang(world: YarnWorld, application: str) -> None:
    """Its containers ran exactly on the nodes of its decision; the first container is the ApplicationMaster's."""
    ((gang, decision),) = world.decisions()[application]
    ran = {name: node for name, node in world.yarn.containers(application).items() if not name.endswith("_000001")}
    assert Counter(ran.values()) == world.decided_nodes(decision, gang)


def test_distributed_shells_run_where_the_service_said(world: YarnWorld) -> None:
    clients = [world.submit_shell(containers=4, gpus=2), world.submit_shell(containers=2, gpus=8)]
    assert [client.wait(timeout=180) for client in clients] == [0, 0]
    applications = world.yarn.applications()
    assert [app["finalStatus"] for app in applications.values()] == ["SUCCEEDED", "SUCCEEDED"]
    for application in applications:
        check_gang(world, application)
    assert world.released() == {}
    wait_for(world.is_quiet, "the service to hear that all containers are over", 30)
