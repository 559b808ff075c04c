"""What jobs hold on nodes: equal tasks are one hold, and nothing is lost or hidden by that."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.state import demand, job, task

from placewise_core.domain.cluster import Assignment
from placewise_service.state.holdings import Hold, hold_of, holds_of

AMOUNTS = ("cpu_cores", "memory_gib", "gpu_memory_gib", "network_gbps")


def test_equal_tasks_on_one_node_are_one_hold() -> None:
    ask = demand(cpu=1.5, gpus=1.0, memory=2.25, gpu_memory_gib=8.0)
    running = job("a", *(task("n0", (g,), ask) for g in range(3)), task("n1", (0,), ask))
    first, second = holds_of(running)
    assert (first.node, first.gpus, first.cpu_cores, first.memory_gib) == ("n0", (0, 1, 2), 4.5, 6.75)
    assert (first.gpu_memory_gib, first.gpu_memory_each_gib) == (24.0, 8.0)
    assert second == hold_of(running.job, running.assignments[3:4])


def test_tasks_that_name_one_gpu_stay_apart() -> None:
    """Together they would hide that it is given twice."""
    running = job("a", task("n0", (0, 1)), task("n0", (1, 2)))
    assert [hold.gpus for hold in holds_of(running)] == [(0, 1), (1, 2)]


def test_fractions_and_extended_amounts_stay_apart() -> None:
    half = demand(gpus=0.5)
    licence = demand(gpus=0.0, extended={"licence": 1.0})
    running = job("a", task("n0", (0,), half), task("n0", (1,), half), task("n0", (), licence), task("n0", (), licence))
    assert len(holds_of(running)) == 4


TASKS = st.lists(
    st.builds(
        lambda name, gpus, cpu, whole: task(
            name, tuple(gpus), demand(cpu=cpu, gpus=float(len(gpus)) if whole or len(gpus) != 1 else 0.5)
        ),
        st.sampled_from(["n0", "n1"]),
        st.lists(st.integers(0, 5), max_size=3, unique=True),
        st.sampled_from([0.1, 1.0, 1.7]),
        st.booleans(),
    ),
    min_size=1,
    max_size=8,
)


@given(TASKS)
def test_together_they_hold_what_each_would(tasks: list[Assignment]) -> None:
    running = job("a", *tasks)
    assert _totals(holds_of(running)) == _totals(tuple(hold_of(running.job, [one]) for one in tasks))


def _totals(holds: tuple[Hold, ...]) -> tuple[Counter[tuple[str, str]], Counter[tuple[str, int, float, float]]]:
    amounts: Counter[tuple[str, str]] = Counter()
    gpus: Counter[tuple[str, int, float, float]] = Counter()
    for hold in holds:
        for name in AMOUNTS:
            amounts[hold.node, name] += getattr(hold, name)  # exact: sums of multiples of 2⁻²⁰
        gpus.update((hold.node, gpu, hold.gpu_fraction, hold.gpu_memory_each_gib) for gpu in hold.gpus)
    return amounts, gpus
