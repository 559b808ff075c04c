"""How well does a cluster learn what gangs lose beside each other (core/speed/learned/disturbance.py)? A table.

    python -m placewise_training.unseen.losses

Scenarios of a seed of their own (unseen/scenarios.py) with a flat rule, whose loss is known. Whenever the reports first
amount to so many pairs, the estimate is compared with the truth, and so is the guess that it began with.
"""

import argparse
import math
import sys
from collections.abc import Sequence

from placewise_core.basics.frozen import frozen
from placewise_core.speed.learned.disturbance import Disturbance
from placewise_training.sim.discipline import Discipline
from placewise_training.sim.gangs.engine import SimOptions, Simulation
from placewise_training.sim.jobs import SimJob
from placewise_training.sim.policies import placement_policy
from placewise_training.sim.statistics import estimate
from placewise_training.unseen.scenarios import Scenario, scenarios

PAIRS = (0.3, 1.0, 3.0, 10.0)
_SEED = 13


@frozen
class LossEstimate:
    """The estimate after so many pairs, and the truth, as shares."""

    pairs: float
    loss: float
    true_loss: float


class Watch:
    """Notes the estimate as its pairs pass each of PAIRS."""

    def __init__(self, true_loss: float) -> None:
        self.true_loss = true_loss
        self.simulation: Simulation | None = None
        self.found: list[LossEstimate] = []

    def __call__(self, now_s: float, event: str, job: SimJob, nodes: tuple[str, ...]) -> None:
        assert self.simulation is not None
        known = self.simulation.view.estimates.disturbance
        while len(self.found) < len(PAIRS) and known.weight >= PAIRS[len(self.found)]:
            self.found.append(LossEstimate(PAIRS[len(self.found)], known.loss, self.true_loss))


def watched(scenario: Scenario, policy: str) -> Sequence[LossEstimate]:
    """The estimates of one run, whose truth has a flat rule."""
    assert scenario.flat_loss is not None
    truth, watch = scenario.truth(), Watch(scenario.flat_loss)
    options = SimOptions(
        discipline=Discipline(order="fifo"), reports_progress=True, observers=(watch,), learns_disturbance=True
    )
    jobs = scenario.workload(truth)
    placing = placement_policy(policy)
    watch.simulation = Simulation(scenario.cluster(), jobs, truth, placing, options=options, seed=scenario.seed)
    watch.simulation.run()
    return watch.found


def error(loss: float, true_loss: float) -> float:
    """|ln(remaining speed / true one)|, the error of a forecast that rests on it."""
    return abs(math.log((1.0 - loss) / (1.0 - true_loss)))


def main(arguments: Sequence[str]) -> None:
    """Prints the table, a row for each policy and number of pairs."""
    parser = argparse.ArgumentParser(description="How well a cluster learns what gangs lose beside each other")
    parser.add_argument("--count", type=int, default=64, help="scenarios of the sequence")
    args = parser.parse_args(arguments)
    flat = [scenario for scenario in scenarios(args.count, _SEED) if scenario.flat_loss is not None]
    guess = Disturbance().loss
    print("| policy | pairs | runs | learned | guess |\n|---|---|---|---|---|")
    for policy in ("consolidate", "load-balance"):
        found = [each for scenario in flat for each in watched(scenario, policy)]
        for pairs in PAIRS:
            mine = [each for each in found if each.pairs == pairs]
            ours, theirs = (
                estimate([error(loss, each.true_loss) for each, loss in zip(mine, losses, strict=True)])
                for losses in ([each.loss for each in mine], [guess] * len(mine))
            )
            learned = f"{ours.mean:.3f} ± {ours.half_width:.3f}"
            print(f"| `{policy}` | {pairs:g} | {len(mine)} | {learned} | {theirs.mean:.3f} |")


if __name__ == "__main__":
    main(sys.argv[1:])
