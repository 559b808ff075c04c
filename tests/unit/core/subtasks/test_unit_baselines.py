"""Node scope's baselines: Random, ECT and PATS on computing units, by the names that a request asks for."""

import pytest
from tests.fakes.place_cases import view_of

from placewise_core.domain.cluster import Gpu, Node
from placewise_core.domain.events import SubtaskProfiled
from placewise_core.domain.job import Job, JobId, NodeId, Resources, Subtask, SubtaskState
from placewise_core.subtasks.baselines import untimed
from placewise_core.subtasks.iawp import subtask_schedulers

NAMES = ("iawp", "iawp-paper", "ect", "pats", "random")


def host(cores: int = 2, gpus: int = 1) -> Node:
    there = tuple(Gpu(g, "P4", 16, 0.0, 0.0) for g in range(gpus))
    return Node(NodeId("n"), Resources(cores, gpus, 64, 16 * gpus, 10), there, max_jobs_per_gpu=4)


def sped(name: str, speedup: float, **more: object) -> Subtask:
    """With a GPU version that is so much faster."""
    return Subtask(name, "k", has_gpu_version=True, profile={"speedup": speedup, **more})  # type: ignore[dict-item]


def assigned(policy: str, *subtasks: Subtask, cores: int = 2, gpus: int = 1, seed: int = 0) -> dict[str, str]:
    view = view_of([host(cores, gpus)])
    (decision,) = subtask_schedulers()[policy].assign([Job(JobId("j"), subtasks=subtasks)], "n", view, 0.0, seed=seed)
    return {a.subtask: a.cpu_unit for a in decision.assignments}


def test_the_names_are_those_that_a_request_may_give() -> None:
    schedulers = subtask_schedulers()
    assert tuple(schedulers) == NAMES
    assert [scheduler.name for scheduler in schedulers.values()] == list(NAMES)


def test_pats_gives_cores_the_least_speedups_and_gpus_the_most() -> None:
    """Teodoro's: two cores, one GPU, speedups 1, 2, 5, 9."""
    ready = [sped(f"x{s}", float(s)) for s in (5, 1, 9, 2)]
    assert assigned("pats", *ready) == {"x1": "cpu0", "x2": "cpu1", "x9": "gpu0"}


def test_pats_never_gives_a_gpu_what_only_cores_can_do_or_do_sooner() -> None:
    assert set(assigned("pats", *(Subtask(f"c{i}", "k") for i in range(4))).values()) == {"cpu0", "cpu1"}
    assert assigned("pats", sped("s", 0.5)) == {"s": "cpu0"}
    assert assigned("pats", sped("s", 0.5), cores=0) == {"s": "gpu0"}


@pytest.mark.parametrize("policy", ["pats", "ect", "random"])
def test_the_baselines_put_one_subtask_on_a_unit(policy: str) -> None:
    found = assigned(policy, *(sped(f"s{i}", 9.0) for i in range(8)))
    assert len(set(found.values())) == len(found)
    on_gpu = Subtask(
        "now", "k", has_gpu_version=True, state=SubtaskState.RUNNING, unit="gpu0", profile={"speedup": 9.0}
    )
    assert "gpu0" not in assigned(policy, on_gpu, sped("s", 9.0)).values()


def test_random_is_fixed_by_its_seed() -> None:
    ready = [sped(f"s{i}", 2.0) for i in range(3)]
    drawn = [assigned("random", *ready, cores=4, gpus=2, seed=seed) for seed in range(12)]
    assert drawn == [assigned("random", *ready, cores=4, gpus=2, seed=seed) for seed in range(12)]
    assert len({tuple(sorted(d.items())) for d in drawn}) > 3


def test_ect_waits_for_the_gpu_where_that_ends_sooner() -> None:
    """By the times of the profiles: a core takes 9 s, the busy GPU is free after 1 s and takes 1 s."""
    on_gpu = Subtask("now", "a", has_gpu_version=True, state=SubtaskState.RUNNING, unit="gpu0",
                     profile={"speedup": 9.0, "core_s": 9.0})  # fmt: skip
    waiting = sped("s", 9.0, core_s=9.0)
    assert assigned("ect", on_gpu, waiting) == {}
    slow = Subtask("now", "a", has_gpu_version=True, state=SubtaskState.RUNNING, unit="gpu0",
                   profile={"speedup": 1.0, "core_s": 90.0})  # fmt: skip
    assert assigned("ect", slow, waiting) == {"s": "cpu0"}


def test_ect_takes_all_kinds_to_be_alike_unless_it_knows_the_time_of_each() -> None:
    def of(first_s: float, second_s: float) -> dict[str, str]:
        times = [{"core_s": s} if s else {} for s in (first_s, second_s)]
        ready = [
            Subtask(name, name, has_gpu_version=True, profile={"speedup": 3.0, **reported})
            for name, reported in zip("ab", times, strict=True)
        ]
        return assigned("ect", *ready, cores=1)

    alike = of(1.0, 1.0)
    assert alike == {"a": "gpu0"}, "b comes to the GPU after two thirds, and would take a whole one on the core"
    assert of(0.0, 0.0) == of(9.0, 0.0) == of(0.0, 0.1) == alike
    assert of(9.0, 0.1) == {"a": "gpu0", "b": "cpu0"}


def test_ect_says_of_which_kinds_it_knows_no_time() -> None:
    view = view_of([host()])
    job = Job(JobId("j"), subtasks=(Subtask("a", "decode"), Subtask("b", "track")))
    assert untimed([job], view) == "ect: no time is known of decode, track: all kinds count alike"
    view.apply_change(SubtaskProfiled("decode", {"core_s": 0.5}))
    assert untimed([job], view) == "ect: no time is known of track: all kinds count alike"
    view.apply_change(SubtaskProfiled("track", {"core_s": 0.5}))
    assert untimed([job], view) == ""
