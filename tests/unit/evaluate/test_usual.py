"""Progress of jobs at their usual speed: a covariate known before a decision."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.fakes.cluster import make_job
from tests.unit.evaluate.exported import explored, write

from placewise_core.domain.job import Job
from placewise_training.evaluate.usual import Question, Stay, _neighbourhood, growths_of
from placewise_training.log.placed import placed_jobs

H_S = 1200.0


def job(name: str, seconds: float = 0.0, epochs: float = 0.0, model: str = "resnet50") -> Job:
    return replace(make_job(name, 1), model=model, single_gpu_s=seconds, total_epochs=epochs)


def stay(of: Job, begin_s: float, end_s: float, *nodes: str) -> Stay:
    return Stay("c", of, begin_s, begin_s, end_s, end_s < np.inf, nodes or ("n1",))


def asked(of: Job, time_s: float, *nodes: str) -> Question:
    return Question("c", of, time_s, frozenset(nodes or ("n1",)))


def test_a_job_with_a_declared_length_makes_its_share_of_it_and_no_more_than_all() -> None:
    found = growths_of([], [asked(job("long", 4800.0), 0.0), asked(job("short", 300.0), 0.0)], H_S)
    assert found.tolist() == [[0.25, 0.0, 0.0], [1.0, 0.0, 0.0]]


def test_jobs_beside_it_count_with_their_rest_until_they_end() -> None:
    stays = [
        stay(job("half-done", 2000.0), -1000.0, np.inf),
        stay(job("elsewhere", 2000.0), -1000.0, np.inf, "n2"),
        stay(job("ended", 2000.0), -1000.0, -1.0),
        stay(job("overdue", 500.0), -1000.0, np.inf),
        stay(job("later", 2000.0), 1.0, np.inf),
    ]
    ((own, beside, count),) = growths_of(stays, [asked(job("j", 1200.0), 0.0)], H_S)
    assert count == 2
    assert own == 1.0
    # One job took half of its declared time, so 2,000 s are usually 1,000 s, and both are overdue.
    assert beside == pytest.approx(0.04)


def test_ended_jobs_of_its_model_tell_how_long_a_job_takes() -> None:
    """Twice as long as declared, thrice where the model is another."""
    stays = [stay(job(f"a{i}", 1000.0), -9000.0, -7000.0) for i in range(60)]
    stays += [stay(job(f"b{i}", 1000.0, model="vgg16"), -9000.0, -6000.0) for i in range(60)]
    mine, other = growths_of(stays, [asked(job("a", 2400.0), 0.0), asked(job("b", 2400.0, model="vgg16"), 0.0)], H_S)
    assert mine[0] == pytest.approx(1200.0 / 4800.0, rel=0.02)
    assert other[0] == pytest.approx(1200.0 / 7200.0, rel=0.02)


def test_jobs_without_a_declared_length_are_as_long_as_the_ended_ones_of_their_kind() -> None:
    stays = [stay(job(f"a{i}", epochs=2.0), -9000.0, -5000.0) for i in range(60)]
    stays += [stay(job(f"b{i}"), -9000.0, -8000.0) for i in range(60)]
    by_epochs, by_nothing = growths_of(stays, [asked(job("a", epochs=4.0), 0.0), asked(job("b"), 0.0)], H_S)
    assert by_epochs[0] == pytest.approx(1200.0 / 8000.0, rel=0.02)
    assert by_nothing[0] == 1.0


def test_a_length_that_nothing_is_known_of_is_the_horizon() -> None:
    assert growths_of([], [asked(job("a"), 0.0), asked(job("b", epochs=7.0), 0.0)], H_S)[:, 0].tolist() == [1.0, 1.0]


def test_nothing_that_happens_after_a_decision_changes_its_row() -> None:
    rng = np.random.default_rng(5)
    begun_s = np.sort(rng.uniform(0.0, 20_000.0, 80))
    stays = [
        stay(job(f"j{i}", float(rng.uniform(200.0, 4000.0))), at, at + float(rng.uniform(100.0, 6000.0)))
        for i, at in enumerate(begun_s.tolist())
    ]
    questions = [asked(each.job, each.decide_s) for each in stays]
    whole = growths_of(stays, questions, H_S)
    now_s = stays[50].decide_s
    cut = [each if each.end_s <= now_s else each._replace(end_s=np.inf, has_finished=False) for each in stays[:50]]
    assert growths_of(cut, [questions[50]], H_S)[0] == pytest.approx(whole[50])
    assert whole[50][2] > 0


def test_a_job_that_has_not_started_by_then_does_not_count() -> None:
    """Whether it ever starts is not known at the question."""
    late = stay(job("late", 1000.0), 20.0, np.inf)._replace(decide_s=-5.0)
    asked_at = asked(job("j", 1200.0), 10.0)
    assert growths_of([late], [asked_at], H_S).tolist() == growths_of([], [asked_at], H_S).tolist()


def test_nodes_of_a_placement_that_was_drawn_are_no_neighbourhood(tmp_path: Path) -> None:
    decisions, outcomes = explored(1, gain=0.0)
    (one,) = placed_jobs(write(tmp_path, decisions, outcomes))
    assert _neighbourhood(one) == {"n1", "n2"}
    drawn = tuple(replace(option, policies={"random": 0.4}) for option in one.options)
    assert _neighbourhood(replace(one, options=drawn)) == frozenset()


def test_jobs_that_failed_tell_nothing_of_lengths() -> None:
    failed = [stay(job(f"a{i}", 1000.0), -9000.0, -8990.0)._replace(has_finished=False) for i in range(60)]
    assert growths_of(failed, [asked(job("a", 2400.0), 0.0)], H_S)[0, 0] == 0.5
