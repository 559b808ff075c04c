"""MapReduce, whose containers are decided one by one, on a real YARN. `make e2e-yarn` runs this."""

from __future__ import annotations

import subprocess
from collections import Counter

from tests.e2e.yarn.yarn_artefacts import HADOOP, MAPREDUCE, fetch_mapreduce
from tests.e2e.yarn.yarn_cluster import NODES, YarnCluster, wait_for, write_properties
from tests.e2e.yarn.yarn_world import MARKS, YarnWorld, yarn_world

pytestmark = MARKS
_MAPS = 14
_SHUFFLE = "yarn.nodemanager.aux-services"
_SETTINGS = {
    "placewise.decide-budget-ms": 3000,
    _SHUFFLE: "mapreduce_shuffle",  # a map task does not start without it
    f"{_SHUFFLE}.mapreduce_shuffle.class": "org.apache.hadoop.mapred.ShuffleHandler",
}


class ShufflingCluster(YarnCluster):
    """Nodes that serve what map tasks have written, each on a port of its own."""

    NODE_CLASSES = (f"{MAPREDUCE}/*",)

    def write(self) -> None:
        super().write()
        for node in NODES:
            write_properties(self.configuration(node) / "mapred-site.xml", {"mapreduce.shuffle.port": 0})


def sleep_job(world: YarnWorld, maps: int, gpus: int) -> None:
    """A job of so many map tasks. Raises CalledProcessError if it fails."""
    classes = [f"{MAPREDUCE}/*", f"{HADOOP}/*"]
    settings = {
        "mapreduce.framework.name": "yarn",
        "mapreduce.application.classpath": ",".join([str(world.yarn.configuration("rm")), *classes]),
        "yarn.app.mapreduce.am.staging-dir": world.root / "staging",
        "yarn.app.mapreduce.am.resource.memory-mb": 512,
        "mapreduce.map.resource.memory-mb": 256,
        "mapreduce.map.resource.yarn.io/gpu": gpus,
        "mapreduce.map.speculative": "false",
        "yarn.app.mapreduce.am.command-opts": "-Xmx200m -Dlog4j.configuration=log4j.properties",
        "mapreduce.map.java.opts": "-Xmx128m",
    }
    options = [f"-D{name}={value}" for name, value in settings.items()]
    command = [*world.yarn.java("rm", classes, 128), "org.apache.hadoop.mapreduce.SleepJob", *options]
    with (world.root / "client.log").open("ab") as log:
        subprocess.run(
            [*command, "-m", str(maps), "-r", "0", "-mt", "2000"],
            stdout=log,
            stderr=log,
            cwd=world.root,
            check=True,
            timeout=240,
        )


def test_map_tasks_are_decided_one_by_one() -> None:
    """Together they ask for 56 of 32 GPUs: as one gang they would never start."""
    fetch_mapreduce()
    with yarn_world(_SETTINGS, kind=ShufflingCluster) as world:
        sleep_job(world, _MAPS, gpus=4)
        ((application, facts),) = world.yarn.applications().items()
        assert (facts["applicationType"], facts["finalStatus"]) == ("MAPREDUCE", "SUCCEEDED")
        decided = [world.decided_nodes(decision, gang) for gang, decision in world.decisions()[application]]
        assert [sum((nodes or Counter()).values()) for nodes in decided] == [1] * _MAPS
        containers = world.yarn.containers(application)
        ran = Counter(node for name, node in containers.items() if not name.endswith("_000001"))
        assert ran == sum((nodes or Counter() for nodes in decided), Counter())
        assert world.released() == {}
        wait_for(world.is_quiet, "the service to hear that all containers are over", 30)
