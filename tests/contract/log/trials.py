"""Hosts of clusters where a kill switch or a canary decides who places a job."""

from pathlib import Path

from tests.contract.log.replicas import CLUSTER, EXPLORING, Host
from tests.fakes.bundles import copy_bundle, rewrite
from tests.fakes.policy_net import write_policy

from placewise_core.domain.cluster import ClusterSettings
from placewise_core.policies.trial.arms import Arms
from placewise_models.bundle import MANIFEST

CANARY = "next"


class KilledHost(Host):
    """A heuristic that draws answers in place of the learned policies, and the usual explorers go on."""

    def settings(self) -> ClusterSettings:
        return ClusterSettings(exploration_rate=0.4)

    async def begin(self) -> None:
        await self.replicas[0].bundles.set_kill_switch("random", CLUSTER)
        await self.replicas[1].bundles.refresh()


class UnexploredHost(KilledHost):
    """The cluster names explorers, none of which goes on."""

    def settings(self) -> ClusterSettings:
        return Host(self.replicas, EXPLORING, 0).settings()


class CanaryHost(Host):
    """Another net, and no completion of sharing, decide half of the jobs on a cluster that explores."""

    @classmethod
    def bundles(cls, folder: Path) -> Path:
        made = copy_bundle(folder / CANARY)
        write_policy(made, seed=1)
        for file in made.glob("sharing.*"):
            file.unlink()
        rewrite(made, files=dict.fromkeys(file.name for file in made.iterdir() if file.name != MANIFEST))
        return folder

    def settings(self) -> ClusterSettings:
        return Host(self.replicas, EXPLORING, 0).settings()

    async def begin(self) -> None:
        await self.replicas[0].bundles.set_canary(CANARY, CLUSTER, Arms("", 0.5))
        await self.replicas[1].bundles.refresh()
