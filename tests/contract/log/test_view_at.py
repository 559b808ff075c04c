"""Two replicas on one Redis: each logged decision is made again from the log, on the view that it had read."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contract.log.calls import DisturbedHost, ExploringHost, LearningHost, PairingHost, SlicedHost, cases
from tests.contract.log.replicas import (
    CLUSTER,
    EXPLORING,
    POLICIES,
    CrowdedHost,
    WishfulHost,
    check,
    policies_of,
    write_log,
)
from tests.contract.log.trials import CANARY
from tests.fakes.declog import rows
from tests.fakes.servers.redis_server import RedisServer

from placewise_core.domain.decision import Reason
from placewise_core.policies.trial.arms import Arm
from placewise_log.reading import ExportedLog
from placewise_log.record import PlaceSeen
from placewise_log.repeating import decide_again
from placewise_log.views import Snapshot, decode_view_entry
from placewise_models.learned import LEARNED_POLICIES
from placewise_service.engine.view_log import notes, writing

RECORDS, OTHERS, TRIED = 30, 18, 60


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    started = RedisServer().start()
    yield started
    started.stop()


@pytest.mark.parametrize("policy", POLICIES)
async def test_the_view_the_seed_and_the_policy_give_the_logged_answer(
    policy: str, server: RedisServer, tmp_path: Path
) -> None:
    server.client().flushall()
    replicas = await write_log(server.url, policy, RECORDS, tmp_path)
    assert policy == EXPLORING or policy in replicas[0].place_policies
    found = check(ExportedLog(tmp_path), replicas[0])
    for engine in replicas:
        await engine.close()
    assert found.problems == []
    assert found.same >= RECORDS
    assert found.in_flight > 0, "nobody decided beside a gang in flight"


@pytest.mark.parametrize("policy", ["search", "ldwp"])
async def test_explored_decisions_are_made_again_whichever_policy_is_in_force(
    policy: str, server: RedisServer, tmp_path: Path
) -> None:
    server.client().flushall()
    replicas = await write_log(server.url, policy, RECORDS, tmp_path, host_type=ExploringHost)
    log = ExportedLog(tmp_path)
    found, explored = (
        check(log, replicas[0]),
        [record for record in log.records() if any(d.explorer for d in record.draws)],
    )
    for engine in replicas:
        await engine.close()
    assert found.problems == []
    assert explored


async def test_decisions_after_conflicts_are_made_again(server: RedisServer, tmp_path: Path) -> None:
    """Two replicas fill the same few nodes from the same end."""
    conflicts = 0
    for policy in ("consolidate", "bin-packing"):
        server.client().flushall()
        replicas = await write_log(server.url, policy, RECORDS, tmp_path / policy, host_type=CrowdedHost)
        found = check(ExportedLog(tmp_path / policy), replicas[0])
        for engine in replicas:
            await engine.close()
        assert found.problems == []
        conflicts += found.conflicts
    assert conflicts > 0


@pytest.mark.parametrize("policy", [EXPLORING, "harmony", "random"])
async def test_wishes_of_gangs_are_decided_again(policy: str, server: RedisServer, tmp_path: Path) -> None:
    server.client().flushall()
    replicas = await write_log(server.url, policy, 3 * RECORDS, tmp_path, host_type=WishfulHost)
    log = ExportedLog(tmp_path)
    found = check(log, replicas[0])
    for engine in replicas:
        await engine.close()
    assert found.problems == []
    refused = [
        given.blockers[0].reason
        for each in log.records()
        if each.place
        for given in each.place.decisions
        if given.blockers
    ]
    assert {Reason.KEEP_TOGETHER, Reason.EXCLUSIVE_NETWORK} & set(refused)


async def test_a_policy_that_learns_disturbance_is_decided_again(server: RedisServer, tmp_path: Path) -> None:
    """Now and then no gang on several nodes is ever alone, and nothing can be learned: then the next seed is tried."""
    weight, seeds = 0.0, iter(range(1, 6))
    while not weight:
        seed = next(seeds)
        server.client().flushall()
        replicas = await write_log(
            server.url, "adaptive", 6 * RECORDS, tmp_path / str(seed), seed, host_type=DisturbedHost
        )
        found = check(ExportedLog(tmp_path / str(seed)), replicas[0])
        weight = (await replicas[0].get_cluster(CLUSTER)).view.estimates.disturbance.weight
        for engine in replicas:
            await engine.close()
        assert found.problems == []


async def test_decisions_that_read_learned_pairs_are_made_again(server: RedisServer, tmp_path: Path) -> None:
    has_learned, seed = False, 0
    while not has_learned and seed < 5:  # it is a matter of chance whether two jobs on one GPU report their speeds
        seed += 1
        server.client().flushall()
        directory = tmp_path / str(seed)
        replicas = await write_log(server.url, "consolidate", 10 * RECORDS, directory, seed, PairingHost)
        found = check(ExportedLog(directory), replicas[0])
        has_learned = bool((await replicas[0].get_cluster(CLUSTER)).view.estimates.pairs.cells())
        for engine in replicas:
            await engine.close()
        assert found.problems == []
    assert has_learned


async def test_views_are_rebuilt_from_later_snapshots_with_gangs_in_flight(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notes, "_VERSIONS", 3)
    monkeypatch.setattr(writing, "_PERIOD_S", 0.001)
    server.client().flushall()
    replicas = await write_log(server.url, "consolidate", 2 * RECORDS, tmp_path, host_type=CrowdedHost)
    found = check(ExportedLog(tmp_path), replicas[0])
    for engine in replicas:
        await engine.close()
    entries = [decode_view_entry(row["record"]) for row in rows(tmp_path, "views")]  # type: ignore[arg-type]
    snapshots = [entry for entry in entries if isinstance(entry, Snapshot)]
    assert found.problems == []
    assert len(snapshots) > 2 + len(replicas)
    assert any(each.assumed for each in snapshots)


@pytest.mark.parametrize("case", [name for name in cases() if name.startswith(("admit", "node", "partition"))])
async def test_other_calls_are_decided_again(case: str, server: RedisServer, tmp_path: Path) -> None:
    server.client().flushall()
    policy, host_type = cases()[case]
    records = 8 * OTHERS if host_type is LearningHost else OTHERS
    replicas = await write_log(server.url, policy, records, tmp_path, host_type=host_type)
    found = check(ExportedLog(tmp_path), replicas[0])
    for engine in replicas:
        await engine.close()
    assert found.problems == []
    assert (found.learned > 0, found.sped > 0) == (host_type is LearningHost,) * 2
    call = {"admit": "AdmitOrWait", "partition": "Partition", "node": "Place"}[case.split(maxsplit=1)[0]]
    assert found.calls[f"{call} {policy}"] >= OTHERS / 3


@pytest.mark.parametrize("case", [name for name in cases() if name.startswith(("killed", "canary"))])
async def test_the_stand_in_of_a_kill_switch_and_both_arms_of_a_canary_decide_again(
    case: str, server: RedisServer, tmp_path: Path
) -> None:
    server.client().flushall()
    policy, host_type = cases()[case]
    replicas = await write_log(server.url, policy, TRIED, tmp_path, host_type=host_type)
    log = ExportedLog(tmp_path)
    found, policies = check(log, replicas[0]), policies_of(replicas[0])
    for engine in replicas:
        await engine.close()
    assert found.problems == []
    assert (found.killed > TRIED / 3) == case.startswith("killed") * (policy in LEARNED_POLICIES)
    assert (found.armed > TRIED / 3) == case.startswith("canary")
    for record in log.records():
        if record.canary is not None and Arm.CANARY in {each.arm for each in record.canary.arms}:
            without = {name: each for name, each in policies.items() if name != CANARY}
            with pytest.raises(ValueError, match=f"needs the policies of the bundle '{CANARY}'"):
                decide_again(record, log.views_of(record), without)
        if any(draw.fallback_reason.endswith(": kill switch") for draw in record.draws):
            older = replace(record, asked=PlaceSeen())
            with pytest.raises(ValueError, match="logged no heuristic"):
                decide_again(older, log.views_of(record), policies)


@pytest.mark.parametrize("policy", ["random", "harmony"])
async def test_requests_in_slices_are_decided_again(policy: str, server: RedisServer, tmp_path: Path) -> None:
    server.client().flushall()
    replicas = await write_log(server.url, policy, OTHERS, tmp_path, host_type=SlicedHost)
    found = check(ExportedLog(tmp_path), replicas[0])
    for engine in replicas:
        await engine.close()
    assert found.problems == []
    assert found.sliced > 0
