"""The encoder: shapes, invariances, no NaN, and a schema hash that notices any change."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placewise_core.domain.cluster import NodeTelemetry, RunningJob
from placewise_core.domain.events import ClusterRecords
from placewise_core.domain.job import Job, JobId
from placewise_core.gang.context import PlaceContext
from placewise_core.inputs import cluster as features
from placewise_core.inputs import tables as feature_tables
from placewise_core.inputs.cluster import JOB_FEATURES, NODE_FEATURES, Encoder, encode_utilisation, feature_schema
from placewise_core.policies.load_balance import LoadBalance
from placewise_core.view.view import ClusterView
from placewise_training.sim.hardware import harmony_cluster
from placewise_training.sim.truths import make_truth
from placewise_training.sim.workloads import HarmonyWorkload


def situation(seed: int, order: list[int] | None = None) -> tuple[ClusterView, list[Job]]:
    """Six servers, some jobs running, three new ones; `order` permutes the nodes of the records."""
    nodes = [spec.node for spec in harmony_cluster()]
    view = ClusterView(ClusterRecords("c", 0, "e", nodes=tuple(nodes)))
    jobs = [sim.job for sim in HarmonyWorkload(jobs=9).generate(make_truth("train", seed), seed)]
    for job in jobs[:6]:
        proposal = LoadBalance().propose(job, view, PlaceContext(0.0, np.random.default_rng(0)))
        if proposal is not None:
            view.add_job(RunningJob(job, proposal.assignments, epochs_done=job.total_epochs / 4))
    running = tuple(view.jobs.values())
    arranged = nodes if order is None else [nodes[i] for i in order]
    return ClusterView(ClusterRecords("c", 0, "e", nodes=tuple(arranged), jobs=running)), jobs[6:]


def test_shapes_follow_the_cluster() -> None:
    view, batch = situation(0)
    seen = Encoder().encode(view, batch, 0.0, current=1)
    count = len(batch) + len(view.jobs)
    assert seen.nodes.shape == (6, NODE_FEATURES)
    assert seen.jobs.shape == (count, JOB_FEATURES)
    assert seen.placement.shape == (count, 6, 2)
    assert all(a.dtype == np.float32 for a in (seen.nodes, seen.jobs, seen.placement))
    tasks = sum(len(held.assignments) for held in view.jobs.values())
    assert seen.placement.sum() == pytest.approx(0.5 * tasks)


@settings(max_examples=20, deadline=None)
@given(order=st.permutations(list(range(6))), seed=st.integers(0, 50))
def test_permuting_nodes_permutes_tokens_and_nothing_else(order: list[int], seed: int) -> None:
    straight, batch = situation(seed)
    permuted, _ = situation(seed, order)
    a, b = (Encoder().encode(view, batch, 0.0, current=0) for view in (straight, permuted))
    np.testing.assert_array_equal(a.nodes[order], b.nodes)
    np.testing.assert_array_equal(a.placement[:, order], b.placement)
    np.testing.assert_array_equal(a.jobs, b.jobs)


def test_candidates_only() -> None:
    view, batch = situation(3)
    rows = np.array([4, 1])
    whole = Encoder().encode(view, batch, 0.0)
    part = Encoder().encode(view, batch, 0.0, rows=rows)
    np.testing.assert_array_equal(part.nodes, whole.nodes[rows])
    touching = [i for i in range(len(batch), len(whole.jobs)) if whole.placement[i, rows].any()]
    assert len(part.jobs) == len(batch) + len(touching)


def test_a_remembering_encoder_and_a_new_one_agree() -> None:
    encoder = Encoder()
    view, batch = situation(1)
    encoder.encode(view, batch, 0.0)
    job_id = next(iter(view.jobs))
    moved = dataclasses.replace(view.jobs[job_id], epochs_done=1e9)
    view.jobs[job_id] = moved
    view.remove_job(list(view.jobs)[-1])
    again, fresh = encoder.encode(view, batch, 5.0, current=2), Encoder().encode(view, batch, 5.0, current=2)
    for name in ("nodes", "jobs", "placement"):
        np.testing.assert_array_equal(getattr(again, name), getattr(fresh, name))


def test_unknown_values_are_flagged_zeros() -> None:
    nodes = [spec.node for spec in harmony_cluster(3)]
    hot = NodeTelemetry(
        gpu_celsius=70, limit_celsius=80, cpu_util=0.5, gpu_util=0.25, tx_gbps=5, rx_gbps=10, observe_time_s=1
    )
    bare = NodeTelemetry(observe_time_s=1)
    telemetries = (NodeTelemetry(), hot, bare)
    reported = tuple(dataclasses.replace(n, telemetry=t) for n, t in zip(nodes, telemetries, strict=True))
    view = ClusterView(ClusterRecords("c", 0, "e", nodes=reported))
    seen = Encoder().encode(view, [Job(JobId("odd"), model="", params_millions=-1)], 1.0).nodes
    names = [column.name for column in features.NODE_COLUMNS]
    assert np.isfinite(seen).all()
    found = {name: seen[1, names.index(name)] for name in ("has_temperature", "temperature_margin", "cpu_util")}
    assert found == {"has_temperature": 1.0, "temperature_margin": pytest.approx(0.2), "cpu_util": 0.5}
    assert not seen[[0, 2]][:, names.index("has_temperature") :].any()
    utilisation = encode_utilisation(view)
    assert utilisation.shape == (3, 6)
    assert np.isfinite(utilisation).all()
    assert utilisation[1].tolist() == pytest.approx([0.5, 0.25, 0.0, 0.0, 0.1, 0.2])


def test_few_job_tokens_keep_the_batch() -> None:
    view, batch = situation(0)
    seen = Encoder(most_jobs=4).encode(view, batch, 0.0, current=0)
    assert len(seen.jobs) == 4
    is_new = [column.name for column in features.JOB_COLUMNS].index("is_new")
    assert seen.jobs[:, is_new].tolist() == [1, 1, 1, 0]


def test_the_schema_hash_notices_a_change_of_what_the_net_reads_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {model: feature_schema(model)["hash"] for model in feature_tables.MODEL_TABLES}
    assert {model: feature_schema(model)["hash"] for model in feature_tables.MODEL_TABLES} == before
    assert feature_schema("reward", "policy") == feature_schema("policy", "reward")
    for table, columns in feature_tables.COLUMNS.items():
        changed = (*columns[:-1], dataclasses.replace(columns[-1], scale=0.123))
        with monkeypatch.context() as patched:
            patched.setattr(feature_tables, "COLUMNS", {**feature_tables.COLUMNS, table: changed})
            for model, tables in feature_tables.MODEL_TABLES.items():
                assert (feature_schema(model)["hash"] != before[model]) == (table in tables), (model, table)


def test_column_names_are_unique() -> None:
    for columns in features.COLUMNS.values():
        names = [column.name for column in columns]
        assert len(set(names)) == len(names)
