"""A share's time counts only for a step that accounting shows: what slurmrestd really sends, and when it is asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.counted import counted
from tests.fakes.quick.logged import warnings_logged
from tests.unit.slurm.test_shares import BATCH, JOB, PLACED, RUNNING, WALL_OFFSET_S, Clock, FakeClient, ended, taken

from placewise_client.adapter.metrics import AdapterMetrics
from placewise_client.adapter.native import AdapterSettings
from placewise_slurm.http import TransportError
from placewise_slurm.records import SlurmStep
from placewise_slurm.rest import SlurmAccounting, SlurmRest
from placewise_slurm.shares import JobShares
from placewise_slurm.steps import StepLookups
from placewise_slurm.versions import VERSIONS

CASES = Path(__file__).parents[2] / "cases" / "slurm"
BEGAN_S = 5000.0  # wall time of the clock's first reading
BOTH = frozenset({"n1", "n2"})


def shown(step: str = "0", *, ended_s: float = 0.0, cluster: str = "") -> SlurmStep:
    state = "COMPLETED" if ended_s else "RUNNING"
    return SlurmStep(step, state, BOTH, BEGAN_S, ended_s, cluster)


@dataclass
class Site:
    """Shares that were handed out, and the accounting that vouches for them. Time passes only by `pass_s`."""

    shares: JobShares
    clock: Clock
    steps: list[SlurmStep] | None = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    woken: int = 0

    async def ask(self, job_id: int) -> Sequence[SlurmStep]:
        self.asked.append(job_id)
        if self.steps is None:
            raise TransportError("slurmdbd is away")
        return self.steps

    def hear(self, what: str, node: str = "n1", rank: int = 0, *, step: str = "0", job_id: int = 7) -> bool:
        return self.shares.hear(what, job_id, step, node, rank)

    async def look(self, times: int = 1) -> None:
        """The next look-ups, as far as there are any due."""
        for _ in range(times):
            if self.lookups._due:
                await self.lookups.look(self.shares.learn)

    @property
    def lookups(self) -> StepLookups:
        assert self.shares.lookups is not None
        return self.shares.lookups

    def wake(self) -> None:
        self.woken += 1

    async def settle(self, lasted_s: float = 100) -> dict[str, float]:
        self.shares.finish(ended(lasted_s))
        await self.look(5)
        return taken(self.shares)


@pytest.fixture
async def site(tmp_path: Path) -> Site:
    clock = Clock()
    client: Any = FakeClient()
    shares = JobShares(client, AdapterSettings("c"), tmp_path, clock, lambda: clock() + WALL_OFFSET_S)
    found = Site(shares, clock)

    async def sleep(seconds: float) -> None:
        clock.now_s += seconds

    shares.lookups = StepLookups(found.ask, clock, sleep)
    shares.wake = found.wake
    await shares(JOB, PLACED)
    return found


async def test_a_time_counts_for_a_step_that_is_shown_running_and_then_over(site: Site) -> None:
    site.steps = [shown()]
    assert not site.hear("begin")  # nothing to look at in slurmctld
    await site.look()
    site.clock.now_s += 10
    site.hear("end")
    site.steps = [shown(ended_s=site.clock() + WALL_OFFSET_S)]
    assert await site.settle() == {"n1/gpu0": 10.5}
    assert site.asked == [7, 7]
    assert site.woken == 1
    assert counted(site.shares.metrics.shares) == {"reported": 1, "unheard": 2}
    assert site.shares.take() == []


async def test_the_batch_script_is_known_by_its_number_and_by_its_name(site: Site) -> None:
    site.hear("begin", step=BATCH)
    site.clock.now_s += 3
    site.hear("end", step="batch")
    site.steps = [shown("batch", ended_s=BEGAN_S + 3)]
    assert await site.settle() == {"n1/gpu0": 3.0}


async def test_a_step_that_was_too_short_to_be_seen_running_counts_by_its_times(site: Site) -> None:
    site.hear("begin")
    site.clock.now_s += 0.25
    site.hear("end")
    site.steps = [shown(ended_s=BEGAN_S)]
    assert await site.settle() == {"n1/gpu0": 0.25}


@pytest.mark.parametrize(
    "steps",
    [
        [],
        [shown("1")],
        [replace(shown(), nodes=frozenset({"n2"}))],
        [replace(shown(), state="PENDING")],
        [replace(shown(), start_time_s=0)],
        [replace(shown(), start_time_s=BEGAN_S + 2)],  # began after that report
        [shown(ended_s=BEGAN_S + 8)],  # over before that report
        [shown(ended_s=BEGAN_S - 2)],
        None,
    ],
)
async def test_what_accounting_does_not_bear_out_does_not_count(site: Site, steps: list[SlurmStep] | None) -> None:
    site.steps = steps
    site.hear("begin")
    site.clock.now_s += 10
    site.hear("end")
    assert await site.settle() == {}
    doubted = "no_accounting" if steps is None else "refused"
    assert counted(site.shares.metrics.shares) == {doubted: 1, "unheard": 2}
    assert not site.lookups._due


async def test_the_job_of_another_cluster_with_that_number_vouches_for_nothing(site: Site) -> None:
    await site.shares(replace(JOB, cluster="ours"), PLACED)
    site.hear("begin")
    site.clock.now_s += 10
    site.hear("end")
    site.steps = [shown(cluster="theirs", ended_s=BEGAN_S + 10)]
    assert await site.settle() == {}


async def test_a_job_that_runs_vouches_for_nothing(site: Site) -> None:
    site.hear("begin")
    site.shares.see(RUNNING)
    site.clock.now_s += 10
    site.hear("end")
    assert await site.settle() == {}


async def test_a_step_that_is_recorded_late_is_waited_for(site: Site) -> None:
    site.hear("begin")
    await site.look(2)
    site.clock.now_s += 10
    site.hear("end")
    site.shares.finish(ended())
    await site.look(2)
    site.steps = [shown(ended_s=site.clock() + WALL_OFFSET_S)]
    await site.look()
    assert taken(site.shares)["n1/gpu0"] == pytest.approx(11.5)  # 10 s and the two first look-ups' waits


async def test_a_begin_too_early_does_not_stand_in_the_way_of_the_real_one(site: Site) -> None:
    site.hear("begin")
    await site.look()
    site.clock.now_s += 60
    real_s = site.clock() + WALL_OFFSET_S
    site.hear("begin")
    site.hear("begin")
    site.steps = [replace(shown(), start_time_s=real_s)]
    await site.look()
    site.clock.now_s += 5
    site.hear("begin")  # one too many: the step has been shown
    site.clock.now_s += 5
    site.hear("end")
    site.hear("end")
    site.steps = [replace(shown(ended_s=site.clock() + WALL_OFFSET_S), start_time_s=real_s)]
    assert (await site.settle(200))["n1/gpu0"] == pytest.approx(10.5, abs=0.6)


async def test_a_storm_of_datagrams_is_a_few_look_ups(site: Site) -> None:
    for _ in range(100):
        for step in range(100):
            site.hear("begin", step=str(step))
            site.hear("end", step=str(step))
    await site.look(50)
    assert len(site.asked) == 5
    site.clock.now_s += 60
    for step in range(100, 200):  # what Slurm never showed makes room
        site.hear("begin", step=str(step))
    assert len(site.shares._shared[7].steps["n1", 0]) <= 16


async def test_only_so_many_jobs_wait_to_be_looked_up() -> None:
    lookups = StepLookups(lambda _: asyncio.sleep(0, []))
    assert sum(lookups.want(job_id) for job_id in range(5000)) == 1000
    assert lookups.want(0)


async def test_a_site_without_accounting_is_told_once(site: Site) -> None:
    site.steps = None
    with warnings_logged() as records:
        for _ in range(3):
            site.clock.now_s += 60
            site.hear("begin")
            await site.look(5)
        assert len(site.asked) == 15
        (record,) = records
        assert "slurmdbd is away" in record.getMessage()
        assert "hooks.share_steps" in record.getMessage()
        site.steps = []
        site.clock.now_s += 60
        site.hear("begin")
        await site.look()
        site.steps = None
        await site.look()
    assert len(records) == 2  # it has been there meanwhile


async def test_a_job_that_is_forgotten_while_it_is_looked_up_asks_for_nothing_more(site: Site) -> None:
    site.hear("begin")
    site.shares.clean(set())
    await site.look()
    assert not site.lookups._due
    site.hear("begin")
    assert not site.lookups._due


async def test_a_job_that_has_ended_is_kept_until_its_steps_are_known(site: Site) -> None:
    site.hear("begin")
    site.clock.now_s += 2
    site.hear("end")
    site.shares.finish(ended())
    site.shares.clean(set())
    site.steps = [shown(ended_s=BEGAN_S + 2)]
    await site.look()
    assert taken(site.shares) == {"n1/gpu0": 2.0}


async def test_what_is_wanted_while_it_is_asked_is_asked_again() -> None:
    clock, asked = Clock(), 0

    async def sleep(seconds: float) -> None:
        clock.now_s += seconds

    async def ask(job_id: int) -> list[SlurmStep]:
        nonlocal asked
        asked += 1
        if asked == 5:
            lookups.want(job_id)
        return []

    lookups = StepLookups(ask, clock, sleep)
    lookups.want(7)
    while lookups._due:
        await lookups.look(lambda job_id, steps, *, is_last: False)
    assert asked == 10


# --- what slurmrestd sends ------------------------------------------------------------------------------------------


@dataclass
class Replies:
    """Stands for JsonHttp: answers with recorded responses."""

    reply: Any

    async def request(self, method: str, path: str) -> Any:
        assert (method, path.rpartition("/")[2]) == ("GET", "1")
        return self.reply


Reading = Callable[[str], Awaitable[list[SlurmStep]]]


@pytest.fixture(params=list(VERSIONS))
def read(request: pytest.FixtureRequest) -> Reading:
    case = json.loads((CASES / f"steps.{request.param}.json").read_text())

    async def steps(name: str) -> list[SlurmStep]:
        http: Any = Replies(case[name])
        return await SlurmAccounting(http, SlurmRest(http, VERSIONS[request.param])).steps(1)

    return steps


async def test_steps_as_each_version_shows_them(read: Reading) -> None:
    batch, first = await read("began")
    assert (batch.id, batch.state, batch.nodes, batch.end_time_s) == ("batch", "RUNNING", {"n1"}, 0)
    assert (first.id, first.state, first.nodes, first.end_time_s) == ("0", "RUNNING", {"n1", "n2"}, 0)
    assert first.start_time_s > 1.7e9
    assert first.cluster == "pw"
    batch, over, second = await read("went_on")
    assert (batch.is_running, over.is_running, second.is_running) == (True, False, True)
    assert over.end_time_s - over.start_time_s == pytest.approx(12, abs=1)
    assert (second.id, second.nodes) == ("1", {"n1"})


async def test_a_job_that_accounting_does_not_know_has_no_steps(read: Reading) -> None:
    assert await read("unknown") == []


async def test_slurmdbd_that_is_away_is_no_answer(read: Reading) -> None:
    with pytest.raises(TransportError, match="slurmdbd"):
        await read("away")


@pytest.mark.parametrize("reply", [None, {}, "Unable to find path", {"jobs": [{"steps": ["0"]}]}])
async def test_a_slurmrestd_without_accounting_is_no_answer(reply: Any) -> None:
    http: Any = Replies(reply)
    with pytest.raises(TransportError, match=r"/slurmdb|cannot be read"):
        await SlurmAccounting(http, SlurmRest(http)).steps(1)


def test_the_metric_says_what_came_of_the_shares() -> None:
    metrics = AdapterMetrics()
    metrics.shares.labels("refused").inc()
    assert 'placewise_adapter_shares_total{result="refused"} 1.0' in metrics.text()
