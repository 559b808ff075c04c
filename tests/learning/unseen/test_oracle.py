"""The oracle of unseen scenarios, on one whose jobs do not disturb each other."""

from placewise_training.unseen.judge import play
from placewise_training.unseen.scenarios import scenarios


def test_one_who_knows_the_truth_is_no_worse_where_jobs_do_not_disturb_each_other() -> None:
    scenario = next(s for s in scenarios(64) if s.flat_loss == 0.0 and s.gpus <= 40 and s.pattern != "philly")
    jct_s = {name: play(scenario, name)["avg_jct_s"] for name in ("consolidate", "load-balance", "oracle by delay")}
    assert jct_s["oracle by delay"] < 1.02 * min(jct_s["consolidate"], jct_s["load-balance"])
