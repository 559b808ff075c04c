"""Reports for learning, the same from every adapter: a part of the adapters' conformance suite.

Starts, ends, the nodes on which a gang ran, its user, and the reason if a decision was not followed.
"""

from __future__ import annotations

from dataclasses import replace

from tests.contract.adapters.suite.adapter_world import SETTINGS, AdapterStage, World

from placewise.v1.cluster_pb2 import JobEvent, Node
from placewise_client.adapter.native import End


class LearningReports(AdapterStage):
    """Each event is looked at as the service gets it."""

    async def test_a_gang_that_ran_as_decided_is_told_by_its_start_and_end(self, world: World) -> None:
        key = await world.host.submit(2, 2)
        await world.step()
        await world.host.end(key, End.FINISHED)
        await world.step()
        started, ended = world.events(key)
        assert (started.kind, ended.kind) == (JobEvent.STARTED, JobEvent.FINISHED)
        assert started.decision_id == ended.decision_id != ""
        assert list(started.placement) == []  # as decided
        assert started.reason == ""
        assert 0 < started.event_time.seconds <= ended.event_time.seconds

    async def test_every_job_has_its_user(self, world: World) -> None:
        foreign = await world.host.submit(1, 1, is_managed=False)
        await world.host.run_scheduler()
        await world.host.submit(1, 1)
        await world.step()
        (asked,) = world.asked("admit_or_wait")
        assert [job.user for job in asked.jobs] == [world.host.user] != [""]
        assert world.events(foreign)[0].job.user == world.host.user

    async def test_what_others_run_is_told_with_its_resources(self, world: World) -> None:
        key = await world.host.submit(1, 3, is_managed=False)
        await world.host.run_scheduler()
        await world.step()
        await world.host.end(key, End.FINISHED)
        await world.step()
        started, ended = world.events(key)
        assert [(task.node, task.demand.gpus) for task in started.placement] == [("n1", 3)]
        assert (started.decision_id, ended.decision_id) == ("", "")
        assert world.kinds(key) == ["STARTED", "FINISHED"]

    async def test_a_start_elsewhere_says_so(self, world: World) -> None:
        key = await world.host.submit(1, 2)
        await world.loop.run_pass(full=True)
        decision_id = world.oracle.held[key].decision_id
        await world.host.start_at(key, ["n1"])
        await world.loop.run_pass(full=True)
        (started,) = world.events(key)
        assert started.decision_id == decision_id
        assert [(task.node, task.demand.gpus) for task in started.placement] == [("n1", 2)]
        assert started.reason == "started by the host elsewhere than on n4"

    async def test_a_placement_that_is_taken_back_says_why(self, world: World) -> None:
        key = await world.host.submit(1, 8)
        await world.loop.run_pass(full=True)
        await world.host.set_node_state(world.decided_nodes(key)[0], Node.DRAINING)
        world.clock.advance(SETTINGS.start_timeout_s + 1)
        await world.step()
        assert world.reasons(key, JobEvent.CANCELLED) == ["placement withdrawn: it did not start in time"]

    async def test_a_gang_that_is_left_to_the_host_says_why(self, world: World) -> None:
        world.oracle.spoil = lambda response: response.ClearField("decisions")
        key = await world.host.submit(1, 1)
        await world.step()
        world.clock.advance(SETTINGS.release_after_s + 1)
        for _ in range(2):
            await world.step()
        (started,) = world.events(key)
        assert started.reason == "left to the host: no_decision"
        assert [task.node for task in started.placement] == await world.host.where(key)

    async def test_a_gang_of_a_dry_run_is_told_as_the_host_ran_it(self, world: World) -> None:
        world.start_adapter(replace(SETTINGS, is_dry_run=True))
        key = await world.host.submit(1, 2)
        for _ in range(2):
            await world.step()
        await world.host.end(key, End.FINISHED)
        await world.step()
        started, ended = world.events(key)
        assert (started.kind, ended.kind) == (JobEvent.STARTED, JobEvent.FINISHED)
        assert [(task.node, task.demand.gpus) for task in started.placement] == [("n1", 2)]
        assert (started.decision_id, started.reason) == ("", "left to the host: dry_run")
