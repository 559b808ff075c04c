"""Alternatives and forecasts of Place decisions in the log, worked out after the answer."""

import asyncio
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from tests.fakes.cluster import make_job, make_node
from tests.fakes.engine import CLUSTER, answer_is_on_its_way, ask_place, logged, place, running_engine

from placewise_core.basics.arrays import Float32
from placewise_core.basics.clock import ManualClock
from placewise_core.domain.cluster import ClusterSettings, ExplorationGuard, ExplorerSettings, RunningJob
from placewise_core.domain.job import GpuSharing, Job, JobId, Resources, Role, TaskGroup
from placewise_core.gang.context import PlaceContext
from placewise_core.inputs.cluster import STEP_FEATURES
from placewise_core.inputs.reward import PartTokens
from placewise_core.policies.search import progress
from placewise_core.policies.studies.alternatives import Studied, studied
from placewise_log.record import DecisionRecord, decode_entry, encode
from placewise_service.declog.tables import row_of
from placewise_service.engine import Engine
from placewise_service.engine.place import alternatives, sliced_drafting

EXPLORERS = ("consolidate", "load-balance", "harmony", "search", "random", "harmony-sample")


async def records_of(engine: Engine) -> list[DecisionRecord]:
    assert await logged(engine)
    found = [decode_entry(data) for _, data in await engine._parts.store.read_decisions(CLUSTER, "0", 1000)]
    return [entry for entry in found if isinstance(entry, DecisionRecord)]


def exploring(rate: float = 0.6, **more: object) -> ClusterSettings:
    explorers = tuple(ExplorerSettings(name, weight) for weight, name in enumerate(EXPLORERS, 1))
    return ClusterSettings(exploration_rate=rate, explorers=explorers, **more)  # type: ignore[arg-type]


async def test_every_placement_that_might_have_been_has_its_probability() -> None:
    """The probability that a decision logged for a placement is the one that its alternatives state for it."""
    stated: dict[tuple[str, ...], float] = {}
    for i in range(25):
        async with running_engine(nodes=4, gpus=4, alternatives_share=1.0) as engine:
            await engine.update_settings(CLUSTER, exploring())
            await ask_place(engine, place(make_job("before"), seed=1, policy="bin-packing"))
            answer = await ask_place(engine, place(make_job("a", workers=2), seed=i))
            record = (await records_of(engine))[-1]
        assert record.alternatives is not None
        (chosen,) = [each for each in record.alternatives if each.is_chosen]
        tasks = sorted(answer.decisions[0].assignments, key=lambda task: task.task)
        assert chosen.nodes == tuple(task.node for task in tasks)
        assert chosen.propensity == answer.meta.propensity
        assert chosen.policy == (record.draws[0].explorer or answer.meta.policy)
        for each in record.alternatives:
            assert each.propensity is not None
            assert stated.setdefault(each.nodes, each.propensity) == pytest.approx(each.propensity, abs=1e-9)
    assert len(stated) > 4
    assert sum(stated.values()) <= 1.0 + 1e-9
    assert sum(stated.values()) > 0.8, "the rest are draws that nobody made here"


async def test_alternatives_are_of_the_view_that_was_decided_on() -> None:
    async with running_engine(nodes=3, gpus=2, alternatives_share=1.0) as engine:
        first = await engine.place(place(make_job("a", gpus=2.0), policy="load-balance"))
        await first.settled()
        for other in ("b", "c"):
            await ask_place(engine, place(make_job(other, gpus=2.0)))
        await answer_is_on_its_way()
        record = (await records_of(engine))[0]
        search = engine._parts.registry.policies_of(CLUSTER).learned.search
    assert search is not None
    found = record.alternatives
    assert found
    assert {each.nodes for each in found} <= {("n0",), ("n1",), ("n2",)}, "nothing was taken then"
    assert [each.own_propensity for each in found] == [1.0] + [0.0] * (len(found) - 1)
    assert all(each.progress_per_s is not None and each.progress_per_s > 0 for each in found)
    assert all(each.spread is not None and each.spread >= 0 for each in found) is search.has_spread


async def test_a_spared_job_and_one_of_a_cluster_that_does_not_explore_have_the_policys_own_probabilities() -> None:
    async with running_engine(nodes=3, gpus=4, alternatives_share=1.0) as engine:
        await ask_place(engine, place(make_job("a", workers=2), policy="load-balance"))
        await engine.update_settings(CLUSTER, exploring(1.0, exploration_guard=ExplorationGuard(max_gpus=1.0)))
        await ask_place(engine, place(make_job("b", workers=2), policy="load-balance", seed=1))
        for record in await records_of(engine):
            assert record.alternatives is not None
            assert len(record.alternatives) > 1
            assert [each.propensity for each in record.alternatives] == [
                float(each.is_chosen) for each in record.alternatives
            ]


async def test_tasks_have_the_nets_probabilities_and_tokens() -> None:
    demand = Resources(cpu_cores=1, gpus=1, memory_gib=4)
    job = Job(JobId("a"), model="ResNet-50", groups=(TaskGroup(Role.WORKER, 3, demand),))
    async with running_engine(nodes=3, gpus=2, alternatives_share=1.0) as engine:
        view = (await engine.get_cluster(CLUSTER)).view
        harmony = engine._placing.placer.explorers["harmony-sample"]
        await ask_place(engine, place(job, policy="harmony"))
        (record,) = await records_of(engine)
        (steps,) = record.steps
        assert sorted(steps.tasks) == ["worker-0", "worker-1", "worker-2"]
        assert steps.tokens.shape == (3, 3, STEP_FEATURES)
        assert steps.nodes == ("n0", "n1", "n2")
        assert all(0.0 < p <= 1.0 for p in steps.probabilities)
        view.remove_job(JobId("a"))
        assert record.place is not None
        tasks = record.place.decisions[0].assignments
        by_draws = harmony.probability(tasks, job, view, PlaceContext(1_000_000.0, 0))
    product = steps.probabilities[0] * steps.probabilities[1] * steps.probabilities[2]
    assert by_draws >= product - 1e-9, "by draws alone, and perhaps after one that ended them"


async def test_tasks_on_shared_gpus_have_the_nets_probabilities_too() -> None:
    sharing = GpuSharing(allowed=True, max_slowdown=4.0)
    nodes = [make_node(f"n{i}", 1, max_jobs_per_gpu=2) for i in range(3)]
    async with running_engine(nodes=3, gpus=1, alternatives_share=1.0) as engine:
        await engine.report_nodes(CLUSTER, nodes, full=False)
        await ask_place(engine, place(make_job("before", gpu_sharing=sharing)))
        await answer_is_on_its_way()
        await ask_place(engine, place(make_job("a", workers=2, gpu_sharing=sharing), policy="harmony"))
        record = next(record for record in await records_of(engine) if record.jobs[0].id == "a")
    (steps,) = record.steps
    assert steps.tasks == ("worker-0", "worker-1")
    assert all(0.0 < p <= 1.0 for p in steps.probabilities)
    assert row_of(CLUSTER, "1-0", encode(record))[2]["job_task_probabilities"] == [list(steps.probabilities)]


async def test_the_reward_models_inputs_give_its_forecasts_again() -> None:
    async with running_engine(nodes=4, gpus=4, alternatives_share=1.0) as engine:
        await ask_place(engine, place(make_job("near", workers=3, single_gpu_s=50.0)))
        await answer_is_on_its_way()
        job = make_job("a", workers=2, single_gpu_s=100.0)
        await ask_place(engine, place(job))
        record = next(record for record in await records_of(engine) if record.jobs[0].id == "a")
        reward = engine._parts.registry.bundle.reward
    (parts,), found = record.parts, record.alternatives
    assert reward is not None
    assert found is not None
    tokens, of_job, node = parts.tokens.unpack(), parts.job.unpack(), parts.node.unpack()
    assert tokens.shape[:2] == of_job.shape == node.shape
    assert len(tokens) == len(found)
    assert "near" in parts.jobs
    for k, each in enumerate(found):
        assert {parts.nodes[i] for i in node[k][of_job[k] == 0]} == set(each.nodes)
    again = PartTokens(
        tokens, of_job.astype(np.int64), node.astype(np.int64), tuple(near(view_job) for view_job in parts.jobs)
    )
    speeds = np.asarray(reward.speeds(again), dtype=np.float64)
    assert progress(speeds, job, again).tolist() == pytest.approx([each.progress_per_s for each in found], rel=1e-5)


def near(name: str) -> RunningJob:
    return RunningJob(make_job(name, workers=3, single_gpu_s=50.0), ())


async def test_tokens_of_an_observation_have_the_ids_behind_them() -> None:
    async with running_engine(nodes=3, gpus=2, observe_share=1.0) as engine:
        await ask_place(engine, place(make_job("before")))
        await ask_place(engine, place(make_job("a")))
        choice = (await records_of(engine))[-1].choices[0]
    assert choice.nodes == ("n0", "n1", "n2")
    assert choice.jobs == ("a", "before")
    assert len(choice.observation["jobs"].unpack()) == 2


async def test_the_columns_show_alternatives_and_are_null_without() -> None:
    async with running_engine(nodes=3, gpus=4, alternatives_share=1.0) as engine:
        await ask_place(engine, place(make_job("a"), make_job("big", gpus=99.0)))
        await ask_place(engine, place(make_job("dry"), is_dry_run=True))
        records = sorted(await records_of(engine), key=lambda record: record.is_dry_run)
    studied, dry = [row_of(CLUSTER, "1-0", encode(record))[2] for record in records]
    assert {each["job_id"] for each in studied["alternatives"]} == {"a"}
    assert [each["is_chosen"] for each in studied["alternatives"]].count(True) == 1
    assert studied["job_tasks"] == [["worker-0"], None]
    assert [len(p) for p in studied["job_task_probabilities"] if p] == [1]
    assert "alternatives" not in dry


@pytest.mark.parametrize("is_sliced", [False, True])
async def test_a_request_of_many_jobs_has_alternatives_of_four_that_are_drawn(
    is_sliced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sliced_drafting, "_MOST_LOOKS", 0 if is_sliced else 10**9)
    drawn: Counter[str] = Counter()
    async with running_engine(nodes=40, gpus=8, alternatives_share=1.0) as engine:
        for n in range(40):
            await ask_place(engine, place(*(make_job(f"{i}-{n}") for i in range(8)), policy="load-balance"))
            assert await logged(engine)
            engine._studying._rests_until_s = 0.0
        records = await records_of(engine)
    for record in records:
        studied_jobs = {each.job_id for each in record.alternatives or ()}
        assert len(studied_jobs) == 4
        drawn.update(job.partition("-")[0] for job in studied_jobs)
    assert len(records) == 40
    assert all(5 <= drawn[str(i)] <= 35 for i in range(8)), "outside once in a million runs"


class Reading:
    """A net or a model that keeps its inputs."""

    def __init__(self, whole: object) -> None:
        self._whole, self.steps, self.tokens = whole, list[Float32](), list[PartTokens]()
        self.logits: list[Float32] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._whole, name)

    def decode(self, state: object, job: int, step: Float32) -> Float32:
        self.steps.append(step.copy())
        self.logits.append(self._whole.decode(state, job, step))  # type: ignore[attr-defined]
        return self.logits[-1]

    def speeds(self, tokens: PartTokens) -> Float32:
        self.tokens.append(tokens)
        return self._whole.speeds(tokens)  # type: ignore[attr-defined,no-any-return]

    def speeds_and_spread(self, tokens: PartTokens) -> tuple[Float32, Float32]:
        self.tokens.append(tokens)
        return self._whole.speeds_and_spread(tokens)  # type: ignore[attr-defined,no-any-return]


async def test_the_steps_in_the_log_are_those_that_harmonys_net_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_engine(nodes=4, gpus=4, alternatives_share=1.0) as engine:
        harmony = engine._placing.placer.policies["harmony"]
        net = Reading(harmony._net)  # type: ignore[attr-defined]
        await ask_place(engine, place(make_job("before", workers=3), policy="load-balance"))
        await answer_is_on_its_way()
        await logged(engine)
        engine._studying._rests_until_s = 0.0
        monkeypatch.setattr(harmony, "_net", net)
        await ask_place(engine, place(make_job("a", workers=3), policy="harmony"))
        read = np.stack(net.steps)
        await ask_place(engine, place(make_job("later", workers=3), policy="load-balance"))
        (steps,) = next(record for record in await records_of(engine) if record.jobs[0].id == "a").steps
    assert np.array_equal(steps.tokens.unpack(), read)


@pytest.mark.parametrize("policy", ["harmony", "harmony-sample"])
async def test_the_steps_of_a_requests_later_jobs_are_those_that_the_net_read(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On more nodes than the net looks at. Jobs of one request share an encoding, so the net reads the second one
    beside the first: encoded alone it has other candidates and probabilities."""
    async with running_engine(nodes=40, gpus=4, alternatives_share=1.0) as engine:
        rate = float(policy == "harmony-sample")
        settings = ClusterSettings(exploration_rate=rate, explorers=(ExplorerSettings("harmony-sample"),))
        await engine.update_settings(CLUSTER, settings)
        net = Reading(engine._placing.placer.policies["harmony"]._net)  # type: ignore[attr-defined]
        monkeypatch.setattr(engine._placing.placer.policies["harmony"], "_net", net)
        jobs = [make_job(name, workers=workers, single_gpu_s=100.0) for name, workers in (("a", 2), ("b", 3))]
        decision = await ask_place(engine, place(*jobs, policy="harmony"))
        seen, logits = list(net.steps), list(net.logits)
        (record,) = await records_of(engine)
    assert len(record.steps) == len(jobs)
    read = [step.tobytes() for step in seen]
    for answered in decision.decisions:
        (steps,) = [each for each in record.steps if each.job_id == answered.job_id]
        nodes = {task.task: steps.nodes.index(task.node) for task in answered.assignments}
        for task, tokens, odds in zip(steps.tasks, steps.tokens.unpack(), steps.probabilities, strict=True):
            assert tokens.tobytes() in read
            shares = np.exp(logits[read.index(tokens.tobytes())][: len(tokens)].astype(np.float64))
            assert odds == pytest.approx(shares[nodes[task]] / shares.sum(), rel=1e-5)


def features_by_place(tokens: PartTokens, k: int, jobs: Sequence[str], nodes: Sequence[str]) -> dict[object, object]:
    """The features of each job on each node under placement k, witnesses apart."""
    return {
        (jobs[job], nodes[node]): tokens.parts[k, p].tolist()
        for p, (job, node) in enumerate(zip(tokens.job[k].tolist(), tokens.node[k].tolist(), strict=True))
        if 0 <= job < len(jobs)
    }


async def test_the_parts_in_the_log_are_those_that_the_searchs_model_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_engine(nodes=4, gpus=4, alternatives_share=1.0) as engine:
        search = engine._placing.placer.policies["search"]
        model = Reading(search._scorer)  # type: ignore[attr-defined]
        await ask_place(engine, place(make_job("near", workers=3, single_gpu_s=50.0), policy="load-balance"))
        await answer_is_on_its_way()
        await logged(engine)
        engine._studying._rests_until_s = 0.0
        monkeypatch.setattr(search, "_scorer", model)
        await ask_place(engine, place(make_job("a", workers=2, single_gpu_s=100.0), policy="search"))
        (read,) = model.tokens
        await ask_place(engine, place(make_job("later", workers=3), policy="load-balance"))
        record = next(record for record in await records_of(engine) if record.jobs[0].id == "a")
        view = (await engine.get_cluster(CLUSTER)).view
    (parts,), found = record.parts, record.alternatives
    job, node = parts.job.unpack().astype(np.int64), parts.node.unpack().astype(np.int64)
    written = PartTokens(np.asarray(parts.tokens.unpack(), dtype=np.float32), job, node, ())
    assert found
    by_nodes = {
        frozenset(each.nodes): features_by_place(written, k, ("a", *parts.jobs), parts.nodes)
        for k, each in enumerate(found)
    }
    assert len(by_nodes) == len(found)
    names = [view.nodes.records[m].id for m in read.places]
    for k in range(len(read.parts)):
        seen = features_by_place(read, k, ("a", *[held.id for held in read.neighbours]), names)
        nodes = frozenset(name for of, name in seen if of == "a")  # type: ignore[misc]
        logged_features = by_nodes[nodes]
        assert {key: logged_features[key] for key in seen} == seen
    assert len(read.parts) > 1


@pytest.mark.parametrize("policy", ["search", "harmony", "load-balance"])
async def test_the_model_reads_placements_once_and_the_forecasts_are_the_searchs_scores(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_engine(nodes=4, gpus=4, alternatives_share=1.0) as engine:
        search = engine._placing.placer.policies["search"]
        await ask_place(engine, place(make_job("near", workers=3, single_gpu_s=50.0), policy="load-balance"))
        await answer_is_on_its_way()
        await logged(engine)
        engine._studying._rests_until_s = 0.0
        model = Reading(search._scorer)  # type: ignore[attr-defined]
        monkeypatch.setattr(search, "_scorer", model)
        await ask_place(engine, place(make_job("a", workers=2, single_gpu_s=100.0), policy=policy))
        (record,) = [record for record in await records_of(engine) if record.jobs[0].id == "a"]
        (read,) = model.tokens
        monkeypatch.undo()
        view = (await engine.get_cluster(CLUSTER)).view.fork()
        view.remove_job(JobId("a"))
        asked = search.propose(record.jobs[0], view, PlaceContext(record.time_s, 0, is_recording=True))
    assert asked is not None
    found = record.alternatives
    assert found
    assert len(found) > 1
    assert len(read.parts) == len(asked.judgement.rows)
    scores = asked.judgement.judged.scores.progress.tolist()
    for each in found:
        place_of = [view.nodes.index[name] for name in each.nodes]  # type: ignore[index]
        row = asked.judgement.rows[tuple(sorted((m, True) for m in place_of))]
        assert each.progress_per_s == pytest.approx(scores[row], rel=1e-6)


async def test_alternatives_are_drawn_without_a_look_at_the_decision() -> None:
    async with running_engine(nodes=8, gpus=8, alternatives_share=0.5) as engine:
        for n in range(80):
            gpus = 1.0 if n % 2 else 99.0
            await ask_place(engine, place(make_job(f"j{n}", gpus=gpus)))
            await logged(engine)
            engine._studying._rests_until_s = 0.0
        records = await records_of(engine)
    assert Counter(record.outcome for record in records) == {"PLACED": 40, "NO_FIT": 40}
    studied = Counter(record.outcome for record in records if record.alternatives is not None)
    assert all(5 <= studied[outcome] <= 35 for outcome in ("PLACED", "NO_FIT")), "outside once in a million runs"


async def test_studies_are_shed_first_and_every_record_is_logged() -> None:
    async with running_engine(nodes=4, gpus=8, alternatives_share=1.0) as engine:
        for i in range(20):
            await ask_place(engine, place(make_job(f"j{i}")))
        engine._parts.telemetry.afterwards.run()  # all at once: only so many wait
        records = await records_of(engine)
        text = engine._parts.telemetry.render().decode()
    assert len(records) == 20
    assert sum(record.alternatives is None for record in records) == 12
    assert "placewise_alternatives_shed_total 12.0" in text


@pytest.mark.parametrize(("time_share", "is_studied"), [(0.01, [True] * 8 + [False, True]), (1.0, [True] * 10)])
async def test_studies_that_have_used_up_their_time_are_shed_until_some_has_come_back(
    time_share: float, is_studied: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(1_000_000.0)

    def lasting(*given: object) -> Studied:
        clock.advance(0.02)
        return studied(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(alternatives, "studied", lasting)
    found: list[bool] = []
    shares = {"alternatives_share": 1.0, "study_time_share": time_share}
    async with running_engine(nodes=4, clock=clock, **shares) as engine:
        for pause_s in (0.0,) * 9 + (6.0,):
            clock.advance(pause_s)
            await ask_place(engine, place(make_job(f"j{len(found)}")))
            found = [record.alternatives is not None for record in await records_of(engine)]
    assert found == is_studied


async def test_a_study_that_fails_leaves_its_record(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise RuntimeError("torn")

    monkeypatch.setattr(alternatives, "studied", failing)
    async with running_engine(nodes=2, alternatives_share=1.0) as engine:
        await ask_place(engine, place(make_job("a")))
        (record,) = await records_of(engine)
    assert record.alternatives is None


async def test_what_waits_when_the_service_ends_is_logged_without_alternatives() -> None:
    async with running_engine(nodes=2, alternatives_share=1.0) as engine:
        await ask_place(engine, place(make_job("a")))
        engine._parts.telemetry.afterwards.run()
        await engine._studying.close()
        (record,) = await records_of(engine)
    assert record.alternatives is None


async def test_answers_are_the_same_with_alternatives_and_without() -> None:
    answers = []
    for share in (0.0, 1.0):
        async with running_engine(nodes=4, gpus=4, alternatives_share=share) as engine:
            await engine.update_settings(CLUSTER, exploring())
            decided = []
            for i in range(12):
                answer = await ask_place(engine, place(make_job(f"j{i}"), seed=i))
                decided.append((answer.decisions[0].assignments, answer.meta.propensity))
                await asyncio.sleep(0)
            answers.append(decided)
    assert answers[0] == answers[1]


async def test_each_placement_names_every_policy_that_gives_it() -> None:
    async with running_engine(nodes=4, gpus=4, alternatives_share=1.0) as engine:
        await engine.update_settings(CLUSTER, exploring())
        await ask_place(engine, place(make_job("before"), seed=1, policy="bin-packing"))
        for i in range(4):
            await ask_place(engine, place(make_job(f"a{i}", workers=2), seed=i, policy="load-balance"))
        await answer_is_on_its_way()
        records = await records_of(engine)
    for record in records:
        assert record.alternatives
        for name in ("consolidate", "load-balance", "bin-packing", "tetris", "harmony", "search"):
            given = [each.policies.get(name, 0.0) for each in record.alternatives]
            assert sorted(given) == [0.0] * (len(given) - 1) + [1.0], name
        for each in record.alternatives:
            assert each.policy in each.policies
            assert each.own_propensity == each.policies.get(record.meta.policy, 0.0)
            shares = [weight * each.policies.get(name, 0.0) for weight, name in enumerate(EXPLORERS, 1)]
            own = each.policies.get(record.meta.policy, 0.0)
            assert each.propensity == pytest.approx(0.4 * own + 0.6 * sum(shares) / 21)
    _, _, row = row_of(CLUSTER, "1-0", encode(records[-1]))
    assert records[-1].alternatives is not None
    assert [dict(each["policies"]) for each in row["alternatives"]] == [
        each.policies for each in records[-1].alternatives
    ]
