"""Plain consolidation and shortest remaining first, for pipelines: the preferences of each."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from placewise_core.domain.job import Job, JobId, Subtask, SubtaskState
from placewise_core.subtasks.metrics import GPU_METRICS
from placewise_training.sim.hardware import ldwp_cluster
from placewise_training.sim.pipelines.applications import PipelineWorkload, pipeline_job
from placewise_training.sim.pipelines.baselines import FullestNode, PackedUnits, ShortestFirst
from placewise_training.sim.pipelines.engine import PipelineSimulation
from placewise_training.sim.pipelines.queues import NodeQueue
from placewise_training.sim.pipelines.units import UnitState

CORE, GPU0, GPU1 = (UnitState(name, name.startswith("gpu"), 0, 0.0) for name in ("cpu0", "gpu0", "gpu1"))


def queues(*counts: int) -> dict[str, Any]:
    """Nodes of four GPUs with so many tasks each."""
    return {f"n{i}": SimpleNamespace(tasks=range(count), gpus=4, cores=16) for i, count in enumerate(counts)}


def wanting(name: str, share: float, **changes: Any) -> Subtask:
    """A subtask that wants so much of every resource of a GPU."""
    subtask = Subtask(name, "k", has_gpu_version=True, profile=dict.fromkeys(GPU_METRICS, share), size=1.0)
    return replace(subtask, **changes)


def assigned(*subtasks: Subtask) -> dict[str, str]:
    job = Job(JobId("j"), subtasks=subtasks)
    made = PackedUnits().assign([job], "n", None, [CORE, GPU0, GPU1], 0.0)  # type: ignore[arg-type]
    return {subtask: unit for _, subtask, unit in made}


@pytest.mark.parametrize(
    ("counts", "chosen"), [((0, 2, 1), "n1"), ((4, 1, 3), "n2"), ((6, 5, 9), "n1"), ((0, 0), "n0")]
)
def test_the_fullest_node_with_a_gpu_to_spare_is_filled(counts: tuple[int, ...], chosen: str) -> None:
    assert FullestNode().choose(None, None, queues(*counts), 0.0) == chosen  # type: ignore[arg-type]


def test_the_fullest_gpu_that_takes_a_subtask_gets_it() -> None:
    running = wanting("r", 0.6, state=SubtaskState.RUNNING, unit="n/gpu1")
    assert assigned(running, wanting("a", 0.6), wanting("b", 0.6), wanting("c", 0.2)) == {
        "a": "gpu1",
        "b": "gpu0",
        "c": "gpu1",
    }


def test_what_a_gpu_can_do_waits_for_one_and_cores_serve_the_rest() -> None:
    on_core = wanting("core", 0.0, has_gpu_version=False)
    assert assigned(wanting("a", 1.0), wanting("b", 1.0), wanting("c", 1.0), on_core) == {
        "a": "gpu0",
        "b": "gpu1",
        "core": "cpu0",
    }


def test_no_gpu_serves_more_than_eight() -> None:
    made = assigned(*(wanting(f"s{i}", 0.01) for i in range(20)))
    assert sorted(made.values()) == ["gpu0"] * 8 + ["gpu1"] * 8


def test_the_task_with_least_left_is_served_first() -> None:
    long, short = (pipeline_job("video_synopsis", size, name, "train") for size, name in ((900.0, "l"), (100.0, "s")))
    units = ShortestFirst("train")
    made = units.assign([long, short], "n", None, [CORE], 0.0)  # type: ignore[arg-type]
    assert [job for job, _, _ in made] == ["s"]
    done = tuple(replace(s, state=SubtaskState.DONE) for s in long.subtasks[:-1])
    nearly_done = replace(long, subtasks=(*done, replace(long.subtasks[-1], size=1.0)))
    made = units.assign([short, nearly_done], "n", None, [CORE], 0.0)  # type: ignore[arg-type]
    assert [job for job, _, _ in made] == ["l"]


def test_consolidation_uses_fewer_nodes_than_it_has_while_little_is_to_do() -> None:
    nodes = ldwp_cluster(6)
    tasks = PipelineWorkload(tasks=12, per_minute=2.0).generate("train", 0)
    used: list[int] = []

    def observe(now_s: float, there: dict[str, NodeQueue]) -> None:
        used.append(sum(bool(queue.tasks) for queue in there.values()))

    simulation = PipelineSimulation(nodes, tasks, "train", FullestNode(), PackedUnits(), observer=observe)  # type: ignore[arg-type]
    assert simulation.run().finished == 12
    assert max(used) <= 3
