"""What every scheduler adapter must keep, as tests: subclass `AdapterConformance`, give it a `host` fixture.

suite/ has two more parts, host_mistakes.py and learning_reports.py, and the stage on which all play, adapter_world.py.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest
from tests.contract.adapters.suite.adapter_world import SETTINGS, World
from tests.contract.adapters.suite.host_mistakes import HostMistakes
from tests.contract.adapters.suite.learning_reports import LearningReports

from placewise.v1.cluster_pb2 import JobEvent, Node
from placewise_client import StateUnavailableError
from placewise_client.adapter.native import AdapterSettings, End, Stage


class AdapterConformance(HostMistakes, LearningReports):
    """Subclasses define `host`; they may add tests of their own."""

    # --- placing ------------------------------------------------------------------------------------------------------

    async def test_a_gang_runs_exactly_where_the_service_said(self, world: World) -> None:
        key = await world.host.submit(3, 4)
        await world.step()
        assert await world.host.where(key) == world.decided_nodes(key) == ["n2", "n3", "n4"]

    async def test_nothing_is_given_out_twice(self, world: World) -> None:
        keys = [await world.host.submit(2, 4) for _ in range(10)]
        for _ in range(12):
            await world.step()
            places = {key: await world.host.where(key) for key in keys}
            running = [key for key, nodes in places.items() if nodes]
            used = Counter(node for nodes in places.values() for node in nodes)
            assert max(used.values(), default=0) <= 2  # of 8 GPUs, 4 each
            for key in running[:1]:
                await world.host.end(key, End.FINISHED)
            world.clock.advance(2)
        assert world.oracle.double_placements == []
        assert Counter(world.host.changes) == Counter({("apply", key): 1 for key in keys})

    async def test_a_gang_that_must_wait_waits_and_starts_when_it_is_admitted(self, world: World) -> None:
        world.oracle.waits.add("*")
        key = await world.host.submit(1, 1)
        await world.step()
        world.clock.advance(2)
        await world.step()
        assert await world.host.stage(key) is Stage.WAITING
        assert world.host.changes == []
        world.oracle.waits.clear()
        world.clock.advance(2)
        await world.step()
        assert await world.host.where(key) == world.decided_nodes(key)

    async def test_a_job_that_ends_makes_room_at_once(self, world: World) -> None:
        first = await world.host.submit(4, 8)
        await world.step()
        second = await world.host.submit(4, 8)
        await world.step()
        assert await world.host.stage(second) is Stage.WAITING
        await world.host.end(first, End.FINISHED)
        await world.step()
        assert await world.host.where(second) == ["n1", "n2", "n3", "n4"]

    async def test_admission_by_fifo_and_place_are_one_question_and_an_admission_is_kept(self, world: World) -> None:
        first = await world.host.submit(4, 8)
        await world.step()
        (both,) = world.asked("admit_or_wait")
        assert [job.id for job in both.jobs] == [first]
        assert (both.policy, both.HasField("place")) == ("fifo", True)  # the default
        second = await world.host.submit(4, 8)
        for _ in range(3):
            world.clock.advance(2)
            await world.step()
        assert await world.host.stage(second) is Stage.WAITING
        # Admitted once, with the first place it was asked for; since then only its place is asked for.
        assert [[job.id for job in request.jobs] for request in world.asked("admit_or_wait")] == [[first], [second]]
        assert len(world.asked("place")) >= 4

    async def test_what_can_never_fit_is_left_to_the_host(self, world: World) -> None:
        key = await world.host.submit(5, 8)
        await world.step()
        assert world.host.changes == [("release", key)]

    async def test_other_jobs_are_reported_and_never_touched(self, world: World) -> None:
        key = await world.host.submit(1, 8, is_managed=False)
        await world.host.run_scheduler()
        await world.step()
        nodes = await world.host.where(key)
        assert world.host.changes == []
        assert [a.node for a in world.events(key)[0].placement] == nodes
        wide = await world.host.submit(4, 8)
        world.clock.advance(2)
        await world.step()
        assert await world.host.stage(wide) is Stage.WAITING

    # --- idempotency --------------------------------------------------------------------------------------------------

    async def test_looking_again_changes_nothing(self, world: World) -> None:
        key = await world.host.submit(2, 2)
        for _ in range(5):
            await world.step()
            world.clock.advance(1)
        assert world.host.changes == [("apply", key)]
        assert len(world.oracle.decided[key]) == 1
        assert world.kinds(key) == ["STARTED"]

    async def test_applying_twice_is_applying_once(self, world: World) -> None:
        key = await world.host.submit(1, 1)
        await world.loop.run_pass(full=True)
        before = await world.host.stage(key)
        entry = world.loop.book.records[key]
        assert entry.decided is not None
        await world.host.native.apply(entry.job, entry.decided)
        assert await world.host.stage(key) is before is Stage.APPLIED

    async def test_a_lost_answer_is_heard_again_and_not_decided_again(self, world: World) -> None:
        await world.loop.run_pass(full=True)
        world.oracle.lose_answers = 1
        key = await world.host.submit(2, 4)
        await world.step()
        assert await world.host.stage(key) is Stage.WAITING
        world.clock.advance(2)
        await world.step()
        assert len(world.oracle.decided[key]) == 1
        assert await world.host.where(key) == world.decided_nodes(key)

    async def test_a_lost_answer_for_a_job_less_is_another_question(self, world: World) -> None:
        await world.loop.run_pass(full=True)
        world.oracle.lose_answers = 1
        gone, stays = await world.host.submit(1, 1), await world.host.submit(1, 1)
        await world.step()
        await world.host.end(gone, End.CANCELLED)
        world.clock.advance(2)
        await world.step()
        assert len(world.oracle.decided[stays]) == 1, "not decided twice"
        assert await world.host.where(stays) == world.decided_nodes(stays)

    # --- fail-open ----------------------------------------------------------------------------------------------------

    async def test_service_away_releases_after_the_configured_time(self, world: World) -> None:
        await world.server.stop()
        key = await world.host.submit(2, 2)
        await world.step()
        world.clock.advance(SETTINGS.release_after_s - 1)
        await world.step()
        assert await world.host.stage(key) is Stage.WAITING
        world.clock.advance(2)
        await world.step()
        assert world.host.changes == [("release", key)]
        await self.taken_after_release(world, key)
        assert len(await world.host.where(key)) == 2

    async def taken_after_release(self, world: World, key: str) -> None:
        """Until the scheduler takes a job that was released; most do in the same look."""

    async def test_a_lost_question_is_not_asked_again_for_a_released_job(self, world: World) -> None:
        await world.loop.run_pass(full=True)
        world.oracle.fail_always = StateUnavailableError("away")
        key = await world.host.submit(1, 8)
        await world.step()
        world.clock.advance(SETTINGS.release_after_s + 1)
        await world.step()
        assert world.host.changes == [("release", key)]
        await world.host.run_scheduler()
        await world.host.end(key, End.FINISHED)
        world.oracle.fail_always = None
        world.clock.advance(2)
        other = await world.host.submit(1, 8)
        await world.step()
        assert world.decided_nodes(other)
        assert key not in world.oracle.decided

    async def test_a_service_that_hangs_is_given_up_within_the_budget(self, world: World) -> None:
        world.start_adapter(replace(SETTINGS, decide_budget_s=0.1))
        await world.loop.run_pass(full=True)
        world.oracle.blocked = asyncio.Event()
        key = await world.host.submit(1, 1)
        await world.loop.run_pass(full=False)  # would never come back if the budget were not kept
        assert await world.host.stage(key) is Stage.WAITING
        world.clock.advance(SETTINGS.release_after_s + 1)
        await world.loop.run_pass(full=False)
        assert world.host.changes == [("release", key)]
        world.oracle.blocked.set()

    async def test_errors_of_the_service_never_end_the_adapter(self, world: World) -> None:
        world.oracle.fail_always = StateUnavailableError("no state", reason="STATE_DOWN")
        key = await world.host.submit(1, 1)
        await world.step()
        world.oracle.fail_always = None
        world.clock.advance(2)
        await world.step()
        assert await world.host.where(key) == world.decided_nodes(key)

    @pytest.mark.parametrize("asks_admission", [True, False])
    async def test_a_job_the_service_cannot_read_holds_up_no_other(self, world: World, asks_admission: bool) -> None:
        world.start_adapter(replace(SETTINGS, ask_admission=asks_admission))
        await world.loop.run_pass(full=True)
        keys = [await world.host.submit(1, 1) for _ in range(5)]
        world.oracle.unreadable.add(keys[2])
        await world.loop.run_pass(full=True)
        assert set(world.host.changes) == {("release" if key == keys[2] else "apply", key) for key in keys}

    async def test_after_an_outage_the_service_is_told_everything_again(self, world: World) -> None:
        key = await world.host.submit(1, 8)
        await world.step()
        await world.server.stop()
        ended = await world.host.submit(1, 1)
        world.clock.advance(20)
        await world.step()
        world.oracle.nodes.clear()
        world.oracle.events.clear()
        world.oracle.held.clear()
        told = len(world.oracle.reported)
        await world.restart_service()
        for _ in range(3):
            world.clock.advance(2)
            await world.step()
        assert sorted(world.oracle.nodes) == ["n1", "n2", "n3", "n4"]
        assert world.kinds(key) == ["STARTED"]
        assert "STARTED" in world.kinds(ended)
        starts = [event.job_id for event in world.oracle.reported[told:] if event.kind == JobEvent.STARTED]
        assert sorted(starts) == sorted({key, ended})  # those that still waited to be told, too

    async def test_the_host_away_is_survived(self, world: World) -> None:
        key = await world.host.submit(1, 1)
        await world.host.set_reachable(False)
        await world.loop.run_pass(full=True)
        await world.host.set_reachable(True)
        await world.step()
        assert await world.host.where(key) == world.decided_nodes(key)

    # --- outcomes -----------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("end", list(End))
    async def test_outcomes_join_their_decision(self, world: World, end: End) -> None:
        key = await world.host.submit(2, 2)
        await world.step()
        held = world.oracle.held[key]
        await world.host.end(key, end)
        await world.step()
        started, ended = world.events(key)
        assert started.kind == JobEvent.STARTED
        assert started.decision_id == ended.decision_id == held.decision_id != ""
        assert started.reservation_id == held.reservation_id
        assert JobEvent.Kind.Name(ended.kind).lower() == end.value
        assert key not in world.oracle.held

    async def test_an_event_the_service_cannot_read_loses_no_other(self, world: World) -> None:
        keys = [await world.host.submit(1, 1) for _ in range(5)]
        await world.loop.run_pass(full=True)
        world.oracle.unreadable.add(keys[2])
        await world.host.run_scheduler()
        for key in keys:
            await world.host.end(key, End.FINISHED)
        await world.loop.run_pass(full=True)
        assert [key for key in keys if "FINISHED" in world.kinds(key)] == [*keys[:2], *keys[3:]]
        assert world.loop.reporter.backlog == 0

    async def test_a_node_the_service_refuses_is_left_out_alone(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        world.oracle.unreadable.add("n4")
        key = await world.host.submit(3, 4)
        await world.step()
        assert await world.host.where(key) == world.decided_nodes(key) == ["n1", "n2", "n3"]
        reported = len(world.asked("report_nodes"))
        world.clock.advance(SETTINGS.node_refresh_s)
        await world.step()
        again = world.asked("report_nodes")[reported:]
        assert {node.id for request in again for node in request.nodes if request.full} == {"n1", "n2", "n3"}
        assert sum("node n4 is left out" in record.getMessage() for record in caplog.records) == 1
        world.oracle.unreadable.clear()
        await world.host.set_node_state("n4", Node.DRAINING)
        await world.step()
        assert sorted(world.oracle.nodes) == ["n1", "n2", "n3", "n4"]

    async def test_cancelled_before_it_starts_frees_what_was_reserved(self, world: World) -> None:
        key = await world.host.submit(4, 8)
        await world.loop.run_pass(full=True)
        await world.host.end(key, End.CANCELLED)
        await world.step()
        assert world.kinds(key) == ["CANCELLED"]
        assert world.oracle.held == {}

    async def test_cancelled_while_the_service_decides_is_not_started(self, world: World) -> None:
        await world.loop.run_pass(full=True)
        key = await world.host.submit(1, 1)
        world.oracle.blocked = asyncio.Event()
        passing = asyncio.ensure_future(world.loop.run_pass(full=True))
        await asyncio.sleep(0)
        await world.host.end(key, End.CANCELLED)
        world.oracle.blocked.set()
        await passing
        world.clock.advance(2)
        await world.step()
        assert world.host.changes == []
        assert world.oracle.held == {}

    # --- changes of the cluster ---------------------------------------------------------------------------------------

    async def test_a_node_drained_before_the_start_is_left_for_another(self, world: World) -> None:
        key = await world.host.submit(1, 8)
        await world.loop.run_pass(full=True)
        node = world.decided_nodes(key)[0]
        await world.host.set_node_state(node, Node.DRAINING)
        await world.step()
        assert await world.host.where(key) == []
        world.clock.advance(SETTINGS.start_timeout_s + 1)
        await world.step()
        await world.step()
        assert await world.host.where(key) == world.decided_nodes(key) != [node]
        assert [verb for verb, _ in world.host.changes] == ["apply", "withdraw", "apply"]

    async def test_what_somebody_took_since_the_decision_is_not_used_twice(self, world: World) -> None:
        """The service cannot know yet that a job of somebody else has just started on its nodes."""
        await world.loop.run_pass(full=True)
        key = await world.host.submit(1, 8)
        world.oracle.blocked = asyncio.Event()
        passing = asyncio.ensure_future(world.loop.run_pass(full=True))
        while not world.asked("admit_or_wait"):  # noqa: ASYNC110 nothing tells the server who waits for it
            await asyncio.sleep(0.001)
        await world.host.occupy("n4", 8)
        world.oracle.blocked.set()
        await passing
        assert world.decided_nodes(key) == ["n4"]
        await world.host.run_scheduler()
        assert await world.host.where(key) == []
        world.clock.advance(SETTINGS.start_timeout_s + 1)
        for _ in range(3):
            await world.step()
            world.clock.advance(2)
        assert await world.host.where(key) == world.decided_nodes(key) != ["n4"]
        assert world.oracle.double_placements == []

    # --- restart ------------------------------------------------------------------------------------------------------

    async def test_restart_leaves_running_jobs_alone_and_joins_their_end(self, world: World) -> None:
        key = await world.host.submit(2, 4)
        await world.step()
        decision_id = world.events(key)[0].decision_id
        world.start_adapter()
        await world.step()
        await world.host.end(key, End.FINISHED)
        await world.step()
        assert world.host.changes == [("apply", key)]
        assert world.kinds(key) == ["STARTED", "FINISHED"]
        assert decision_id
        assert [event.decision_id for event in world.events(key)] == [decision_id] * 2
        assert world.oracle.held == {}

    async def test_restart_tells_no_start_and_end_twice(self, world: World) -> None:
        """The host shows some jobs for a while after their end. Told again, they would be runs of no length."""
        managed, foreign = await world.host.submit(1, 8), await world.host.submit(1, 1, is_managed=False)
        await world.host.run_scheduler()
        await world.step()
        for key in (managed, foreign):
            await world.host.end(key, End.FINISHED)
        await world.step()
        told = len(world.oracle.reported)
        world.start_adapter()
        for _ in range(2):
            await world.step()
        assert [event.job_id for event in world.oracle.reported[told:]] == []

    async def test_restart_tells_an_end_that_came_meanwhile(self, world: World) -> None:
        key = await world.host.submit(1, 8)
        await world.step()
        await world.host.end(key, End.FINISHED)
        world.start_adapter()
        await world.step()
        assert world.kinds(key) == ["STARTED", "FINISHED"]
        assert world.oracle.held == {}

    async def test_restart_between_decision_and_start_keeps_the_decision(self, world: World) -> None:
        key = await world.host.submit(2, 4)
        await world.loop.run_pass(full=True)
        decision_id = world.oracle.held[key].decision_id
        world.start_adapter()
        await world.step()
        assert len(world.oracle.decided[key]) == 1
        assert await world.host.where(key) == world.decided_nodes(key)
        assert [list(event.placement) for event in world.events(key)] == [[]]  # as reserved
        assert [event.decision_id for event in world.events(key)] == [decision_id] != [""]

    async def test_restart_between_answer_and_apply_uses_the_reservation(self, world: World) -> None:
        await world.loop.run_pass(full=True)
        await world.host.set_reachable(True)
        key = await world.host.submit(2, 4)
        state = await world.host.native.observe(True)
        await world.loop.decider.decide([job for job in state.jobs if job.key == key])
        world.start_adapter()
        await world.step()
        assert len(world.oracle.decided[key]) == 1
        assert await world.host.where(key) == world.decided_nodes(key)

    async def test_a_job_that_ended_while_the_adapter_was_away_is_reported(self, world: World) -> None:
        key = await world.host.submit(1, 1)
        await world.step()
        await world.host.end(key, End.FAILED)
        world.start_adapter()
        await world.step()
        assert world.kinds(key) == ["STARTED", "FAILED"]

    # --- dry run ------------------------------------------------------------------------------------------------------

    async def test_dry_run_only_releases(self, world: World) -> None:
        world.start_adapter(AdapterSettings(cluster="conformance", is_dry_run=True))
        key = await world.host.submit(2, 2)
        await world.step()
        assert [change for change in world.host.changes if change[0] != "release"] == []
        assert key not in world.oracle.decided
        assert any(name == "place" and request.dry_run for name, request in world.oracle.calls)
