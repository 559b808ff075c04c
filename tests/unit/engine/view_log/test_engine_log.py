"""The log records of decisions: ids, propensities, and observations as training data."""

import asyncio
import contextlib
import dataclasses

import pytest
import structlog
from structlog.testing import capture_logs
from tests.fakes.cluster import make_job
from tests.fakes.engine import CLUSTER, answer_is_on_its_way, ask_admit, ask_place, logged, place, running_engine
from tests.fakes.proteus_queue import bundled

from placewise_core.admit.greedy import GreedyAdmission, RoundNotes
from placewise_core.admit.registry import admission_policies
from placewise_core.admit.seen import Seen
from placewise_core.basics.clock import ManualClock
from placewise_core.domain.cluster import ClusterSettings, ExplorationGuard, ExplorerSettings
from placewise_core.domain.commands import AdmitCommand, JobEvent, JobEventKind
from placewise_core.domain.decision import DriftPlusPenalty, ShapeScore
from placewise_core.domain.errors import InvalidRequestError
from placewise_core.domain.job import ElasticRange, Job, JobId, Priority
from placewise_core.inputs.cluster import Encoder
from placewise_core.policies.registry import placement_policies
from placewise_core.speed.throughput import ThroughputModel
from placewise_log.record import AdmitSeen, DecisionRecord, decode, decode_entry, encode
from placewise_models.learned import LEARNED_POLICIES
from placewise_service.declog.tables import row_of
from placewise_service.engine import parts
from placewise_service.engine.engine import Engine
from placewise_service.state.reference.memory import MemoryStore
from placewise_service.state.store import ReserveRequest, ReserveResult


async def test_exploration_logs_the_propensity_of_what_came_out() -> None:
    async with running_engine(nodes=3) as engine:
        await engine.update_settings(CLUSTER, ClusterSettings(exploration_rate=0.5))
        seen = set()
        for i in range(40):
            decision = await ask_place(engine, place(make_job(f"j{i}"), seed=i, is_dry_run=False))
            seen.add(decision.meta.is_explored)
            assert 0.0 < decision.meta.propensity <= 1.0
            await engine.report_job_events(CLUSTER, [JobEvent(JobId(f"j{i}"), JobEventKind.FINISHED)])
        assert seen == {True, False}


async def test_explorers_by_name_have_their_shares_and_the_log_says_who_it_was() -> None:
    explorers = (ExplorerSettings("consolidate", 3), ExplorerSettings("random", 1))
    async with running_engine(nodes=4, gpus=40) as engine:
        await engine.update_settings(CLUSTER, ClusterSettings(exploration_rate=0.8, explorers=explorers))
        for i in range(60):
            await ask_place(engine, place(make_job(f"j{i}", workers=2, cpu_cores=0.5), seed=i))
        records = await placed_records(engine)
    draws = [(record.draws[0], record.place.decisions[0].propensity) for record in records if record.place]
    assert len(draws) == 60
    assert {draw.explorer for draw, _ in draws} == {"", "consolidate", "random"}
    for draw, propensity in draws:
        assert draw.rate == 0.8
        assert propensity >= {"": 0.2, "consolidate": 0.6}.get(draw.explorer, 0.0) - 1e-12
        assert draw.own_propensity in (0.0, 1.0)
        assert propensity >= 0.2 * draw.own_propensity


@pytest.mark.parametrize("name", [*placement_policies(), *LEARNED_POLICIES])
async def test_any_policy_may_be_an_explorer(name: str) -> None:
    in_force = "load-balance" if name == "consolidate" else "consolidate"
    async with running_engine(nodes=4, gpus=40) as engine:
        settings = ClusterSettings(exploration_rate=0.8, explorers=(ExplorerSettings(name, 1),))
        await engine.update_settings(CLUSTER, settings)
        for i in range(12):
            job = make_job(f"j{i}", workers=2, cpu_cores=0.5, total_epochs=5.0, single_gpu_s=60.0)
            await ask_place(engine, place(job, seed=i, policy=in_force))
        records = await placed_records(engine)
    draws = [(record.draws[0], record.place.decisions[0].propensity) for record in records if record.place]
    assert len(draws) == 12
    assert {draw.explorer for draw, _ in draws} == {"", name}
    for draw, propensity in draws:
        least = {"": 0.2, "random": 0.0}.get(draw.explorer, 0.8)
        assert max(least, 0.2 * draw.own_propensity) - 1e-12 <= propensity <= 0.2 * draw.own_propensity + 0.8 + 1e-12


async def test_a_request_says_of_each_job_whether_it_was_explored() -> None:
    async with running_engine(nodes=4, gpus=8) as engine:
        await engine.update_settings(CLUSTER, ClusterSettings(exploration_rate=0.5))
        answer = await ask_place(engine, place(*(make_job(f"j{i}") for i in range(12)), seed=3))
        (record,) = await placed_records(engine)
    assert answer.meta.is_explored
    assert {draw.is_explored for draw in record.draws} == {True, False}
    (columns,) = [row_of(CLUSTER, "1-0", encode(record))[2]]
    assert columns["job_ids"] == [draw.job_id for draw in record.draws]
    assert columns["job_is_explored"] == [draw.is_explored for draw in record.draws]
    assert columns["job_exploration_rates"] == [0.5] * 12
    assert columns["job_propensities"] == [decided.propensity for decided in answer.decisions]


@pytest.mark.parametrize(
    ("guard", "verdict"),
    [
        (ExplorationGuard(max_gpus=1.0), "MAX_GPUS"),
        (ExplorationGuard(min_nodes=4), "MIN_NODES"),
        (ExplorationGuard(is_urgent_spared=True), "URGENT"),
        (ExplorationGuard(max_gpus=2.0, min_nodes=3), ""),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else "",
)
async def test_the_guard_spares_a_job_before_anything_is_drawn(guard: ExplorationGuard, verdict: str) -> None:
    job = dataclasses.replace(make_job("a", workers=2), priority=Priority.URGENT)
    async with running_engine(nodes=3) as engine:
        await engine.update_settings(CLUSTER, ClusterSettings(exploration_rate=1.0, exploration_guard=guard))
        answer = await ask_place(engine, place(job, seed=1))
        (record,) = await placed_records(engine)
    (draw,) = record.draws
    assert draw.guard == verdict
    assert answer.meta.is_explored is not bool(verdict)
    assert draw.rate == (0.0 if verdict else 1.0)
    if verdict:
        assert answer.meta.propensity == draw.own_propensity == 1.0


async def test_an_explorer_that_does_not_exist_is_refused() -> None:
    async with running_engine() as engine:
        with pytest.raises(InvalidRequestError, match=r"no policy 'consolidat', did you mean 'consolidate'"):
            await engine.update_settings(CLUSTER, ClusterSettings(explorers=(ExplorerSettings("consolidat"),)))


async def test_explorers_that_the_bundle_does_not_allow_any_more_explore_nothing() -> None:
    async with running_engine(nodes=2) as engine:
        live = await engine._parts.views.get(CLUSTER)
        gone = ClusterSettings(exploration_rate=1.0, explorers=(ExplorerSettings("gone"),))
        live.view.settings = gone
        assert not (await ask_place(engine, place(make_job("a")))).meta.is_explored


async def placed_records(engine: Engine) -> list[DecisionRecord]:
    assert await logged(engine)
    found = [decode_entry(data) for _, data in await engine._parts.store.read_decisions(CLUSTER, "0", 1000)]
    return [entry for entry in found if isinstance(entry, DecisionRecord)]


async def test_every_decision_has_a_log_line_with_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "log", structlog.get_logger())  # not one that another test's configuration is cached in
    async with running_engine() as engine:
        with capture_logs() as lines:
            placed = await ask_place(engine, place(make_job("a")))
            admitted = await ask_admit(engine, AdmitCommand(CLUSTER, "q", (make_job("b"),)))
            assert await logged(engine)  # lines are written once the answer is on its way
        decided = {line["decision_id"]: line for line in lines if line["event"] == "decided"}
        assert decided.keys() == {placed.meta.decision_id, admitted.meta.decision_id}
        assert decided[placed.meta.decision_id]["rpc"] == "Place"
        assert decided[placed.meta.decision_id]["log_level"] == "debug"


async def test_what_will_be_learned_from_is_logged_as_it_was_seen() -> None:
    async with running_engine(nodes=3, gpus=2) as engine:
        await ask_place(engine, place(make_job("before", gpus=2.0)))
        plain = await ask_place(engine, place(make_job("unexplored")))
        await answer_is_on_its_way()
        await engine.update_settings(CLUSTER, ClusterSettings(exploration_rate=0.5))
        view = (await engine.get_cluster(CLUSTER)).view
        expected = Encoder().encode(view, [make_job("a", workers=2)], 1_000_000.0)
        answer = await ask_place(engine, place(make_job("a", workers=2), seed=4))
        assert await logged(engine)
        assert (await engine.get_decision(CLUSTER, plain.meta.decision_id)).choices == ()
        (choice,) = (await engine.get_decision(CLUSTER, answer.meta.decision_id)).choices
        seen = {name: tensor.unpack() for name, tensor in choice.observation.items()}
        assert (seen["nodes"] == expected.nodes).all()
        assert (seen["jobs"] == expected.jobs).all()
        assert (seen["placement"] == expected.placement).all()
        assert choice.mask is not None
        mask = choice.mask.unpack()
        assert mask.shape == (2, 6)
        assert not mask[:, 3:].any(), "an all-reduce job has no parameter servers"
        assert all(mask[step, action] for step, action in enumerate(choice.actions))
        nodes = [view.nodes.records[action].id for action in choice.actions]
        assert nodes == [a.node for a in answer.decisions[0].assignments]
        full = view.nodes.index[next(iter(view.jobs[JobId("before")].assignments)).node]
        assert not mask[:, full].any(), "full nodes are masked"


async def test_a_share_of_the_decisions_that_do_not_explore_is_logged_as_seen_too() -> None:
    async with running_engine(nodes=8, gpus=8, observe_share=0.5) as engine:
        await ask_place(engine, place(make_job("dry"), is_dry_run=True))
        for n in range(40):
            await ask_place(engine, place(make_job(f"j{n}")))
        assert await logged(engine)
        entries = await engine._parts.store.read_decisions(CLUSTER, "0", 100)
        dry, *records = [decode(data) for _, data in entries]
        assert dry.choices == ()
        assert {record.meta.propensity for record in records} == {1.0}
        seen = [record for record in records if record.choices]
        assert 5 <= len(seen) <= 35  # of 40 fair draws; outside once in a million runs
        assert all(record.choices[0].job_id == record.jobs[0].id for record in seen)


async def test_what_does_not_explore_is_logged_as_it_was_before_the_choice() -> None:
    async with running_engine(nodes=3, gpus=2, observe_share=1.0) as engine:
        view = (await engine.get_cluster(CLUSTER)).view
        expected = Encoder().encode(view, [make_job("a", workers=2)], 1_000_000.0)
        answer = await ask_place(engine, place(make_job("a", workers=2)))
        assert await logged(engine)
        (choice,) = (await engine.get_decision(CLUSTER, answer.meta.decision_id)).choices
        assert (choice.observation["nodes"].unpack() == expected.nodes).all()
        assert choice.mask is not None
        assert choice.mask.unpack()[0, :3].all()


async def test_a_large_cluster_is_logged_in_part_with_the_chosen_nodes_in_it() -> None:
    async with running_engine(nodes=200) as engine:
        await engine.update_settings(CLUSTER, ClusterSettings(exploration_rate=1.0))
        answer = await ask_place(engine, place(make_job("a", workers=20), seed=1))
        assert await logged(engine)
        (choice,) = (await engine.get_decision(CLUSTER, answer.meta.decision_id)).choices
        rows = choice.observation["rows"].unpack()
        view = (await engine.get_cluster(CLUSTER)).view
        assert len(rows) == 64
        assert choice.observation["nodes"].shape[0] == 64
        nodes = [view.nodes.records[rows[action]].id for action in choice.actions]
        assert nodes == [a.node for a in answer.decisions[0].assignments]
        assert choice.mask is not None
        assert choice.mask.shape == (16, 128)


class SilentStore(MemoryStore):
    """Reserves as requested, and once gives no answer."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.is_held = asyncio.Event()

    async def reserve(self, cluster: str, request: ReserveRequest) -> ReserveResult:
        result = await super().reserve(cluster, request)
        if not self.is_held.is_set():
            self.is_held.set()
            await asyncio.sleep(3600)
        return result


async def test_a_decision_whose_caller_has_gone_is_in_the_log_all_the_same() -> None:
    clock = ManualClock(1_000_000.0)
    store = SilentStore(clock)
    async with running_engine(nodes=2, store=store, clock=clock) as engine:
        asked = dataclasses.replace(place(make_job("a")), request_id="r-1")
        gone = asyncio.ensure_future(ask_place(engine, asked))
        await store.is_held.wait()
        gone.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await gone
        again = await ask_place(engine, asked)
        assert again.meta.is_repeated
        await engine.drain(5.0)
        assert (await engine.get_decision(CLUSTER, again.meta.decision_id)).jobs[0].id == "a"


async def test_an_admission_is_logged_with_the_state_that_it_was_decided_on() -> None:
    first, other = (make_job(name, gpus=0.0, single_gpu_s=3600.0) for name in ("first", "other"))
    async with running_engine(nodes=3, gpus=2) as engine:
        await ask_place(engine, place(make_job("before", gpus=2.0)))
        answers = [
            await ask_admit(engine, AdmitCommand(CLUSTER, "q", (first,), policy="proteus")),
            await ask_admit(engine, AdmitCommand(CLUSTER, "q", (first, other), policy="proteus")),
        ]
        records = [record for record in await placed_records(engine) if record.admit is not None]
    rows = [row_of(CLUSTER, "1-0", encode(record))[2] for record in records]
    assert [row["job_is_repeat"] for row in rows] == [[False], [True, False]]
    for row, answer in zip(rows, answers, strict=True):
        assert (row["queue_backlog_s"], row["queue_slot"]) == (answer.plan.queue.backlog_s, 100_000)
        assert row["job_verdicts"] == [given.verdict.value for given in answer.plan.admissions]
        assert row["job_gpus"] == [given.gpus for given in answer.plan.admissions]
        assert not any(given.drift_plus_penalty for given in answer.plan.admissions), "the caller asked for none"
        assert (row["free_gpus"], row["free_nodes"]) == (4, 2)
    scores = rows[0]["job_shape_scores"][0]
    best = rows[0]["job_shape_gpus"][0][scores.index(min(scores))]
    assert best == rows[0]["job_gpus"][0]
    assert all(row["job_shapes"][0] for row in rows)


async def test_a_job_that_finds_no_place_is_logged_as_it_was_seen() -> None:
    async with running_engine(nodes=2, gpus=2, observe_share=1.0) as engine:
        view = (await engine.get_cluster(CLUSTER)).view
        expected = Encoder().encode(view, [make_job("big", gpus=9.0)], 1_000_000.0)
        await ask_place(engine, place(make_job("big", gpus=9.0)))
        (record,) = await placed_records(engine)
    (choice,) = record.choices
    assert (record.outcome, choice.job_id, choice.actions, record.draws) == ("NO_FIT", "big", (), ())
    assert (choice.observation["nodes"].unpack() == expected.nodes).all()
    assert (choice.observation["jobs"].unpack() == expected.jobs).all()
    assert choice.mask is not None
    assert choice.mask.unpack().shape == (0, 4)


async def test_a_job_that_has_to_wait_is_logged_as_it_was_seen() -> None:
    async with running_engine(nodes=1, gpus=2, observe_share=1.0) as engine:
        await ask_place(engine, place(make_job("before", gpus=2.0)))
        await answer_is_on_its_way()
        view = (await engine.get_cluster(CLUSTER)).view
        expected = Encoder().encode(view, [make_job("a", gpus=2.0)], 1_000_000.0)
        await ask_place(engine, place(make_job("a", gpus=2.0)))
        record = (await placed_records(engine))[-1]
    (choice,) = record.choices
    assert (record.outcome, choice.job_id, choice.actions, record.draws) == ("WAIT", "a", (), ())
    assert (choice.observation["nodes"].unpack() == expected.nodes).all()
    assert choice.jobs == ("a", "before")


@pytest.mark.parametrize("policy", admission_policies(ThroughputModel(bundled("throughput.json"))))
@pytest.mark.parametrize("is_dry_run", [False, True])
async def test_every_admission_has_the_candidates_of_each_job(policy: str, is_dry_run: bool) -> None:
    elastic = dataclasses.replace(make_job("elastic", single_gpu_s=600.0), groups=(), elastic=ElasticRange(1, 2))
    jobs = (elastic, make_job("rigid", single_gpu_s=900.0), make_job("wide", gpus=9.0))
    async with running_engine(nodes=3, gpus=2) as engine:
        answer = await ask_admit(engine, AdmitCommand(CLUSTER, "q", jobs, policy=policy, is_dry_run=is_dry_run))
        (record,) = await placed_records(engine)
    row = row_of(CLUSTER, "1-0", encode(record))[2]
    if policy == "proteus-paper":  # decides about one job a slot
        assert row["job_shape_gpus"] == [[0, 1, 2], None, None]
        return
    found = [of and [(shape["nodes"], shape["gpus_per_node"]) for shape in of] for of in row["job_shapes"]]
    assert found == [[(1, 1), (1, 2), (2, 1)], [(1, 1)], None]
    for i, given in enumerate(answer.plan.admissions[:2]):
        chosen = row["job_shapes"][i][found[i].index((given.nodes, given.gpus_per_node))]
        assert chosen["cer"] == given.cer
        assert given.expected_finish_time_s == pytest.approx(record.time_s + chosen["latency_s"])


@pytest.mark.parametrize("policy", ["fifo", "fifo-strict"])
async def test_a_refusal_that_is_not_logged_again_works_no_candidates_out(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_out = GreedyAdmission._seen
    worked_out: list[RoundNotes] = []

    def counted(greedy: GreedyAdmission, notes: RoundNotes) -> Seen:
        worked_out.append(notes)
        return work_out(greedy, notes)

    monkeypatch.setattr(GreedyAdmission, "_seen", counted)
    command = AdmitCommand(CLUSTER, "q", (make_job("a", gpus=2.0),), policy=policy)
    async with running_engine(nodes=1, gpus=2) as engine:
        await ask_place(engine, place(make_job("before", gpus=2.0)))
        await answer_is_on_its_way()
        for _ in range(4):
            await ask_admit(engine, command)
        await engine.report_job_events(CLUSTER, [JobEvent(JobId("before"), JobEventKind.FINISHED)])
        await ask_admit(engine, command)
        refused, admitted = [record for record in await placed_records(engine) if record.admit is not None]
    assert (refused.outcome, admitted.outcome) == ("WAIT", "ADMIT")
    assert admitted.seen is not None
    assert admitted.seen.left_out == 3
    assert len(worked_out) == 2


def elastic_jobs(count: int, most: int) -> tuple[Job, ...]:
    alike = dataclasses.replace(make_job("a", single_gpu_s=600.0), groups=(), elastic=ElasticRange(1, most))
    return tuple(dataclasses.replace(alike, id=JobId(f"j{i}")) for i in range(count))


@pytest.mark.parametrize("policy", ["proteus", "proteus-qos", "qos"])
@pytest.mark.parametrize("is_dry_run", [False, True])
async def test_an_admission_is_logged_with_the_scores_that_it_would_explain(policy: str, is_dry_run: bool) -> None:
    command = AdmitCommand(CLUSTER, "q", elastic_jobs(8, 2), policy=policy, is_dry_run=is_dry_run)
    async with running_engine(nodes=3, gpus=2) as engine:
        explained = await ask_admit(engine, dataclasses.replace(command, is_explaining=True, is_dry_run=True))
        await ask_admit(engine, command)
        record = (await placed_records(engine))[-1]
    assert record.seen is not None
    assert not record.is_explaining
    assert {given.verdict for given in explained.plan.admissions} == {"ADMIT", "WAIT"}
    for given in explained.plan.admissions:
        assert record.seen.scores_of(given.job_id) == given.drift_plus_penalty
        assert bool(given.drift_plus_penalty) is (given.verdict == "ADMIT" and policy != "qos")
        assert bool(record.seen.shapes_of(given.job_id)) is (given.verdict == "ADMIT")


async def test_alike_jobs_share_a_table_of_shapes_64_at_most() -> None:
    async with running_engine(nodes=20, gpus=8) as engine:
        await ask_admit(engine, AdmitCommand(CLUSTER, "q", elastic_jobs(1, 99), policy="qos"))
        await ask_admit(engine, AdmitCommand(CLUSTER, "q", elastic_jobs(8, 2), policy="qos"))
        wide, alike = [record.seen for record in await placed_records(engine)]
    assert wide is not None
    assert alike is not None
    assert len(wide.shapes_of("j0")) == 64
    assert len(alike.tables) == 1
    assert alike.shapes_of("j0") == alike.shapes_of("j7")


async def test_an_explored_admission_has_its_candidates_and_scores() -> None:
    async with running_engine(nodes=3, gpus=2) as engine:
        await engine.update_settings(CLUSTER, ClusterSettings(admit_exploration_rate=1.0))
        for seed in range(8):
            await ask_admit(engine, AdmitCommand(CLUSTER, "q", elastic_jobs(3, 4), policy="proteus", seed=seed))
        records = [record for record in await placed_records(engine) if record.admit is not None]
    for record in records:
        assert record.admit is not None
        assert record.seen is not None
        for given in record.admit.plan.admissions:
            scored = [score.gpus for score in record.seen.scores_of(given.job_id)]
            assert bool(scored) is (given.verdict == "ADMIT")
            assert record.seen.shapes_of(given.job_id) or given.verdict == "WAIT"


async def test_records_of_older_versions_show_their_shapes_and_scores() -> None:
    shapes, scores = (ShapeScore(1, 2, 60.0, 1.5),), (DriftPlusPenalty(0, 0.0, 0.0), DriftPlusPenalty(2, -1.0, 60.0))
    seen = AdmitSeen(scores={"a": scores}, shapes={"a": shapes})
    assert (seen.shapes_of("a"), seen.scores_of("a")) == (shapes, scores)
    assert (seen.shapes_of("b"), seen.scores_of("b")) == ((), ())


async def test_a_search_says_what_it_reached_and_each_job_whether_a_fallback_placed_it() -> None:
    async with running_engine(nodes=3, gpus=4) as engine:
        placer = engine._placing.placer
        search = placer.policies["search"]
        await ask_place(engine, place(make_job("whole", workers=2), policy="search"))
        search._monotonic_s = lambda: 1e12  # type: ignore[attr-defined]  # past every deadline
        await ask_place(engine, place(make_job("late", workers=2), policy="search"), deadline_s=1e9)
        await ask_place(engine, place(make_job("plain"), policy="ldwp"))
        records = await placed_records(engine)
    whole, late, plain = [record.draws[0] for record in records]
    scores = [name for name in whole.info if name.startswith("score_")]
    assert (whole.info["asked"], whole.info["cut"], len(scores)) == (8.0, 0.0, whole.info["k"])
    assert (late.info["cut"], late.fallback_reason) == (1.0, "search: deadline")
    assert plain.fallback_reason == "ldwp: no pipeline"
    rows = [row_of(CLUSTER, "1-0", encode(record))[2]["job_fallback_reasons"] for record in records]
    assert rows == [[""], ["search: deadline"], ["ldwp: no pipeline"]]


async def test_a_policy_without_queues_logs_no_state_of_one() -> None:
    async with running_engine(nodes=1) as engine:
        await ask_admit(engine, AdmitCommand(CLUSTER, "q", (make_job("a"),), policy="fifo"))
        await ask_admit(engine, AdmitCommand(CLUSTER, "q", (make_job("a"), make_job("b")), policy="fifo"))
        records = await placed_records(engine)
    first, second = (row_of(CLUSTER, "1-0", encode(record))[2] for record in records)
    assert first["queue_backlog_s"] is first["queue_slot"] is None
    assert (first["job_verdicts"], first["job_is_repeat"]) == (["ADMIT"], [False])
    assert second["job_is_repeat"] == [True, False]


async def test_the_scores_of_shapes_follow_from_the_logged_state_of_the_queue() -> None:
    clock = ManualClock(1_000_000.0)
    jobs = tuple(make_job(f"j{i}", gpus=0.0, single_gpu_s=3600.0 + i) for i in range(5))
    async with running_engine(nodes=3, gpus=2, clock=clock) as engine:
        for _ in range(4):
            await ask_admit(engine, AdmitCommand(CLUSTER, "q", jobs, policy="proteus-paper"))
            clock.advance(10.0)
        records = [record for record in await placed_records(engine) if record.admit is not None]
        settings = engine._parts.options.queue
    backlogs = set()
    for record in records:
        assert record.admit is not None
        assert record.seen is not None
        row, waiting = row_of(CLUSTER, "1-0", encode(record))[2], record.admit.plan.queue.waiting
        backlogs.add(row["queue_backlog_s"])
        urgency = (row["queue_backlog_s"] + row["queue_delay_s"]) / settings.tau_s
        for job_id, (_, *shapes) in record.seen.scores.items():
            served = waiting[job_id] / settings.tau_s
            for shape in shapes:
                expected = settings.v * shape.cost_s / settings.tau_s + served * served - served * urgency
                assert shape.value == pytest.approx(expected, rel=1e-12)
    assert len(backlogs) == 4
