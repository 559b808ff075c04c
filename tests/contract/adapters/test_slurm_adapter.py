"""The Slurm adapter keeps the conformance suite, on both shapes of slurmrestd, and Slurm's own traps on top."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.adapters.adapter_conformance import AdapterConformance
from tests.contract.adapters.suite.adapter_world import SETTINGS, World
from tests.fakes.counted import counted
from tests.fakes.schedulers.slurmrestd import FakeSlurm
from tests.unit.slurm.test_shares import FakeClient

from placewise.v1.cluster_pb2 import JobEvent
from placewise_client.adapter.native import Applied, End, HostUnreachableError, Stage
from placewise_client.backoff import Backoff
from placewise_slurm import scheduler
from placewise_slurm.http import JsonHttp
from placewise_slurm.rest import SlurmAccounting
from placewise_slurm.shares import JobShares
from placewise_slurm.steps import StepLookups
from placewise_slurm.translate import to_native


class SlurmConformance(AdapterConformance):
    version = ""
    burst = 100

    @pytest.fixture
    async def host(self, tmp_path: Path) -> AsyncIterator[FakeSlurm]:
        slurm = await FakeSlurm(tmp_path / "rest.sock", self.version).start()
        yield slurm
        await slurm.stop()

    async def test_a_gang_of_a_dry_run_is_told_as_the_host_ran_it(self, world: World) -> None:
        world.host.is_watching = True  # type: ignore[attr-defined]
        await super().test_a_gang_of_a_dry_run_is_told_as_the_host_ran_it(world)
        assert world.host.changes == []

    # --- what only Slurm has ------------------------------------------------------------------------------------------

    async def test_a_poke_finds_the_new_job_without_reading_all(self, world: World, host: FakeSlurm) -> None:
        await world.loop.run_pass(full=True)
        host.requests.clear()
        await host.submit(1, 2, is_managed=False)
        key = await host.submit(1, 2)
        await world.loop.run_pass(full=False)
        assert host.changes == [("apply", key)]
        assert [path for _, path, _ in host.requests if path.endswith(("/jobs", "/nodes"))] == []

    async def test_a_new_job_is_found_behind_jobs_of_others_by_one_request(
        self, world: World, host: FakeSlurm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(scheduler, "_FRESH_S", 60.0)  # a busy machine takes longer than what counts as just read
        await world.loop.run_pass(full=True)
        for _ in range(3):
            await host.submit(1, 2, is_managed=False)
        await host.run_scheduler()  # the others start, and become known by number one after the other
        await world.loop.run_pass(full=False)
        for round_number in range(2):
            host.requests.clear()
            for _ in range(2):
                await host.submit(1, 2, is_managed=False)
            key = await host.submit(1, 2)
            await world.loop.run_pass(full=False)
            assert [method for method, _, _ in host.requests] == ["GET", "POST"], round_number
            assert host.changes[-1] == ("apply", key)

    async def test_a_new_job_is_found_where_the_count_of_others_is_wrong(self, world: World, host: FakeSlurm) -> None:
        await world.loop.run_pass(full=True)
        host.refuse_submission()
        first, second = await host.submit(1, 2), await host.submit(1, 2)
        await world.loop.run_pass(full=False)
        assert sorted(host.changes) == [("apply", first), ("apply", second)]

    async def test_a_job_that_slurm_makes_long_after_the_hook_is_found_soon(
        self, world: World, host: FakeSlurm
    ) -> None:
        await world.loop.run_pass(full=True)
        host.announce()
        await world.loop.run_pass(full=False)
        key = await host.submit(1, 2, is_announced=False)
        before_s = asyncio.get_running_loop().time()
        assert not await host.native.wait(timeout_s=10)
        await world.loop.run_pass(full=False)
        assert asyncio.get_running_loop().time() - before_s < 5
        assert host.changes == [("apply", key)]

    async def test_of_several_late_jobs_none_is_overlooked(self, world: World, host: FakeSlurm) -> None:
        await world.loop.run_pass(full=True)
        for _ in range(3):
            host.announce()
        await world.loop.run_pass(full=False)
        keys = []
        for _ in range(3):  # one after the other, each later than the hook's word and the first looks
            keys.append(await host.submit(1, 2, is_announced=False))
            assert not await host.native.wait(timeout_s=10)
            await world.loop.run_pass(full=False)
        assert host.changes == [("apply", key) for key in keys]

    async def test_a_job_announced_while_slurmrestd_is_away_is_found_with_it(
        self, world: World, host: FakeSlurm
    ) -> None:
        await world.loop.run_pass(full=True)
        key = await host.submit(1, 2)
        await host.set_reachable(False)
        await world.loop.run_pass(full=False)
        await host.set_reachable(True)
        await world.loop.run_pass(full=False)
        assert host.changes == [("apply", key)]

    async def test_an_update_whose_answer_was_lost_has_been_made(self, world: World, host: FakeSlurm) -> None:
        await world.loop.run_pass(full=True)
        key = await host.submit(1, 2)
        host.answers_to_lose = 2  # a kept connection that breaks is tried once more
        await world.loop.run_pass(full=False)
        assert await host.stage(key) is Stage.APPLIED
        await world.loop.run_pass(full=False)
        assert counted(world.loop.metrics.applied) == {"unreachable": 1, "done": 1}
        assert world.loop.book.records[key].job.stage is Stage.APPLIED

    async def test_a_job_that_started_by_an_update_whose_answer_was_lost_keeps_its_decision(
        self, world: World, host: FakeSlurm, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO")
        await world.loop.run_pass(full=True)
        key = await host.submit(1, 2)
        host.answers_to_lose = 2
        await world.loop.run_pass(full=False)
        await host.run_scheduler()
        await world.loop.run_pass(full=False)
        decided = world.loop.book.records[key].decided
        assert decided is not None
        assert f"job {key} placed on {decided.nodes} (decision {decided.decision_id})" in caplog.text

    async def test_nothing_is_decided_for_a_job_before_its_begin_time(self, world: World, host: FakeSlurm) -> None:
        """Slurm starts a job that it has queued again after two minutes at the earliest."""
        key = await host.submit(1, 8)
        await world.step()
        again = await host.requeue(key)
        host.jobs[int(key)].begin_time_s = int(world.clock()) + 120
        for _ in range(5):
            world.clock.advance(SETTINGS.start_timeout_s + 1)
            await world.loop.run_pass(full=True)
        assert again not in world.oracle.decided
        assert host.changes == [("apply", key), ("withdraw", again)]
        world.clock.advance(SETTINGS.start_timeout_s + 1)
        await world.step()
        assert await host.where(again) == world.decided_nodes(again)

    async def test_a_job_that_is_queued_again_does_not_start_by_the_decision_of_its_last_run(
        self, world: World, host: FakeSlurm
    ) -> None:
        """Slurm keeps the node list of the last run, and would start the job on it."""
        key = await host.submit(1, 8)
        await world.step()
        again = await host.requeue(key)
        await world.step()
        assert host.changes == [("apply", key), ("withdraw", again), ("apply", again)]
        assert await host.where(again) == world.decided_nodes(again)
        assert world.reasons(again, JobEvent.CANCELLED) == []

    async def test_a_bridge_that_starts_keeps_what_was_applied_until_the_service_answers(
        self, world: World, host: FakeSlurm
    ) -> None:
        key = await host.submit(1, 8)
        await world.loop.run_pass(full=True)
        await world.server.stop()
        world.start_adapter()
        await world.loop.run_pass(full=True)
        await world.restart_service()
        await world.loop.run_pass(full=True)
        assert host.changes == [("apply", key)]

    async def test_slurmrestd_that_is_away_is_not_asked_for_late_jobs_all_the_time(
        self, world: World, host: FakeSlurm
    ) -> None:
        await world.loop.run_pass(full=True)
        host.announce()
        await world.loop.run_pass(full=False)
        await host.set_reachable(False)
        await world.loop.run_pass(full=False)
        before_s = asyncio.get_running_loop().time()
        assert not await host.native.wait(timeout_s=0.3)
        assert asyncio.get_running_loop().time() - before_s > 0.2
        await host.set_reachable(True)
        await world.loop.run_pass(full=False)
        key = await host.submit(1, 2, is_announced=False)  # later still
        assert not await host.native.wait(timeout_s=10)
        await world.loop.run_pass(full=False)
        assert host.changes == [("apply", key)]

    async def test_a_job_that_slurm_never_makes_is_not_looked_for_for_ever(self, world: World, host: FakeSlurm) -> None:
        await world.loop.run_pass(full=True)
        host.announce()
        for _ in range(10):
            await world.loop.run_pass(full=False)
        host.requests.clear()
        await world.loop.run_pass(full=False)
        assert host.requests == []

    async def test_an_elastic_job_gets_its_size_from_admission(self, world: World, host: FakeSlurm) -> None:
        world.oracle.chosen_gpus = lambda job: (3, 4) if job.elastic.max_gpus == 8 else (1, 1)
        key = await host.submit(1, 2, max_nodes=4)
        await world.step()
        assert await host.where(key) == world.decided_nodes(key) == ["n2", "n3", "n4"]
        assert host.jobs[1].gpus == 4

    async def test_an_elastic_job_stays_in_its_node_range(self, world: World, host: FakeSlurm) -> None:
        world.oracle.chosen_gpus = lambda job: (1, 6)
        key = await host.submit(2, 2, max_nodes=3)
        await world.step()
        assert len(await host.where(key)) == 2
        assert host.jobs[1].gpus == 3

    async def test_a_rigid_job_keeps_its_request(self, world: World, host: FakeSlurm) -> None:
        await host.submit(2, 3)
        await world.step()
        (body,) = [body for method, _, body in host.requests if method == "POST"]
        assert not {"gres", "tres_per_node"} & body.keys()

    async def test_typed_gpus_are_asked_for_by_index(self, world: World, host: FakeSlurm) -> None:
        host.types = tuple(f"g{index}" for index in range(8))
        await world.loop.run_pass(full=True)
        await host.submit(1, 3)
        await host.submit(1, 2)
        await world.step()
        assert host.jobs[1].gres.replace("gres/", "gres:") == "gres:gpu:g0:1,gres:gpu:g1:1,gres:gpu:g2:1"
        assert host.jobs[2].gres.replace("gres/", "gres:") == "gres:gpu:g3:1,gres:gpu:g4:1"

    async def test_a_refused_update_leaves_the_job_held(self, world: World, host: FakeSlurm) -> None:
        host.refuse.append(2014)
        key = await host.submit(1, 1)
        await world.loop.run_pass(full=True)
        assert await host.stage(key) is Stage.WAITING
        world.clock.advance(2)
        await world.step()
        assert await host.where(key)

    async def test_a_running_job_is_never_changed(self, world: World, host: FakeSlurm) -> None:
        key = await host.submit(1, 1)
        await world.step()
        entry = world.loop.book.records[key]
        assert entry.decided is not None
        for change in (host.native.release(entry.job), host.native.withdraw(entry.job)):
            assert await change is Applied.GONE
        assert await host.native.apply(entry.job, entry.decided) is Applied.GONE
        assert not host.jobs[1].was_shrunk
        assert host.changes == [("apply", key)]

    async def test_a_job_its_user_released_is_left_alone(self, world: World, host: FakeSlurm) -> None:
        world.oracle.waits.add("*")
        await host.submit(1, 1)
        await world.loop.run_pass(full=True)
        host.jobs[1].is_held = False
        world.oracle.waits.clear()
        world.clock.advance(2)
        await world.step()
        assert host.changes == []
        assert host.jobs[1].state == "RUNNING"

    async def test_a_job_that_leaves_its_nodes_to_be_queued_again_has_not_started_again(
        self, world: World, host: FakeSlurm
    ) -> None:
        """A node failed: Slurm counts the restart at once, and shows the nodes that the job has yet to leave."""
        key = await host.submit(4, 2)
        await world.step()
        again = await host.requeue(key)
        host.jobs[1].state, host.jobs[1].nodes = "COMPLETING", ["n2", "n3", "n4"]
        for full in (False, True):
            await world.loop.run_pass(full)
            assert (world.kinds(key), world.kinds(again)) == (["STARTED"], [])
        host.jobs[1].state, host.jobs[1].nodes = "PENDING", []
        await world.loop.run_pass(full=True)
        assert (world.kinds(key), world.kinds(again)) == (["STARTED", "CANCELLED"], [])
        assert world.reasons(key, JobEvent.CANCELLED) == ["queued again by Slurm"]
        assert list(world.oracle.held) == [again]  # nothing for the run before

    async def test_shares_are_told_once_accounting_has_shown_their_steps(
        self, world: World, host: FakeSlurm, tmp_path: Path
    ) -> None:
        wall_s = 1_800_000_001.0
        client: Any = FakeClient()
        shares = JobShares(client, SETTINGS, tmp_path, lambda: wall_s, lambda: wall_s, wake=host.pokes.wake)
        slurmdbd = SlurmAccounting(JsonHttp(f"unix:{host.socket}"), host.native.rest)
        shares.lookups = StepLookups(slurmdbd.steps, lambda: wall_s, lambda _: asyncio.sleep(0))
        host.native.preparation, host.pokes.on_task = shares, shares.hear
        key = await host.submit(2, 1)
        host.jobs[1].comment = "divisible=100"
        await world.step()
        host.jobs[1].nodes = ["n1", "n2"]
        host.jobs[1].steps = {"0": "RUNNING"}
        for what in ("begin", "end"):
            for printed in ("0 n1 0", "1 n2 0"):  # there is no step 1
                host.pokes.datagram_received(f"share {what} 1 {printed}".encode(), ("127.0.0.1", 1))
            wall_s += 4
        await host.end(key, End.FINISHED)
        await world.step()
        assert "SHARE_FINISHED" not in world.kinds(key)
        host.jobs[1].steps = {"0": "COMPLETED"}
        while shares.lookups._due:
            await shares.lookups.look(shares.learn)
        assert await host.native.wait(timeout_s=10)
        await world.loop.run_pass(full=False)
        assert world.kinds(key) == ["STARTED", "FINISHED", "SHARE_FINISHED"]
        await world.loop.run_pass(full=True)
        assert world.kinds(key) == ["STARTED", "FINISHED", "SHARE_FINISHED"]
        await slurmdbd.http.close()

    async def test_jobs_that_slurm_has_forgotten_are_reported_as_over(self, world: World, host: FakeSlurm) -> None:
        key = await host.submit(1, 1)
        await world.step()
        host.jobs.clear()
        await world.step()
        assert world.kinds(key) == ["STARTED", "FINISHED"]
        assert world.oracle.held == {}

    async def test_a_completing_job_keeps_its_nodes(self, world: World, host: FakeSlurm) -> None:
        first = await host.submit(4, 8)
        await world.step()
        host.jobs[1].state = "COMPLETING"
        second = await host.submit(1, 8)
        await world.loop.run_pass(full=False)
        assert await host.stage(second) is Stage.WAITING
        await host.end(first, End.FINISHED)
        await world.loop.run_pass(full=False)
        assert await host.stage(second) is Stage.APPLIED

    async def test_controller_away_is_no_answer_and_not_an_empty_cluster(self, world: World, host: FakeSlurm) -> None:
        key = await host.submit(1, 1)
        await world.step()
        await host.set_reachable(False)
        with pytest.raises(HostUnreachableError):
            await host.native.observe(True)
        await host.set_reachable(True)
        await world.step()
        assert world.kinds(key) == ["STARTED"]

    async def test_an_unmarked_pending_job_is_not_even_seen(self, world: World, host: FakeSlurm) -> None:
        await host.submit(1, 1, is_managed=False)
        await world.loop.run_pass(full=True)
        assert world.loop.book.records == {}

    async def test_a_restarted_bridge_goes_on_from_slurm_and_the_service_alone(
        self, world: World, host: FakeSlurm
    ) -> None:
        running, waiting = await host.submit(4, 6), await host.submit(1, 4)
        await world.step()
        await host.submit(1, 2)
        await host.restart_bridge()
        world.start_adapter()
        await world.step()
        assert await host.where(running) == world.decided_nodes(running)
        assert await host.stage(waiting) is Stage.WAITING
        assert await host.where("3") == world.decided_nodes("3")
        await host.end(running, End.FINISHED)
        world.clock.advance(2)
        await world.step(full=False)
        assert await host.where(waiting) == world.decided_nodes(waiting)
        assert sorted(host.changes) == [("apply", running), ("apply", waiting), ("apply", "3")]
        assert world.kinds(running) == ["STARTED", "FINISHED"]

    async def test_nothing_stays_reserved_for_a_job_that_a_limit_of_slurms_keeps_waiting(
        self, world: World, host: FakeSlurm, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO")
        key = await host.submit(1, 8)
        await world.loop.run_pass(full=True)
        host.jobs[1].reason = "QOSMaxJobsPerUserLimit"
        await world.loop.run_pass(full=True)
        assert world.oracle.held == {}
        assert host.changes == [("apply", key), ("withdraw", key), ("release", key)]
        assert host.jobs[1].required == []
        assert f"job {key} left to the host's own scheduling: blocked (QOSMaxJobsPerUserLimit)" in caplog.text
        await world.step()
        assert await host.where(key) == ["n1"]
        assert len(world.oracle.decided[key]) == 1

    async def test_a_released_job_that_has_not_started_is_soon_looked_at(self, world: World, host: FakeSlurm) -> None:
        await world.loop.run_pass(full=True)
        key = await host.submit(1, 8)
        await world.loop.run_pass(full=False)
        host.jobs[1].reason, host.jobs[1].reason_text = "ReqNodeNotAvail", "ReqNodeNotAvail, Reserved for maintenance"
        before_s = asyncio.get_running_loop().time()
        while ("release", key) not in host.changes:
            await host.native.wait(timeout_s=10)
            await world.loop.run_pass(full=False)
        assert asyncio.get_running_loop().time() - before_s < 5
        assert world.oracle.held == {}

    @pytest.mark.parametrize("is_behind", [True, False])
    async def test_nothing_stays_reserved_for_a_job_that_slurm_puts_behind_others(
        self, world: World, host: FakeSlurm, monkeypatch: pytest.MonkeyPatch, is_behind: bool
    ) -> None:
        """Slurm says "Priority" of jobs that it has not looked at, too: two looks later it means it."""
        monkeypatch.setattr(scheduler, "_UNSTARTED_WAITS", Backoff(0.05, 0.05))
        key = await host.submit(1, 8)
        if is_behind:
            await host.submit(4, 8, is_managed=False)
        await world.loop.run_pass(full=True)
        host.jobs[1].reason = "Priority"
        await world.loop.run_pass(full=False)
        assert host.changes == [("apply", key)]
        for _ in range(4):
            await host.native.wait(timeout_s=1)
            await world.loop.run_pass(full=False)
        assert host.changes[1:] == ([("withdraw", key), ("release", key)] if is_behind else [])
        assert (key in world.oracle.held) is not is_behind
        world.clock.advance(SETTINGS.start_timeout_s + 1)
        for _ in range(2):
            await world.loop.run_pass(full=True)
        assert host.changes[1:] == [("withdraw", key), ("release" if is_behind else "apply", key)]

    async def test_a_burst_is_read_once_and_all_of_it_runs(self, world: World, host: FakeSlurm) -> None:
        await world.loop.run_pass(full=True)
        keys = [await host.submit(1, 8) for _ in range(self.burst)]
        host.requests.clear()
        await world.loop.run_pass(full=False)
        assert sum(path.endswith("/jobs") for _, path, _ in host.requests) == 1
        waves = 0
        while any([await host.stage(key) is not Stage.ENDED for key in keys]):
            waves += 1
            assert waves < 200
            await host.run_scheduler()
            for key in keys:
                if await host.where(key):
                    await host.end(key, End.FINISHED)
            world.clock.advance(2)
            await world.loop.run_pass(full=False)
        assert sorted(host.changes) == sorted(("apply", key) for key in keys)
        assert world.oracle.double_placements == []


class TestSlurm2205(SlurmConformance):
    version = "v0.0.38"


class TestSlurm2311(SlurmConformance):
    version = "v0.0.40"


class TestSlurm2605(SlurmConformance):
    version = "v0.0.45"
    burst = 500

    @pytest.fixture
    async def host(self, tmp_path: Path) -> AsyncIterator[FakeSlurm]:
        slurm = await FakeSlurm(tmp_path / "rest.sock", self.version, has_states=True, nodes_time_s=1).start()
        yield slurm
        await slurm.stop()

    async def test_a_resync_reads_the_jobs_that_have_changed_and_no_others(self, world: World, host: FakeSlurm) -> None:
        for _ in range(4):
            await host.submit(1, 1, is_managed=False)
        await host.run_scheduler()
        await world.loop.run_pass(full=True)
        await host.end("2", End.FINISHED)
        host.pokes.take()  # lost
        host.requests.clear()
        await world.loop.run_pass(full=True)
        assert [path.split("/", 3)[3] for _, path, _ in host.requests] == [
            "jobs/state/",
            "job/2",
            "nodes?update_time=1",
        ]
        assert world.kinds("2") == ["STARTED", "FINISHED"]

    async def test_gpus_are_read_once_from_the_layout_of_a_running_job(self, world: World, host: FakeSlurm) -> None:
        key = await host.submit(1, 3)
        await world.step()
        await world.step()
        assert [list(a.gpu_indices) for a in world.loop.book.records[key].job.placement] == [[0, 1, 2]]
        assert sum("/resources/" in path for _, path, _ in host.requests) == 1


def test_the_fake_says_what_the_adapter_reads(tmp_path: Path) -> None:
    """Both shapes of the same job are read as the same job."""
    from tests.fakes.schedulers.slurmrestd import FakeJob

    from placewise_slurm.translate import SiteNames
    from placewise_slurm.versions import VERSIONS

    job = FakeJob(7, 2, 4, gres="gres:gpu:4", nodes=["n1", "n2"], state="RUNNING")
    read = [
        to_native(VERSIONS[version].job(FakeSlurm(tmp_path, version)._job_json(job)), SiteNames())
        for version in ("v0.0.38", "v0.0.40")
    ]
    assert read[0] == read[1]
    assert read[0] is not None
    assert [list(a.gpu_indices) for a in read[0].placement] == [[0, 1, 2, 3]] * 2
