"""Retraining beside a running service: each round exports the log, and a canary is set only if that was asked for."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.bundles import copy_bundle
from tests.fakes.logs.simulated_log import CLUSTER, simulated_log
from typer.testing import CliRunner

from placewise.v1.bundle_pb2 import ActivateBundleRequest, ListBundlesRequest, SetCanaryRequest
from placewise.v1.cluster_pb2 import Node, ReportNodesRequest
from placewise.v1.decision_pb2 import Outcome, PlaceRequest
from placewise.v1.job_pb2 import Job, Resources, TaskGroup
from placewise_client.sync import Client
from placewise_client.target import Target
from placewise_log.logs import Log
from placewise_log.reading import ExportedLog
from placewise_log.record import DecisionRecord, Entry, encode
from placewise_models.bundle import load
from placewise_models.folder import shipped_bundle
from placewise_service.api.identity.auth import AccessScope
from placewise_service.api.identity.token_changes import create_token
from placewise_service.bench.processes import redis_process, service_process
from placewise_service.state.redis.connection import RedisOptions
from placewise_service.state.redis.redis_store import RedisStore
from placewise_training.gate import checks
from placewise_training.retrain import rounds as repeating
from placewise_training.retrain.command import retrain_app
from placewise_training.retrain.retrain import RetrainArgs, Retrained
from placewise_training.retrain.rounds import Attempt, rounds
from placewise_training.retrain.served import ServedCluster
from placewise_training.sim.hardware import harmony_cluster
from placewise_training.sim.truths import make_truth
from placewise_training.sim.workloads import HarmonyWorkload

pytestmark = pytest.mark.e2e

SEED, JOBS = 6, 1500  # as tests/learning/sites/test_retrain.py has them
SHARE = 0.2


@dataclass
class Site:
    """A running service that demands tokens, and a schedule of retraining beside it. Each job that is placed is
    logged."""

    root: Path
    target: str
    host: Client
    placed: list[str] = field(default_factory=list)

    @property
    def token(self) -> Path:
        return self.root / "retrain.token"

    def served(self, share: float = 0.0) -> ServedCluster:
        return ServedCluster(self.target, self.root / "exports", CLUSTER, self.token, share=share)

    def place(self) -> None:
        name = f"job-{len(self.placed)}"
        group = TaskGroup(role=TaskGroup.WORKER, count=1, demand=Resources(gpus=1))
        answer = self.host.place(PlaceRequest(cluster=CLUSTER, jobs=[Job(id=name, groups=[group])]))
        assert answer.decisions[0].outcome == Outcome.PLACED
        self.placed.append(name)

    def canaries(self) -> Mapping[str, tuple[str, float]]:
        found = self.host.list_bundles(ListBundlesRequest()).canaries
        return {each.cluster: (each.bundle, each.share) for each in found}

    def states(self) -> set[str]:
        """Names of the bundles that the service can use."""
        return {each.name for each in self.host.list_bundles(ListBundlesRequest()).bundles if not each.refusal}

    def run(self, count: int = 1, share: float = 0.0) -> list[Attempt]:
        args = RetrainArgs(self.root / "exports", Path(), self.root / "bundles" / "retrained")
        return list(rounds(args, count, self.place, lambda *_: None, self.served(share)))


async def site_of(root: Path, redis_url: str, work: Any) -> None:
    """Starts the service with an empty folder of bundles, and calls `work` with the site, in a thread of its own."""
    (root / "bundles").mkdir()
    tokens = root / "tokens.yaml"
    host = create_token(tokens, "host", [each for each in AccessScope if each is not AccessScope.LOG])
    learner = create_token(tokens, "retrain", [AccessScope.LOG, AccessScope.READ, AccessScope.ADMIN])
    environment = {
        "PLACEWISE_REDIS_URL": redis_url,
        "PLACEWISE_BUNDLE_DIR": str(root / "bundles"),
        "PLACEWISE_AUTH__TOKENS_FILE": str(tokens),
    }
    async with service_process(environment) as service:
        (root / "retrain.token").write_text(f"{learner}\n")
        with Client(Target((service.target,), token=host)) as client:
            nodes = [Node(id=f"n{n}", capacity=Resources(cpu_cores=64, gpus=64, memory_gib=512)) for n in range(2)]
            await asyncio.to_thread(client.report_nodes, ReportNodesRequest(cluster=CLUSTER, nodes=nodes))
            await asyncio.to_thread(work, Site(root, service.target, client))


class Passed:
    is_promoted = True


@contextmanager
def gate_that_lets_everything_pass(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Path, int]]]:
    """In place of trainers and gate, which need thousands of jobs: the candidate is a copy of the shipped bundle.
    Yields the start of each retraining and the number of decisions in its log."""
    made: list[tuple[Path, int]] = []

    def retrain(args: RetrainArgs, show: object) -> Retrained:
        made.append((args.start, sum(1 for _ in ExportedLog(args.log).records())))
        copy_bundle(args.out, created=f"2026-02-{len(made):02d}T00:00:00Z")
        return Retrained(Passed(), (), args.out)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(repeating, "retrain", retrain)
        yield made


@pytest.mark.slow
async def test_each_round_exports_and_only_the_flag_sets_a_canary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(site: Site) -> None:
        shipped, folder = shipped_bundle(), tmp_path / "bundles"
        with gate_that_lets_everything_pass(monkeypatch) as made:
            (none,) = site.run()
            assert "has no decision of Place" in none.reason
            site.place()
            first, second = site.run(2)
            assert made == [(shipped, 1), (shipped, 2)]
            assert [each.args.out.name for each in (first, second)] == ["retrained-0001", "retrained-0002"]
            assert "no canary was asked for: placewise bundle canary retrained-0001 --share" in first.note
            assert not site.canaries()
            assert {shipped.name, "retrained-0001", "retrained-0002"} <= site.states()
            (equal,) = site.run()
            assert (equal.found, equal.reason) == (None, "the log is as it was")

            site.place()
            (third,) = site.run(share=SHARE)
            assert third.note == f"retrained-0003 is the canary of 20 % of the jobs of {CLUSTER}"
            assert site.canaries() == {CLUSTER: ("retrained-0003", SHARE)}

            site.place()  # one of the arms answers
            (waiting,) = site.run(share=SHARE)
            assert (waiting.found, waiting.reason) == (
                None, "retrained-0003 is a canary there: promote it or end it, and learning goes on",
            )  # fmt: skip

            site.host.set_canary(SetCanaryRequest(cluster=CLUSTER))
            site.place()
            assert site.run()[0].args.log.name != "from-0"
            assert made[-1] == (shipped, 1), "the log begins behind the canary"

            site.host.activate_bundle(ActivateBundleRequest(name="retrained-0003", cluster=CLUSTER), timeout_s=60.0)
            site.place()
            site.place()
            site.run()
            assert made[-1] == (folder / "retrained-0003", 2), "the log begins behind the bundle before"

    with redis_process() as redis:
        await site_of(tmp_path, redis.url, work)


@pytest.mark.slow
async def test_a_service_that_is_away_or_refuses_the_token_is_a_reason_and_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(site: Site) -> None:
        site.place()
        site.token.write_text("another\n")
        with gate_that_lets_everything_pass(monkeypatch) as made:
            (refused,) = site.run()
            assert "UNAUTHENTICATED" in refused.reason
            site.target = "127.0.0.1:1"
            (away,) = site.run()
            assert "the log was not exported" in away.reason
            assert made == []

    with redis_process() as redis:
        await site_of(tmp_path, redis.url, work)


@pytest.mark.slow
async def test_from_a_services_log_through_the_gate_to_a_canary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the number of jobs that the gate asks for is smaller: the ring holds what a week of work left there."""
    monkeypatch.setattr(checks, "MOST_LOSS", 0.1)
    shipped = load(shipped_bundle())
    entries: list[Entry] = []

    def answered(entry: Entry) -> Entry:
        if isinstance(entry, DecisionRecord):
            assert entry.place is not None
            meta = replace(entry.place.meta, bundle=shipped.name, bundle_digest=shipped.digest)
            entry = replace(entry, place=replace(entry.place, meta=meta))
        entries.append(entry)
        return entry

    truth = make_truth("site", SEED)
    jobs = HarmonyWorkload(jobs=JOBS, per_interval=3.0, pattern="poisson").generate(truth, SEED)
    played = await simulated_log(
        tmp_path / "unread", harmony_cluster(6), jobs, truth, policies=("load-balance", "consolidate"), seed=SEED,
        has_views=True, changed=answered,
    )  # fmt: skip

    def work(site: Site) -> None:
        options = {
            "--target": site.target, "--token-file": site.token, "--log": tmp_path / "exports",
            "--out": tmp_path / "bundles" / "retrained", "--every": 0.001, "--rounds": 1, "--policy": "consolidate",
            "--effort": 0.01, "--windows": 4, "--canary": SHARE,
        }  # fmt: skip
        words = [str(word) for option in options.items() for word in option]
        done = CliRunner().invoke(retrain_app, words)
        assert done.exit_code == 0, (done.output, done.exception)
        assert site.canaries() == {CLUSTER: ("retrained-0001", SHARE)}
        bundle = load(tmp_path / "bundles" / "retrained-0001")
        assert bundle.manifest.parent == {"name": shipped.name, "digest": shipped.digest}
        assert bundle.manifest.gate["cluster"] == CLUSTER
        assert (tmp_path / "bundles" / "retrained-0001.retrain" / "gate" / "gate.html").exists()
        again = CliRunner().invoke(retrain_app, words)
        assert (again.exit_code, "the log is as it was" in again.output) == (5, True)

    with redis_process() as redis:

        async def fed(site: Site) -> None:
            store = RedisStore(RedisOptions(url=redis.url))
            try:
                for record in played.views:
                    await store.append_decisions(CLUSTER, [record], Log.VIEWS)
                for entry in entries:
                    await store.append_decisions(CLUSTER, [encode(entry)])
            finally:
                await store.close()

        def both(site: Site) -> None:
            asyncio.run(fed(site))
            work(site)

        await site_of(tmp_path, redis.url, both)
