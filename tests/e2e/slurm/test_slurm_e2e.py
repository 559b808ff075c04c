"""Placewise on a real Slurm of 16 nodes with 8 GPUs each: placements, waits, outcomes, latency, faults.

`make e2e-slurm` installs the packages and runs this. The prints are the figures.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import socket
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration
from tests.e2e.machine import processor_times, stolen_pct
from tests.e2e.slurm.slurm_accounting import Accounting, NoAccountingError, missing
from tests.e2e.slurm.slurm_cluster import SlurmCluster, free_ports, running
from tests.e2e.slurm.slurm_gangs import check_places, ended, ran, submit_gangs, wait_until_quiet
from tests.e2e.slurm.slurm_release import Release
from tests.e2e.slurm.slurm_world import CLUSTER, SlurmWorld, slurm_world

from placewise.v1.cluster_pb2 import ClusterSettings, QueueSettings, RunningJob, UpdateClusterSettingsRequest
from placewise_client import Client
from placewise_client.results import gpus_by_node
from placewise_slurm.config import SlurmConfig
from placewise_slurm.http import JsonHttp, TransportError
from placewise_slurm.main import main as placewise_slurm
from placewise_slurm.rest import SlurmAccounting, SlurmRest
from placewise_slurm.versions import Update

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.e2e_heavy,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        bool(Release.chosen().missing()) and "PLACEWISE_TEST_REQUIRE_SCHEDULERS" not in os.environ,
        reason=f"Slurm is not installed: {Release.chosen().missing()}",
    ),
]

# A killed service loses the decisions of so long (docs/decision-log.md): 60 ms until recorded, 50 more until written.
_UNWRITTEN_MS = 110
Note = Callable[[str, object], None]


@pytest.fixture
def world() -> Iterator[SlurmWorld]:
    with slurm_world() as world:
        yield world


@pytest.fixture
def client(world: SlurmWorld) -> Iterator[Client]:
    with Client(f"127.0.0.1:{world.grpc_port}") as client:
        yield client


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def test_every_gang_runs_where_the_service_said(world: SlurmWorld, client: Client, record_property: Note) -> None:
    rng = random.Random(7)

    # Latency first, on an empty cluster: pairs of a plain and a placed job, far enough apart to be alone. Slurm starts
    # jobs once a second: no more than fit one node, or plain ones would take what placed ones were promised.
    before = processor_times()
    plain, placed = [], []
    for _ in range(30):
        plain.append(world.slurm.submit("true", "-N1", "--gres=gpu:1", "-p", "plain"))
        placed.append(world.slurm.submit("true", "-N1", "--gres=gpu:1", "-p", "main"))
        time.sleep(rng.uniform(0.3, 0.6))
    world.wait_until_done([*plain, *placed], 120)
    times = world.timeline()
    added_ms = [1000 * (times[i]["update"] - times[i]["submit"]) for i in placed]
    wait_ms = {
        name: statistics.median(1000 * (times[i]["start"] - times[i]["submit"]) for i in ids)
        for name, ids in (("plain", plain), ("placed", placed))
    }
    added = (
        f"submit to release p50 {statistics.median(added_ms):.1f} ms, "
        f"p90 {percentile(added_ms, 0.9):.1f} ms; submit to start p50 plain {wait_ms['plain']:.0f} ms, "
        f"placed {wait_ms['placed']:.0f} ms ({len(placed)} pairs; Slurm starts jobs once a second; "
        f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {stolen_pct(before):.0f} % of them stolen)"
    )
    record_property("added time", added)
    print(f"\n{added}")

    ids = submit_gangs(world, 160, rng)
    jobs = world.wait_until_done(ids, 400)
    assert Counter(job["JobState"] for job in jobs.values()) == {"COMPLETED": 160}
    assert world.left_to_slurm() == {}
    check_waits(world, ids)
    wait_until_quiet(world, client)
    check_outcomes(world, client, ids)
    log = world.log()
    found = log.account(ran(world, jobs))
    record_property("gangs", found)
    print(found)
    assert found.as_decided == found.total == 160
    assert log.doubled() == []


def check_waits(world: SlurmWorld, ids: list[int]) -> None:
    """A job that was answered WAIT was pending all that time: it started after its release, never before."""
    times = world.timeline()
    assert all(times[i]["start"] >= times[i]["update"] for i in ids)
    waits = [times[i]["update"] - times[i]["submit"] for i in ids]
    reported = sum(f"job {i}: waiting" in world.bridge_log() for i in ids)
    assert reported > 20
    print(f"waits: {reported} of {len(ids)} gangs waited; longest {max(waits):.1f} s, all started after release")


def check_outcomes(world: SlurmWorld, client: Client, ids: list[int]) -> None:
    """Each job's start and end are in the decision log, joined to the decision that placed it."""
    decisions = world.decisions()
    assert {str(i) for i in ids} <= decisions.keys()
    exported = world.exported_outcomes()
    wanted = {(str(i), kind, decisions[str(i)][-1]) for i in ids for kind in ("STARTED", "FINISHED")}
    assert wanted - exported == set()
    overrides = world.bridge_log().count("decided was")
    assert overrides == 0
    print(
        f"outcomes: {len(wanted)} joined by decision id in the exported log, {overrides} overrides, "
        "nothing left reserved or running"
    )


def test_service_killed_midway(record_property: Note) -> None:
    # Alternatives are worked out for a second or two, and their decisions are logged after that.
    without = {"PLACEWISE_DECLOG__ALTERNATIVES_SHARE": "0"}
    with slurm_world(service=without) as world, Client(f"127.0.0.1:{world.grpc_port}") as client:
        check_killed_midway(world, client, record_property)


def check_killed_midway(world: SlurmWorld, client: Client, record_property: Note) -> None:
    rng = random.Random(11)
    before = submit_gangs(world, 20, rng)
    world.kill("service")
    during = submit_gangs(world, 20, rng)
    SlurmCluster.wait_for(lambda: bool(world.left_to_slurm()), "jobs to be left to Slurm", 30)
    world.start_service()
    after = submit_gangs(world, 20, rng)
    jobs = world.wait_until_done([*before, *during, *after], 300)
    assert Counter(job["JobState"] for job in jobs.values()) == {"COMPLETED": 60}
    left = world.left_to_slurm()
    assert set(left.values()) == {"no_decision"}
    lost: list[str] = []
    checked = check_places(world, client, {i: job for i, job in jobs.items() if i not in left}, lost)
    assert checked == 60 - len(left)
    if lost:
        assert made_ms(max(lost)) - made_ms(min(lost)) <= _UNWRITTEN_MS, lost
        applied = {decisions[-1] for decisions in world.decisions().values()}
        assert not {decision for decision in applied if min(lost) < decision < max(lost)} - {*lost}
    wait_until_quiet(world, client)
    log = world.log()
    found, doubled = log.account(ran(world, jobs)), log.doubled(ended(jobs))
    words = f"service killed midway: {len(doubled)} doubled; {found}"
    record_property("gangs", words)
    print(f"\n{words}")
    assert (found.elsewhere, doubled) == ([], [])


def made_ms(decision_id: str) -> int:
    """The time in the id, in ms."""
    return int(decision_id.replace("-", "")[:12], 16)


def test_faults(world: SlurmWorld, client: Client, record_property: Note) -> None:
    """Bridge, slurmctld and slurmrestd restarted, jobs cancelled, nodes drained, a burst of 500: nothing is lost."""
    rng = random.Random(13)
    slurm = world.slurm
    longs = [slurm.submit("sleep 45", "-N2", "--gres=gpu:4") for _ in range(3)]
    SlurmCluster.wait_for(lambda: all(slurm.jobs()[i]["JobState"] == "RUNNING" for i in longs), "the long jobs", 30)
    homes = {i: slurm.jobs()[i]["NodeList"] for i in longs}

    ids = submit_gangs(world, 15, rng)
    world.kill("bridge")
    ids += submit_gangs(world, 5, rng)  # nobody hears these: left to Slurm by the submit hook
    unheard = set(ids[-5:])
    world.start_bridge()
    SlurmCluster.wait_for(lambda: world.bridge_log().count("bridging") == 2, "the bridge", 30)

    ids += submit_gangs(world, 10, rng)
    slurm.kill("slurmrestd")
    time.sleep(1)
    slurm.start_rest()

    cancelled = submit_gangs(world, 15, rng)
    for job_id in cancelled[::2]:
        slurm.run("scancel", str(job_id))
    drained = ["n15", "n16"]
    ids += submit_gangs(world, 10, rng)
    slurm.run("scontrol", "update", f"nodename={','.join(drained)}", "state=drain", "reason=test")
    ids += submit_gangs(world, 10, rng)
    time.sleep(2)
    slurm.run("scontrol", "update", f"nodename={','.join(drained)}", "state=resume")

    ids += submit_gangs(world, 10, rng)
    # It saves its state, but loses a job whose launch is on its way to a node. That is not ours to mend: none is.
    slurm.run("scontrol", "update", "partitionname=main", "state=down")
    time.sleep(2)
    slurm.kill("slurmctld", signal.SIGTERM)
    slurm.start_controller()
    slurm.run("scontrol", "update", "partitionname=main", "state=up")

    started = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        burst = list(pool.map(lambda _: slurm.submit("true", "-N1", "--gres=gpu:1"), range(500)))
    jobs = world.wait_until_done([*ids, *cancelled, *burst, *longs], 300)
    took_s = time.monotonic() - started

    kept = [*ids, *burst, *longs, *cancelled[1::2]]
    lost = [job_id for job_id in kept if jobs[job_id]["JobState"] != "COMPLETED"]
    assert not lost, world.told_of(lost)
    assert {i: jobs[i]["NodeList"] for i in longs} == homes
    assert all(jobs[i].get("AdminComment") is None for i in unheard)
    checked = check_places(world, client, {i: job for i, job in jobs.items() if i not in unheard})
    wait_until_quiet(world, client)
    log = world.log()
    found, doubled = log.account(ran(world, {job_id: jobs[job_id] for job_id in kept})), log.doubled()
    faced = f"{len(lost)} lost, {len(doubled)} doubled; {found}"
    record_property("gangs", f"restarts, drained nodes and a burst of 500: {faced}")
    assert (found.elsewhere, doubled) == ([], [])
    left = world.left_to_slurm()
    print(
        f"\nfaults: {len(jobs)} jobs, {checked} ran as decided, {len(left)} left to Slurm "
        f"{dict(Counter(left.values()))}, {len(unheard)} unheard, "
        f"{sum(job['JobState'] == 'CANCELLED' for job in jobs.values())} cancelled; burst of 500 done in {took_s:.0f} s"
    )


def test_typed_gpus_shares_and_foreign_jobs() -> None:
    """Where every GPU has a type of its own, jobs get exactly the GPUs decided; divisible jobs get their shares."""
    rng = random.Random(17)
    word = 'share_steps = "job"'
    with slurm_world(is_typed=True, nodes=4, hooks=word) as world, Client(f"127.0.0.1:{world.grpc_port}") as client:
        slurm = world.slurm
        foreign = slurm.submit("sleep 20", "-N1", "--gres=gpu:3", "-p", "plain")
        SlurmCluster.wait_for(
            lambda: any(job.state == RunningJob.RUNNING for job in world.cluster(client).jobs),
            "the service to hear of a job that is not its own",
            30,
        )
        script = "echo $CUDA_VISIBLE_DEVICES > gpus.$SLURM_JOB_ID; sleep 1"
        ids = [slurm.submit(script, "-N1", f"--gres=gpu:{rng.choice([1, 2, 3, 5])}") for _ in range(20)]
        share = slurm.submit(
            "srun bash -c 'echo $PLACEWISE_SHARE_UNIT $PLACEWISE_SHARE_SCALE; sleep $((1 + SLURM_LOCALID))'"
            " > share.$SLURM_JOB_ID",
            "-N1",
            "--ntasks-per-node=2",
            "--gres=gpu:2",
            "--comment=divisible=100 kind=render",
        )
        multi = slurm.submit("sleep 1", "-N2", "--gres=gpu:8")
        jobs = world.wait_until_done([*ids, share, foreign, multi], 200)
        assert check_places(world, client, {multi: jobs[multi]}) == 1
        assert check_places(world, client, {i: jobs[i] for i in ids}) == 20
        for job_id in ids:
            decision_id = world.decisions()[str(job_id)][-1]
            (wanted,) = gpus_by_node(world.decided(client, decision_id, str(job_id))).values()
            really = (world.root / "jobs" / f"gpus.{job_id}").read_text().strip()
            assert really == ",".join(map(str, wanted))
        lines = sorted((world.root / "jobs" / f"share.{share}").read_text().split("\n"))
        shares = [line.split() for line in lines if line]
        assert len({unit for unit, _ in shares}) == 2
        assert sum(float(scale) for _, scale in shares) == pytest.approx(100)
        wait_until_quiet(world, client)
        fates = world.exported_shares(share)
        assert {unit.partition("/")[2] for unit in fates} == {unit for unit, _ in shares}
        assert {status for status, _ in fates.values()} == {"OBSERVED"}
        # The tasks slept for one and for two seconds.
        assert sorted(round(seconds) for _, seconds in fates.values()) == [1, 2]
        print(f"\ntyped GPUs: 20 jobs on exactly the GPUs decided; shares {shares}, took {fates}")


@contextmanager
def skipped_without_accounting() -> Iterator[None]:
    """Says why where MariaDB or slurmdbd are not there or do not start."""
    must = "PLACEWISE_TEST_REQUIRE_SCHEDULERS" in os.environ
    if missing() and not must:
        pytest.skip(f"no accounting: {missing()}")
    try:
        yield
    except NoAccountingError as error:
        if must:
            raise
        pytest.skip(f"no accounting: {error}")


@skipped_without_accounting()
def test_a_shares_time_counts_for_a_step_that_slurm_shows(capsys: pytest.CaptureFixture[str]) -> None:
    """A report about an unknown step, or a step on a node that it does not run on, is ignored."""
    with (
        slurm_world(nodes=2, has_accounting=True) as world,
        Client(f"127.0.0.1:{world.grpc_port}") as client,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as forger,
    ):
        assert placewise_slurm(["--config", str(world.root / "bridge.toml"), "check"]) == 0
        assert "shares: their times count for steps that slurmrestd shows" in capsys.readouterr().out
        forger.connect(("127.0.0.1", world.config.hooks.listen_port))
        script = "srun -N1 -n1 -w n1 sleep 2; sleep 3"
        job_id = world.slurm.submit(script, "-N2", "--gres=gpu:1", "--comment=divisible=100 kind=render")
        SlurmCluster.wait_for(lambda: world.slurm.jobs()[job_id]["JobState"] == "RUNNING", "the job", 30)
        for what in ("begin", "end"):
            for step, node in ((1, "n1"), (0, "n2"), (4294967291, "n2")):
                forger.send(f"share {what} {job_id} {step} {node} 0".encode())
            time.sleep(3)
        world.wait_until_done([job_id], 60)
        ended_s = time.monotonic()
        wait_until_quiet(world, client)

        def of_first() -> tuple[str, float | None]:
            return next(fate for unit, fate in world.exported_shares(job_id).items() if unit.startswith("n1/"))

        SlurmCluster.wait_for(lambda: of_first()[0] == "OBSERVED", "the share's outcome", 40)
        late_s = time.monotonic() - ended_s
        fates = world.exported_shares(job_id)
        assert {unit.partition("/")[0] for unit, (status, _) in fates.items() if status == "OBSERVED"} == {"n1"}
        assert len(fates) == 2
        assert of_first()[1] == pytest.approx(2, abs=0.7)
        print(f"\nshares by accounting: {fates}, reported {late_s:.1f} s after the job's end")


@skipped_without_accounting()
def test_steps_are_asked_for_with_the_same_token() -> None:
    root = Path(tempfile.mkdtemp(prefix="placewise-slurm-"))
    accounting = Accounting(root)
    cluster = SlurmCluster(root, nodes=1, has_tokens=True, hooks=accounting.keys, before=accounting.start)
    with running(cluster) as slurm:
        (port,) = free_ports(1)
        token = root / "tcp-token"
        token.write_text(slurm.start_rest_with_tokens(port))
        job_id = slurm.submit("sleep 60", "-N1")
        section = SlurmConfig(
            rest=f"127.0.0.1:{port}", version=slurm.release.rest, user=slurm.user, token_file=str(token)
        )
        slurm.wait_for(lambda: asyncio.run(steps_with_token(section, job_id)) == ["batch"], "the step to be shown", 20)
        token.write_text("forged")
        with pytest.raises(TransportError):
            asyncio.run(steps_with_token(section, job_id))
        slurm.cancel(job_id)
    shutil.rmtree(root, ignore_errors=True)


async def steps_with_token(section: SlurmConfig, job_id: int) -> list[str]:
    rest = SlurmRest(JsonHttp(section.rest, section.headers), wanted=section.version)
    accounting = SlurmAccounting(rest.http, rest)
    try:
        await rest.agree()
        return [step.id for step in await accounting.steps(job_id) if step.is_running]
    finally:
        await accounting.http.close()


def test_jobs_go_where_slurm_lets_them() -> None:
    """By their partition and features; where Slurm alone knows where or when a job may run, it is left to Slurm."""
    with slurm_world(nodes=3) as world, Client(f"127.0.0.1:{world.grpc_port}") as client:
        slurm = world.slurm
        slurm.run("scontrol", "update", "nodename=n2", "availablefeatures=fast,ib", "activefeatures=fast,ib")
        seen = "partition/main"
        SlurmCluster.wait_for(
            lambda: any(node.labels.keys() >= {seen, "feature/fast"} for node in world.cluster(client).nodes),
            "the service to hear of the features",
            30,
        )
        one_gpu = ("-N1", "--gres=gpu:1")
        first = slurm.submit("sleep 3", *one_gpu)
        follower = slurm.submit("true", *one_gpu, f"--dependency=afterok:{first}")
        nodes = {
            slurm.submit("sleep 1", *one_gpu, "-p", "last"): "n3",
            slurm.submit("sleep 1", *one_gpu, "--constraint=fast&ib"): "n2",
        }
        by_task = slurm.submit("sleep 1", "-N2", "-n4", "--gpus-per-task=4")
        left = {
            slurm.submit("sleep 1", *one_gpu, "--exclude=n1,n2"): "n3",
            slurm.submit("sleep 1", *one_gpu, "--constraint=fast|ib"): "n2",
        }
        exclusive = slurm.submit("sleep 1", *one_gpu, "--exclusive")
        jobs = world.wait_until_done([first, follower, by_task, exclusive, *nodes, *left], 60)
        assert {i: jobs[i]["NodeList"] for i in [*nodes, *left]} == nodes | left
        placed = {i: jobs[i] for i in (first, by_task, *nodes)}
        assert check_places(world, client, placed) == len(placed)
        assert not world.decisions().keys() & {str(i) for i in (follower, exclusive, *left)}
        print(f"\nconstraints: {len(placed)} jobs placed where Slurm lets them, {len(left) + 2} left to Slurm")


def test_a_short_job_passes_one_that_does_not_fit_and_a_long_one_does_not() -> None:
    """`fifo`, the bridge's default: the gang waits for both nodes, of which one is busy in part."""
    with slurm_world(nodes=2) as world, Client(f"127.0.0.1:{world.grpc_port}") as client:
        slurm = world.slurm
        first = slurm.submit("sleep 12", "-N1", "--gres=gpu:1", "--comment=gpu_seconds=12")
        SlurmCluster.wait_for(lambda: slurm.jobs()[first]["JobState"] == "RUNNING", "the first job", 30)
        gang = slurm.submit("sleep 2", "-N2", "--gres=gpu:8")
        SlurmCluster.wait_for(lambda: any(q.head.job_id for q in world.cluster(client).queues), "a head", 10)
        long = slurm.submit("sleep 1", "-N1", "--gres=gpu:1", "--comment=gpu_seconds=36000")
        short = slurm.submit("sleep 1", "-N1", "--gres=gpu:1", "--comment=gpu_seconds=1")
        jobs = world.wait_until_done([first, gang, long, short], 60)
        starts = {name: world.timeline()[i]["start"] for name, i in (("gang", gang), ("long", long), ("short", short))}
        assert sorted(starts, key=starts.__getitem__) == ["short", "gang", "long"]
        assert check_places(world, client, jobs) == len(jobs)


def test_admission_by_proteus_paper_takes_one_job_per_slot() -> None:
    """Proteus as printed holds jobs although the cluster is empty: a wait is a wait, and every job gets its turn."""
    slot_s = 2
    of_the_cluster = 'admit_policy = ""'
    with (
        slurm_world(nodes=4, settings=of_the_cluster) as world,
        Client(f"127.0.0.1:{world.grpc_port}") as client,
    ):
        queue = QueueSettings(queue="main", v=0.5, epsilon_seconds=600, slot_duration=Duration(seconds=slot_s))
        settings = ClusterSettings(admit_policy="proteus-paper", queues=[queue])
        client.update_cluster_settings(UpdateClusterSettingsRequest(cluster=CLUSTER, settings=settings))
        comment = "--comment=gpu_seconds=600"
        ids = [world.slurm.submit("true", "-N1", "--gres=gpu:1", comment) for _ in range(6)]
        jobs = world.wait_until_done(ids, 200)
        times = world.timeline()
        slots = [int(times[i]["update"] // slot_s) for i in ids]
        assert len(set(slots)) == len(ids)
        assert all(times[i]["start"] >= times[i]["update"] for i in ids)
        assert check_places(world, client, jobs) == len(ids)
        waits = sorted(round(times[i]["update"] - times[i]["submit"], 1) for i in ids)
        print(f"\nproteus-paper: one job per {slot_s} s slot on an empty cluster, waits {waits} s")


def test_a_dry_run_agrees_seldom(record_property: Note) -> None:
    """The control: gangs as Slurm places them, against decisions that were only logged."""
    with slurm_world(is_dry_run=True) as world, Client(f"127.0.0.1:{world.grpc_port}") as client:
        ids = submit_gangs(world, 60, random.Random(7))
        jobs = world.wait_until_done(ids, 200)
        wait_until_quiet(world, client)
        log, where = world.log(), ran(world, jobs)
        found, agreed = log.account(where), log.agreed_dry(where)
        record_property(
            "gangs", f"dry run: {found}; {agreed} ran on the nodes of their decision, of {len(log.dry)} with a place"
        )
        print(f"\ndry run: {found}; {agreed} agree, of {len(log.dry)} with a place")
        assert len(log.dry) >= 15
        # A job that nobody holds may run before the bridge has asked.
        assert len(found.released) + len(found.never_decided) == found.total == 60
        assert agreed < 0.3 * len(log.dry)


def test_dry_run_only_says_what_it_would_do(capsys: pytest.CaptureFixture[str]) -> None:
    with slurm_world(nodes=2, is_dry_run=True) as world, Client(f"127.0.0.1:{world.grpc_port}") as client:
        assert placewise_slurm(["--config", str(world.root / "bridge.toml"), "check"]) == 0
        assert "shares: their times are not reported" in capsys.readouterr().out  # there is no slurmdbd
        ids = [world.slurm.submit("sleep 1", "-N2", "--gres=gpu:3") for _ in range(4)]
        jobs = world.wait_until_done(ids, 60)
        assert Counter(job["JobState"] for job in jobs.values()) == {"COMPLETED": 4}
        assert all(job["ReqNodeList"] == "(null)" for job in jobs.values())
        assert not any("update" in world.timeline()[i] for i in ids)
        log = world.bridge_log()
        assert all(f"dry run: job {i} would be placed on n" in log for i in ids[:2])
        assert world.decisions() == {}
        wait_until_quiet(world, client)
        print("\ndry run: 4 jobs watched, none touched")


def test_slurmrestd_on_tcp_with_a_token() -> None:
    root = Path(tempfile.mkdtemp(prefix="placewise-slurm-"))
    with running(SlurmCluster(root, nodes=2, has_tokens=True)) as slurm:
        (port,) = free_ports(1)
        token = root / "tcp-token"
        token.write_text(slurm.start_rest_with_tokens(port))
        job_id = slurm.submit("true", "-N1", "--hold")
        section = SlurmConfig(
            rest=f"127.0.0.1:{port}", version=slurm.release.rest, user=slurm.user, token_file=str(token)
        )
        asyncio.run(release_with_token(section, job_id, token))
        slurm.wait_for(lambda: slurm.jobs()[job_id]["JobState"] == "COMPLETED", "the job", 30)
        assert slurm.jobs()[job_id]["NodeList"] == "n2"
    shutil.rmtree(root, ignore_errors=True)


async def release_with_token(section: SlurmConfig, job_id: int, token: Path) -> None:
    rest = SlurmRest(JsonHttp(section.rest, section.headers), wanted=section.version)
    await rest.agree()
    assert [node.name for node in await rest.nodes()] == ["n1", "n2"]
    await rest.update(job_id, Update(False, ["n2"]))
    token.write_text("forged")  # noqa: ASYNC240 - nothing else runs in this loop
    with pytest.raises(TransportError):
        await rest.nodes()
    await rest.http.close()
