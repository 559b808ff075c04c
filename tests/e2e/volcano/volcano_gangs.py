"""Gangs on Volcano: vcjobs that a test makes, ends and accounts for, by the API's own records and the decision log."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.e2e.hosts.decision_log import DecisionLog, read_log, rows
from tests.e2e.kubernetes.kubernetes_cluster import environment, pod
from tests.e2e.kubernetes.kubernetes_scenario import PODS, Watched, finish
from tests.e2e.kubernetes.kubernetes_service import PlacewiseServer
from tests.e2e.volcano.volcano_cluster import VolcanoCluster, key_of, pods_of, vcjob

from placewise.v1.cluster_pb2 import GetClusterRequest, RunningJob
from placewise_client import AsyncClient

GANGS = 60
GPU = "nvidia.com/gpu"
LAST_S = 2.0
Jobs = Mapping[str, dict[str, Any]]


@dataclass
class Burst:
    """vcjobs that are made one after the other, and end some time after they are bound.

    `uids` are by name. `staying` are names of those that run on. With `may_give_up`, one that is not bound in time is
    deleted, and stands in `given_up`: Volcano alone tries a gang in one order of its pods, for ever.
    """

    cluster: VolcanoCluster
    watched: Watched
    jobs: Jobs
    pause_s: float = 0.1
    limit_s: float = 200.0
    may_give_up: bool = False
    staying: Collection[str] = ()
    uids: dict[str, str] = field(default_factory=dict)
    given_up: list[str] = field(default_factory=list)

    async def run(self) -> None:
        """Makes all, and waits until all have ended. Raises TimeoutError: one was not bound."""
        async with asyncio.TaskGroup() as ending:
            for name, job in self.jobs.items():
                self.uids[name] = await asyncio.to_thread(self.cluster.submit, job)
                ending.create_task(self._end(name))
                await asyncio.sleep(self.pause_s)

    async def _end(self, name: str) -> None:
        names = pods_of(self.jobs[name])
        try:
            await self.watched.until_bound(names, limit_s=self.limit_s)
        except TimeoutError as error:
            if not self.may_give_up:
                raise TimeoutError(f"{name} is not bound") from error
            self.given_up.append(name)
            await asyncio.to_thread(self.cluster.delete, name, self.uids[name])
            return
        await asyncio.to_thread(finish, self.cluster.plane, names, "Running")
        await asyncio.sleep(LAST_S)
        if name not in self.staying:
            await asyncio.to_thread(finish, self.cluster.plane, names)

    async def ran(self) -> dict[str, Counter[str]]:
        """Pods by node of each gang that was made, by its id at the service; no node of pods that were deleted."""
        items = await asyncio.to_thread(self.cluster.pods)
        nodes = {item["metadata"]["name"]: item["spec"].get("nodeName", "") for item in items}
        return {
            key_of(name, uid): Counter(nodes.get(pod, "") for pod in pods_of(self.jobs[name]))
            for name, uid in self.uids.items()
        }


def mixed(count: int = GANGS, seed: int = 20) -> dict[str, dict[str, Any]]:
    """Half of the gangs have 2 to 4 pods, a fifth has a pod of another role and size."""
    rng, made = random.Random(seed), {}
    for number in range(count):
        size = rng.randint(2, 4) if number % 2 else 1
        tasks = {"worker": (size, rng.choice([1, 2, 4, 8]))}
        if number % 5 == 0:
            tasks["head"] = (1, rng.choice([1, 2]))
        made[f"g{number}"] = vcjob(f"g{number}", tasks)
    return made


def fill(cluster: VolcanoCluster, nodes: int, gpus: int = 3) -> None:
    """Pods of nobody's on the first nodes, so that these are partly full."""
    fill_nodes(cluster, range(nodes), gpus)


def fill_nodes(cluster: VolcanoCluster, numbers: Iterable[int], gpus: int = 3) -> None:
    """A pod of nobody's on each of these nodes."""
    for number in numbers:
        document = pod(f"filler-{number}", gpus=gpus)
        document["spec"]["nodeName"] = f"n{number:02d}"
        cluster.plane.request("POST", PODS, document)


async def read_starts(placewise: PlacewiseServer, cluster: str, keys: set[str]) -> DecisionLog:
    """The log, once it has the starts of these gangs, or after some time as it is."""
    variables = {**environment(), "PLACEWISE_STATE_DIR": str(placewise.state_dir)}
    for attempt in range(10):
        folder = placewise.state_dir.parent / f"export-{cluster}-{attempt}"
        log = await asyncio.to_thread(read_log, folder, cluster, variables)
        if keys <= log.starts.keys():
            break
        await asyncio.sleep(1)
    return log


def last_rows(placewise: PlacewiseServer, cluster: str, table: str, *columns: str) -> list[dict[str, Any]]:
    """A table of the last export of the log."""
    folder = max(placewise.state_dir.parent.glob(f"export-{cluster}-*"), key=lambda path: path.stat().st_mtime)
    return list(rows(folder, table, *columns))


def repeated(placewise: PlacewiseServer, cluster: str, *, has_outage: bool = False) -> list[str]:
    """Starts and ends that the last export of the log has more than once.

    After an outage of the service (`has_outage`), a start may stand there again by the same decision: a service that
    was killed may have lost it.
    """
    told = last_rows(placewise, cluster, "outcomes", "job_id", "kind", "decision_id", "reason")
    told = [row for row in told if not (row["reason"] or "").startswith("placement withdrawn")]
    events = [(row["job_id"], row["kind"].upper(), row["decision_id"]) for row in told]
    if has_outage:
        events = [event for n, event in enumerate(events) if event[1] != "STARTED" or event not in events[:n]]
    found = Counter((job, kind) for job, kind, _ in events)
    kinds = ("STARTED", "FINISHED", "FAILED", "CANCELLED")
    return [f"{job} {kind} {count} times" for (job, kind), count in found.items() if kind in kinds and count > 1]


async def gpus_by_service(placewise: PlacewiseServer, cluster: str) -> Counter[str]:
    """GPUs per node that the service counts as taken by running jobs."""
    async with AsyncClient(placewise.target) as client:
        answer = await client.get_cluster(GetClusterRequest(cluster=cluster, full=True))
    taken: Counter[str] = Counter()
    for job in answer.jobs:
        if job.state == RunningJob.RUNNING:
            for task in job.assignments:
                taken[task.node] += round(task.demand.gpus or len(task.gpu_indices))
    return +taken


async def reserved(placewise: PlacewiseServer, cluster: str) -> dict[str, int]:
    """GPUs that the service holds for jobs that have not started, by job."""
    async with AsyncClient(placewise.target) as client:
        answer = await client.get_cluster(GetClusterRequest(cluster=cluster, full=True))
    return {
        job.job_id: sum(round(task.demand.gpus or len(task.gpu_indices)) for task in job.assignments)
        for job in answer.jobs
        if job.state == RunningJob.RESERVED
    }


def gpus_by_host(cluster: VolcanoCluster) -> Counter[str]:
    """GPUs per node of the pods that are bound and have not ended."""
    taken: Counter[str] = Counter()
    for item in cluster.pods():
        if item["status"].get("phase") not in ("Succeeded", "Failed") and item["spec"].get("nodeName"):
            for container in item["spec"]["containers"]:
                taken[item["spec"]["nodeName"]] += int(container["resources"]["requests"].get(GPU, 0))
    return +taken
