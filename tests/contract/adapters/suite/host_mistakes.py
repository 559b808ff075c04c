"""Mistakes of the host and of the service: a part of the adapters' conformance suite.

Nothing is held twice by them, and nothing for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.contract.adapters.suite.adapter_world import SETTINGS, AdapterStage, World
from tests.fakes.counted import counted

from placewise.v1.cluster_pb2 import JobEvent, Node
from placewise.v1.decision_pb2 import PlaceResponse
from placewise_client.adapter.native import End, Stage


def without_tasks(response: PlaceResponse) -> None:
    for decision in response.decisions:
        del decision.assignments[:]


def without_place(response: PlaceResponse) -> None:
    del response.decisions[:]


def without_last_task(response: PlaceResponse) -> None:
    for decision in response.decisions:
        del decision.assignments[-1]


def on_unknown_node(response: PlaceResponse) -> None:
    for decision in response.decisions:
        decision.assignments[0].node = "n9"


class HostMistakes(AdapterStage):
    """Each case compares the service with the host at its end."""

    # --- starts that nobody asked for ---------------------------------------------------------------------------------

    async def test_a_gang_that_the_host_starts_elsewhere_is_reported_where_it_runs(self, world: World) -> None:
        key = await world.host.submit(1, 2)
        await world.loop.run_pass(full=True)
        assert world.decided_nodes(key) == ["n4"]
        await world.host.start_at(key, ["n1"])
        await world.loop.run_pass(full=True)
        (started,) = world.events(key)
        assert [task.node for task in started.placement] == ["n1"]
        assert counted(world.loop.metrics.overrides) == {"": 1}
        wide = await world.host.submit(3, 8)
        await world.step()
        assert await world.host.where(wide) == ["n2", "n3", "n4"]
        assert world.oracle.double_placements == []

    async def test_a_gang_that_the_host_starts_while_it_waits_is_left_alone(self, world: World) -> None:
        world.oracle.waits.add("*")
        key = await world.host.submit(1, 2)
        await world.loop.run_pass(full=True)
        await world.host.start_at(key, ["n1"])
        world.oracle.waits.clear()
        world.clock.advance(2)
        await world.step()
        assert world.host.changes == []
        (started,) = [event for event in world.events(key) if event.kind == JobEvent.STARTED]
        assert [task.node for task in started.placement] == ["n1"]
        assert key not in world.oracle.decided

    async def test_a_gang_that_is_queued_again_is_a_new_question(self, world: World) -> None:
        key = await world.host.submit(1, 8)
        await world.step()
        (node,) = await world.host.where(key)
        await world.host.set_node_state(node, Node.DRAINING)
        again = await world.host.requeue(key)
        assert again != key
        await world.step()
        world.clock.advance(SETTINGS.start_timeout_s + 1)
        for _ in range(3):
            await world.step()
            world.clock.advance(2)
        assert await world.host.where(again) == world.decided_nodes(again) != [node]
        assert world.kinds(again) == ["STARTED"]
        assert key not in world.oracle.held

    async def test_a_gang_that_shrinks_while_it_waits_is_decided_as_it_is_then(self, world: World) -> None:
        world.oracle.waits.add("*")
        key = await world.host.submit(4, 8)
        await world.loop.run_pass(full=True)
        await world.host.shrink(key, 2)
        world.oracle.waits.clear()
        for _ in range(2):
            world.clock.advance(2)
            await world.step()
        assert await world.host.where(key) == world.decided_nodes(key) == ["n3", "n4"]

    # --- news that lack or repeat -------------------------------------------------------------------------------------

    async def test_a_running_gang_that_the_host_forgets_is_over(self, world: World) -> None:
        key = await world.host.submit(2, 8)
        await world.step()
        await world.host.forget(key)
        await world.step()
        assert world.kinds(key) in (["STARTED", "FINISHED"], ["STARTED", "CANCELLED"])
        assert world.oracle.held == {}

    async def test_a_placed_gang_that_the_host_forgets_holds_nothing(self, world: World) -> None:
        key = await world.host.submit(2, 8)
        await world.loop.run_pass(full=True)
        await world.host.forget(key)
        await world.step()
        assert world.kinds(key) == ["CANCELLED"]
        assert world.oracle.held == {}

    async def test_news_that_did_not_come_are_seen_at_the_next_complete_look(self, world: World) -> None:
        ends = await world.host.submit(2, 8)
        await world.step()
        await world.host.set_reachable(False)
        await world.loop.run_pass(full=True)
        await world.host.end(ends, End.FINISHED)
        comes = await world.host.submit(1, 8)
        await world.host.set_node_state("n4", Node.DRAINING)
        await world.host.set_reachable(True)
        await world.step()
        assert world.kinds(ends) == ["STARTED", "FINISHED"]
        assert world.oracle.nodes["n4"].state == Node.DRAINING
        assert await world.host.where(comes) == world.decided_nodes(comes) == ["n3"]

    async def test_what_the_host_says_twice_is_reported_once(self, world: World) -> None:
        key = await world.host.submit(1, 1)
        await world.step()
        for _ in range(2):
            await world.host.end(key, End.FINISHED)
            await world.step()
        reported = [(event.job_id, event.kind) for event in world.oracle.reported]
        assert sorted(reported) == [(key, JobEvent.STARTED), (key, JobEvent.FINISHED)]

    async def test_a_start_and_an_end_between_two_looks_are_both_reported(self, world: World) -> None:
        key = await world.host.submit(1, 1)
        await world.loop.run_pass(full=True)
        decision_id = world.oracle.held[key].decision_id
        await world.host.run_scheduler()
        await world.host.end(key, End.FAILED)
        await world.loop.run_pass(full=True)
        assert world.kinds(key) == ["STARTED", "FAILED"]
        assert {event.decision_id for event in world.events(key)} == {decision_id}
        assert world.oracle.held == {}

    async def test_what_cannot_be_read_holds_up_nothing_else(self, world: World) -> None:
        await world.host.show_unreadable()
        key = await world.host.submit(2, 8)
        for _ in range(2):
            await world.step()
        assert await world.host.where(key) == world.decided_nodes(key) == ["n3", "n4"]

    # --- nodes --------------------------------------------------------------------------------------------------------

    async def test_a_node_that_holds_more_than_it_has_takes_no_gang(self, world: World) -> None:
        for _ in range(2):
            await world.host.occupy("n4", 8)
        await world.step()
        key = await world.host.submit(1, 1)
        await world.step()
        assert await world.host.where(key) == world.decided_nodes(key) == ["n3"]

    async def test_a_node_that_is_lost_takes_no_gang_until_it_is_back(self, world: World) -> None:
        first = await world.host.submit(1, 8)
        await world.step()
        assert await world.host.where(first) == ["n4"]
        await world.host.lose_node("n4")
        await world.step()
        assert sorted(world.oracle.nodes) == ["n1", "n2", "n3"]
        second = await world.host.submit(1, 8)
        await world.step()
        assert await world.host.where(second) == ["n3"]
        await world.host.end(first, End.FAILED)
        await world.host.add_nodes(4, 8)
        await world.step()
        third = await world.host.submit(1, 8)
        await world.step()
        assert await world.host.where(third) == ["n4"]
        assert world.kinds(first) == ["STARTED", "FAILED"]

    # --- changes of the host ------------------------------------------------------------------------------------------

    async def test_a_change_that_the_host_refuses_is_decided_again(self, world: World) -> None:
        await world.loop.run_pass(full=True)
        key = await world.host.submit(1, 8)
        world.host.refuse_change()
        await world.loop.run_pass(full=True)
        assert await world.host.stage(key) is Stage.WAITING
        await world.loop.run_pass(full=True)
        for _ in range(2):
            world.clock.advance(2)
            await world.step()
        assert await world.host.where(key) == world.decided_nodes(key)
        assert world.reasons(key, JobEvent.CANCELLED) == ["placement withdrawn: the host refused it"]
        assert len(world.oracle.decided[key]) == 2

    async def test_a_change_whose_answer_is_lost_is_made_once(self, world: World) -> None:
        await world.loop.run_pass(full=True)
        key = await world.host.submit(1, 8)
        world.host.lose_answer()
        for _ in range(3):
            await world.step()
            world.clock.advance(2)
        assert await world.host.where(key) == world.decided_nodes(key)
        assert len(world.oracle.decided[key]) == 1
        assert [event.decision_id for event in world.events(key)] == [world.oracle.held[key].decision_id]

    # --- wrong answers of the service ---------------------------------------------------------------------------------

    @pytest.mark.parametrize("spoil", [without_tasks, without_place, without_last_task])
    async def test_an_admission_without_a_place_for_every_task_starts_nothing(
        self, world: World, spoil: Callable[[Any], None]
    ) -> None:
        world.oracle.spoil = spoil
        key = await world.host.submit(2, 1)
        await world.step()
        assert await world.host.stage(key) is Stage.WAITING
        world.oracle.spoil = None
        world.clock.advance(2)
        await world.step()
        assert await world.host.where(key) == world.decided_nodes(key)

    async def test_a_gang_that_gets_no_place_with_its_admission_is_released_in_the_end(self, world: World) -> None:
        world.oracle.spoil = without_place
        key = await world.host.submit(1, 1)
        await world.step()
        world.clock.advance(SETTINGS.release_after_s + 1)
        await world.step()
        assert world.host.changes == [("release", key)]

    async def test_a_place_on_a_node_that_the_host_does_not_have_is_decided_again(self, world: World) -> None:
        world.oracle.spoil = on_unknown_node
        key = await world.host.submit(1, 1)
        await world.step()
        assert await world.host.where(key) == []
        world.oracle.spoil = None
        world.clock.advance(SETTINGS.start_timeout_s + 1)
        for _ in range(3):
            await world.step()
            world.clock.advance(2)
        assert await world.host.where(key) == world.decided_nodes(key)
        assert world.oracle.double_placements == []
