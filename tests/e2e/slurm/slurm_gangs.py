"""Gangs for a real Slurm, the nodes on which they ran, and the books of the service beside those of Slurm."""

from __future__ import annotations

import datetime
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tests.e2e.hosts.decision_log import Places
from tests.e2e.slurm.slurm_cluster import SlurmCluster
from tests.e2e.slurm.slurm_world import SlurmWorld

from placewise_client import Client
from placewise_client.errors import NotFoundError

Held = tuple[int, int, int]
"""GPUs, cores and MiB."""
_GPUS = re.compile(r"gpu(?::[\w.]+)?:(\d+)")
_RUNS = re.compile(r" JobState=(?:RUNNING|COMPLETING|CONFIGURING) ")
_ALLOCATED = re.compile(r" Nodes=(\S+) CPU_IDs=(\S+) Mem=(\d+) GRES=(\S*)")


def submit_gangs(
    world: SlurmWorld, count: int, rng: random.Random, longest_s: float = 3.0, options: Sequence[str] = ()
) -> list[int]:
    """Mixed gangs, one in ten of them elastic."""
    ids = []
    for number in range(count):
        nodes, gpus = rng.choice([1, 1, 2, 2, 4, 8]), rng.choice([1, 2, 4, 8])
        wanted = "-N1-4" if number % 10 == 0 else f"-N{nodes}"
        work = f"sleep {rng.uniform(0.2, longest_s):.2f}"
        comment = "--comment=model=ResNet-50 epochs=3 batch=256"
        ids.append(world.slurm.submit(work, wanted, f"--gres=gpu:{gpus}", comment, *options))
    return ids


def key_of(job_id: int, record: Mapping[str, str]) -> str:
    """The job's name at the service."""
    restarts = int(record.get("Restarts", "0"))
    return f"{job_id}.r{restarts}" if restarts else str(job_id)


def ran(world: SlurmWorld, jobs: Mapping[int, Mapping[str, str]]) -> dict[str, Places]:
    """Where each job ran, by Slurm's own records."""
    return {key_of(job_id, record): Places(world.slurm.expand(record["NodeList"])) for job_id, record in jobs.items()}


def ended(jobs: Mapping[int, Mapping[str, str]]) -> dict[str, float]:
    """When each job ended, by Slurm's own records: whole seconds since the epoch, rounded down."""
    return {
        key_of(job_id, record): datetime.datetime.fromisoformat(record["EndTime"]).timestamp()
        for job_id, record in jobs.items()
    }


def check_places(
    world: SlurmWorld, client: Client, jobs: dict[int, dict[str, str]], lost: list[str] | None = None
) -> int:
    """Every job that has a decision ran exactly on the nodes of its last one. Returns how many had one.

    A service that is killed loses the decisions it had not written out yet: their ids go to `lost`, if given, as nobody
    knows their content any more.
    """
    decisions = world.decisions()
    wrong, checked = [], 0
    for job_id, record in jobs.items():
        key = key_of(job_id, record)
        if key not in decisions or record["JobState"] == "CANCELLED":
            continue
        checked += 1
        try:
            wanted = sorted({a.node for a in world.decided(client, decisions[key][-1], key)})
        except NotFoundError:
            if lost is None:
                raise
            lost.append(decisions[key][-1])
            continue
        really = sorted(world.slurm.expand(record["NodeList"]))
        if wanted != really:
            wrong.append((key, wanted, really))
    assert wrong == []
    return checked


def wait_until_quiet(world: SlurmWorld, client: Client) -> None:
    """Nothing runs, and nothing is reserved for a job that is over."""

    def is_quiet() -> bool:
        return not world.cluster(client).jobs

    SlurmCluster.wait_for(is_quiet, "the service to hear that all jobs are over", 30)


def slurm_holds(world: SlurmWorld) -> dict[str, Held]:
    """By node, the allocations of the jobs that run there. The nodes' own records kept the GPUs of jobs that had
    left a lost node, beside 0 cores (22.05)."""
    found: dict[str, Counter[str]] = {}
    for node, cores, mib, gres in allocations(world):
        held = {"gpus": sum(map(int, _GPUS.findall(gres))), "cores": len(cores_of(cores)), "mib": int(mib)}
        found.setdefault(node, Counter()).update(held)
    return {node: (held["gpus"], held["cores"], held["mib"]) for node, held in found.items()}


def allocations(world: SlurmWorld) -> Iterator[tuple[str, str, str, str]]:
    """Node, cores, MiB and generic resources of every job that runs there, in Slurm's own words."""
    for line in world.slurm.run("scontrol", "-o", "-d", "show", "job").splitlines():
        for nodes, cores, mib, gres in _ALLOCATED.findall(line) if _RUNS.search(line) else ():
            yield from ((node, cores, mib, gres) for node in world.slurm.expand(nodes))


def cores_of(ranges: str) -> list[int]:
    """ "0-1,4" as numbers."""
    bounds = [part.partition("-") for part in ranges.split(",")]
    return [core for first, _, last in bounds for core in range(int(first), int(last or first) + 1)]


def service_holds(world: SlurmWorld, client: Client) -> dict[str, Held]:
    """The same of the service's account, reservations included."""
    found: dict[str, Counter[str]] = {}
    for job in world.cluster(client).jobs:
        for task in job.assignments:
            amounts = {"gpus": task.demand.gpus, "cores": task.demand.cpu_cores, "mib": task.demand.memory_gib * 1024}
            found.setdefault(task.node, Counter()).update({name: round(amount) for name, amount in amounts.items()})
    return {node: (held["gpus"], held["cores"], held["mib"]) for node, held in found.items()}


def check_books(world: SlurmWorld, client: Client, least_gpus: int = 0) -> None:
    """The service holds what Slurm holds, with difference 0, and at least so many GPUs."""

    def are_equal() -> bool:
        held = service_holds(world, client)
        return held == slurm_holds(world) and sum(gpus for gpus, *_ in held.values()) >= least_gpus

    try:
        SlurmCluster.wait_for(are_equal, "the service and Slurm to agree", 40)
    except TimeoutError as error:
        jobs = [(job.job_id, [task.node for task in job.assignments]) for job in world.cluster(client).jobs]
        held = f"{service_holds(world, client)} of {jobs} at the service, {slurm_holds(world)} at Slurm"
        raise AssertionError(f"{held}\n{world.told_of(world.slurm.jobs())}") from error
