"""The reward of a placement: its equation on cases worked out by hand."""

import math

import pytest

from placewise_core.domain.realised import Run, points_of, reward_h

MINUTE = 60.0
LONG_AFTER = 1e9


def run(job_id: str, *, nodes: str = "a", start: float = 0.0, end: float = math.inf, total: float = 10.0,
        points: tuple[tuple[float, float], ...] = ((0.0, 0.0), (1000.0, 10.0))) -> Run:  # fmt: skip
    return Run(job_id, frozenset(nodes), start, end, total, points)


def test_a_job_alone_has_its_own_progress() -> None:
    assert reward_h(run("j"), (), 300.0, LONG_AFTER) == pytest.approx(0.3)


def test_neighbours_count_with_what_they_did_from_the_start_of_the_job_until_h_has_passed() -> None:
    longer = run("n", start=-100.0, points=((-100.0, 2.0), (900.0, 12.0)), total=20.0)
    gone = run("m", nodes="z", start=-50.0, end=100.0, points=((-50.0, 0.0), (0.0, 4.0), (100.0, 10.0)))
    found = reward_h(run("j"), (longer, gone), 300.0, LONG_AFTER)
    assert found == pytest.approx(0.3 + 3.0 / 20.0 + 6.0 / 10.0)


def test_it_is_unknown_until_h_has_passed_even_if_all_jobs_have_ended() -> None:
    done = run("j", end=100.0, points=((0.0, 0.0), (100.0, 10.0)))
    assert reward_h(done, (done,), 300.0, now_s=299.0) is None
    assert reward_h(done, (done,), 300.0, now_s=300.0) == pytest.approx(2.0)


@pytest.mark.parametrize(
    "other",
    [run("n", total=0.0), run("n", points=((0.0, 0.0), (299.0, 1.0)))],
    ids=["unknown length", "not heard of since"],
)
def test_it_is_unknown_if_a_job_of_the_neighbourhood_is(other: Run) -> None:
    assert reward_h(run("j"), (other,), 300.0, LONG_AFTER) is None
    assert reward_h(other, (), 300.0, LONG_AFTER) is None


def test_a_placement_that_slows_every_job_earns_less() -> None:
    """j could go to node a, beside nobody, or spread over b and c, where n and m run: there all three lose a tenth. A
    sum over the jobs on its own nodes would prefer the spread, since it meets two more jobs."""
    rates = {"together": 0.01, "spread": 0.009}
    earned, on_own_nodes = {}, {}
    for name, nodes in (("together", "a"), ("spread", "bc")):
        points = ((0.0, 0.0), (1000.0, 1000.0 * rates[name]))
        neighbours = [run(other, nodes=node, points=points) for other, node in (("n", "b"), ("m", "c"))]
        own = run("j", nodes=nodes, points=points)
        met = [other for other in neighbours if not own.nodes.isdisjoint(other.nodes)]
        earned[name] = reward_h(own, neighbours, 300.0, LONG_AFTER)
        on_own_nodes[name] = reward_h(own, met, 300.0, LONG_AFTER)
    assert earned == pytest.approx({"together": 3 * 0.3, "spread": 3 * 0.27})
    assert on_own_nodes == pytest.approx({"together": 0.3, "spread": 3 * 0.27})


def test_a_job_that_failed_stays_where_it_was() -> None:
    failed = run("j", end=100.0, points=((0.0, 0.0), (90.0, 4.0), (100.0, 4.0)))
    assert reward_h(failed, (), 300.0, LONG_AFTER) == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("reports", "end_s", "has_finished", "points"),
    [
        ([], None, False, ((5.0, 0.0),)),
        ([], 15.0, True, ((5.0, 0.0), (15.0, 10.0))),
        ([], 15.0, False, ((5.0, 0.0), (15.0, 0.0))),
        ([(10.0, None, 2.0)], None, False, ((5.0, 0.0), (10.0, 2.0))),
        ([(20.0, 0.5, None), (10.0, 0.2, None)], None, False, ((5.0, 0.0), (10.0, 1.0), (20.0, 6.0))),
        ([(10.0, 0.2, 7.0)], None, False, ((5.0, 6.0), (10.0, 7.0))),  # from a checkpoint
        ([(5.0, 1.0, None), (9.0, 0.5, 4.0)], None, False, ((5.0, 0.0), (9.0, 4.0))),  # slowed down since its start
        ([(5.0, 1.0, 2.0), (9.0, 0.5, 6.0)], None, False, ((5.0, 2.0), (9.0, 6.0))),
        ([(10.0, None, 3.0), (12.0, None, 2.0)], None, False, ((5.0, 0.0), (10.0, 3.0), (12.0, 3.0))),
        ([(10.0, None, 30.0)], None, False, ((5.0, 0.0), (10.0, 10.0))),
        ([(4.0, None, 3.0), (40.0, None, 9.0)], 15.0, False, ((5.0, 3.0), (15.0, 3.0))),  # before and after the run
        ([(4.0, None, 3.0), (10.0, None, 4.0)], None, False, ((5.0, 3.0), (10.0, 4.0))),
        ([(10.0, None, 1.0), (10.0, None, 2.0)], None, False, ((5.0, 0.0), (10.0, 2.0))),
    ],
)  # fmt: skip
def test_points_of_a_run(
    reports: list[tuple[float, float | None, float | None]],
    end_s: float | None,
    has_finished: bool,
    points: tuple[tuple[float, float], ...],
) -> None:
    found = points_of(5.0, end_s, 10.0, reports, has_finished=has_finished)
    assert [time_s for time_s, _ in found] == [time_s for time_s, _ in points]
    assert [epochs for _, epochs in found] == pytest.approx([epochs for _, epochs in points])


@pytest.mark.parametrize(("time_s", "epochs"), [(-1.0, 0.0), (0.0, 0.0), (500.0, 5.0), (1000.0, 10.0), (1001.0, None)])
def test_epochs_are_linear_between_reports_and_unknown_after_the_last(time_s: float, epochs: float | None) -> None:
    assert run("j").epochs_at(time_s) == epochs
