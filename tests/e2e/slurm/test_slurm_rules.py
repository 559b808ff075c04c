"""Every REST version that a slurmrestd serves, jobs that stay Slurm's, and rules of Slurm's own, on a real Slurm.

`make e2e-slurm SLURM=…` runs this beside test_slurm_e2e.py.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.e2e.slurm.slurm_accounting import NoAccountingError, missing
from tests.e2e.slurm.slurm_cluster import SlurmCluster, running
from tests.e2e.slurm.slurm_gangs import allocations
from tests.e2e.slurm.slurm_release import Release
from tests.e2e.slurm.slurm_world import SlurmWorld, slurm_world

from placewise.v1.cluster_pb2 import RunningJob
from placewise_client import Client
from placewise_slurm.gres import allocated_indices
from placewise_slurm.http import JsonHttp
from placewise_slurm.rest import NoVersionError, SlurmRest
from placewise_slurm.rest.known import KnownJobs
from placewise_slurm.translate import placement
from placewise_slurm.versions import VERSIONS, Update

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.e2e_heavy,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        bool(Release.chosen().missing()) and "PLACEWISE_TEST_REQUIRE_SCHEDULERS" not in os.environ,
        reason=f"Slurm is not installed: {Release.chosen().missing()}",
    ),
]

SERVED = {
    "22.05": ["v0.0.38"],
    "24.11": ["v0.0.40", "v0.0.41", "v0.0.42"],
    "26.05": ["v0.0.42", "v0.0.43", "v0.0.44", "v0.0.45"],
}
# The first versions that list the states of jobs, and the GPUs of each job.
FIRST_STATES, FIRST_LAYOUTS = "v0.0.40", "v0.0.44"


def test_every_version_that_slurmrestd_serves_reads_and_places_a_job() -> None:
    root = Path(tempfile.mkdtemp(prefix="placewise-slurm-"))
    with running(SlurmCluster(root, nodes=2)) as slurm:
        served = [name for name in VERSIONS if asyncio.run(is_served(slurm, name))]
        assert served == SERVED[slurm.release.series]
        auth = re.findall(r"AuthType\s*= (\S+)", slurm.run("scontrol", "show", "config"))
        assert auth == ["auth/slurm" if slurm.release.series >= "26.05" else "auth/none"]
        for name in served:
            job_id = slurm.submit("sleep 60", "-N2", "--gres=gpu:2", "--hold")
            print(f"\n{name}: {asyncio.run(place_and_read(slurm, name, job_id))}", end="")
            slurm.cancel(job_id)
    shutil.rmtree(root, ignore_errors=True)


async def is_served(slurm: SlurmCluster, name: str) -> bool:
    rest = SlurmRest(JsonHttp(slurm.rest.rest, slurm.rest.headers), wanted=name)
    try:
        await rest.agree()
    except NoVersionError:
        return False
    finally:
        await rest.http.close()
    return True


async def place_and_read(slurm: SlurmCluster, name: str, job_id: int) -> str:
    """The job is held. Returns the paths that not every version serves."""
    rest = SlurmRest(JsonHttp(slurm.rest.rest, slurm.rest.headers), wanted=name)
    await rest.agree()
    assert (rest.has_states, rest.has_layouts) == (name >= FIRST_STATES, name >= FIRST_LAYOUTS)
    known = KnownJobs(rest)
    assert [node.name for node in await rest.nodes()] == ["n1", "n2"]
    assert [(job.is_held, job.is_pending) for job in (await known.look(afresh=True))[0] if job.id == job_id] == [
        (True, True)
    ]
    await rest.update(job_id, Update(False, ["n1", "n2"], "gres:gpu:3"))
    await asyncio.to_thread(
        slurm.wait_for, lambda: slurm.jobs()[job_id]["JobState"] == "RUNNING", f"job {job_id} by {name}", 30
    )
    jobs, fresh = await known.look(afresh=False)
    (job,) = [job for job in jobs if job.id == job_id]
    assert {a.node: list(a.gpu_indices) for a in placement(job)} == {"n1": [0, 1, 2], "n2": [0, 1, 2]}
    assert (job.gpu_layout is not None) == rest.has_layouts
    again, read_again = await known.look(afresh=False)
    assert {job.id: job.state for job in again} == {job.id: job.state for job in jobs}
    if rest.has_states:
        assert [job.id for job in fresh] == [job_id]
        assert read_again == []
    assert await rest.job(99_999) is None
    await rest.http.close()
    return f"{'job states' if rest.has_states else 'no job states'}, {'layouts' if rest.has_layouts else 'no layouts'}"


def taken(world: SlurmWorld, client: Client) -> Counter[str]:
    """GPUs in use by node, as the service has them."""
    found = Counter[str]()
    for job in world.cluster(client).jobs:
        for assignment in job.assignments:
            found[assignment.node] += int(assignment.demand.gpus)
    return found


def given(world: SlurmWorld) -> Counter[str]:
    """The same, as Slurm has them: a GPU counts if a job has a share of it."""
    found = Counter[str]()
    for node, _, _, gres in allocations(world):
        found[node] += len(allocated_indices(gres))
    return found


def test_arrays_heterogeneous_jobs_and_parts_of_gpus_stay_slurms_and_are_counted() -> None:
    with slurm_world(nodes=4, shards=32) as world, Client(f"127.0.0.1:{world.grpc_port}") as client:
        slurm, work = world.slurm, "sleep 25"
        slurm.submit(work, "--array=1-2", "-N1", "--gres=gpu:3", "-p", "main")
        slurm.submit(work, "-N1", "--gres=gpu:2", "-p", "main", ":", "-N1", "--gres=gpu:1", "-p", "main")
        slurm.submit(work, "-N1", "--gres=gpu:8", "-x", "n1,n2,n3")
        slurm.submit(work, "-N1", "--gres=shard:4", "-p", "main")
        wanted = 6

        def are_running() -> bool:
            jobs = slurm.jobs()
            return sum(job["JobState"] == "RUNNING" for job in jobs.values()) == wanted

        SlurmCluster.wait_for(are_running, "all to run", 30)
        SlurmCluster.wait_for(
            lambda: sum(job.state == RunningJob.RUNNING for job in world.cluster(client).jobs) == wanted,
            "the service to hear of all",
            20,
        )
        assert world.decisions() == {}
        in_use = given(world)
        assert sum(in_use.values()) == 3 + 3 + 2 + 1 + 8 + 1, slurm.run("scontrol", "-d", "show", "job")
        assert taken(world, client) == in_use
        fitting = slurm.submit("true", "-N1", "--gres=gpu:8")
        world.wait_until_done([fitting], 60)
        assert str(fitting) in world.decisions()
        print(f"\nleft to Slurm and counted: {dict(taken(world, client))}")


@contextmanager
def rules_world() -> Iterator[tuple[SlurmWorld, Client]]:
    with slurm_world(nodes=2) as world, Client(f"127.0.0.1:{world.grpc_port}") as client:
        yield world, client


def check_left(world: SlurmWorld, client: Client, job_id: int, reason: str, *, why: str = "blocked") -> None:
    """Slurm has the job, says why it waits, and nothing is reserved for it."""
    SlurmCluster.wait_for(lambda: job_id in world.left_to_slurm(), f"job {job_id} to be left to Slurm", 20)
    assert world.left_to_slurm()[job_id] == why
    SlurmCluster.wait_for(lambda: not reserved(world, client), "nothing to be reserved", 5)
    job = world.slurm.jobs()[job_id]
    assert (job["JobState"], job["ReqNodeList"]) == ("PENDING", "(null)")
    SlurmCluster.wait_for(lambda: reason in world.slurm.jobs()[job_id]["Reason"], f"Slurm to say {reason}", 10)
    print(f"\njob {job_id}: {world.slurm.jobs()[job_id]['Reason']}, nothing reserved", end="")


def test_nothing_is_reserved_for_a_job_that_a_partition_or_a_reservation_keeps_waiting() -> None:
    with rules_world() as (world, client):
        slurm = world.slurm
        slurm.run("scontrol", "create", "partitionname=short", "nodes=ALL", "maxtime=1", "state=up")
        long = slurm.submit("true", "-N1", "--gres=gpu:8", "-p", "short", "-t", "10", "--comment=placewise")
        check_left(world, client, long, "PartitionTimeLimit")
        slurm.run("scontrol", "update", "partitionname=short", "maxtime=30")
        coming = ["starttime=now+120", "duration=60", "nodes=ALL", f"users={slurm.user}"]
        slurm.run("scontrol", "create", "reservation", "reservationname=works", "flags=maint", *coming)
        through = slurm.submit("true", "-N2", "--gres=gpu:8", "-t", "10")
        check_left(world, client, through, "Reserved")
        slurm.run("scontrol", "delete", "reservationname=works")
        slurm.run("scontrol", "create", "reservation", "reservationname=course", *coming)
        across = slurm.submit("true", "-N2", "--gres=gpu:8", "-t", "10")
        check_left(world, client, across, "Reserved")  # "for maintenance", says Slurm
        slurm.run("scontrol", "delete", "reservationname=course")
        jobs = world.wait_until_done([long, through, across], 90)
        assert {job["JobState"] for job in jobs.values()} == {"COMPLETED"}


def reserved(world: SlurmWorld, client: Client) -> set[str]:
    """Jobs that have a place and do not run there yet."""
    return {job.job_id for job in world.cluster(client).jobs if job.state != RunningJob.RUNNING}


def test_nothing_is_reserved_for_a_job_that_slurm_puts_behind_others() -> None:
    """The other job waits for both nodes, one of which is free for two minutes: a job of ten may not pass it."""
    with rules_world() as (world, client):
        slurm = world.slurm
        first = slurm.submit("sleep 30", "-N1", "--gres=gpu:8", "-p", "plain", "-t", "2")
        SlurmCluster.wait_for(lambda: slurm.jobs()[first]["JobState"] == "RUNNING", "the first job", 30)
        other = slurm.submit("true", "-N2", "--gres=gpu:8", "-p", "plain", "-t", "2")
        behind = slurm.submit("true", "-N1", "--gres=gpu:8", "-p", "plain", "-t", "10", "--comment=placewise")
        check_left(world, client, behind, "Priority", why="outranked")
        assert f"job {behind} did not start in time" not in world.bridge_log()
        jobs = world.wait_until_done([first, other, behind], 90)
        assert {job["JobState"] for job in jobs.values()} == {"COMPLETED"}


def test_nothing_is_reserved_for_a_job_beyond_a_limit_of_its_qos() -> None:
    if missing() and "PLACEWISE_TEST_REQUIRE_SCHEDULERS" not in os.environ:
        pytest.skip(f"no accounting: {missing()}")
    keys = {"AccountingStorageEnforce": "limits,qos"}
    try:
        with (
            slurm_world(nodes=2, has_accounting=True, keys=keys) as world,
            Client(f"127.0.0.1:{world.grpc_port}") as client,
        ):
            slurm = world.slurm
            slurm.run("sacctmgr", "-i", "add", "account", "research")
            slurm.run("sacctmgr", "-i", "add", "user", slurm.user, "account=research")
            slurm.run("sacctmgr", "-i", "modify", "qos", "normal", "set", "MaxJobsPerUser=1")
            first = slurm.submit("sleep 20", "-N1", "--gres=gpu:1", "-p", "plain")
            SlurmCluster.wait_for(lambda: slurm.jobs()[first]["JobState"] == "RUNNING", "the first job", 30)
            second = slurm.submit("true", "-N1", "--gres=gpu:8")
            SlurmCluster.wait_for(lambda: second in world.left_to_slurm(), "the second to be left to Slurm", 20)
            SlurmCluster.wait_for(lambda: not reserved(world, client), "nothing to be reserved", 5)
            assert {job.job_id for job in world.cluster(client).jobs} <= {str(first)}
            reason = "QOSMaxJobsPerUserLimit"  # Slurm says so as it looks at the job again
            SlurmCluster.wait_for(lambda: slurm.jobs()[second]["Reason"] == reason, f"Slurm to say {reason}", 10)
            jobs = world.wait_until_done([first, second], 60)
            assert {job["JobState"] for job in jobs.values()} == {"COMPLETED"}
            print(f"\njob {second}: QOSMaxJobsPerUserLimit, nothing reserved", end="")
    except NoAccountingError as error:
        if "PLACEWISE_TEST_REQUIRE_SCHEDULERS" in os.environ:
            raise
        pytest.skip(f"no accounting: {error}")
