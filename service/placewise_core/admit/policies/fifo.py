"""FIFO: jobs start in the order they came, with the GPUs their users asked for; the first that does not fit waits.

An elastic job asks for the top of its range and takes the idle GPUs, down to the bottom of it ("as the user asked,
together with what is idle").
"""

from placewise_core.admit.greedy import GreedyAdmission, Round, Waiting
from placewise_core.admit.pool import Options, at_most, requested_gpus


class Fifo(GreedyAdmission):
    """First in, first out."""

    name = "fifo"
    keeps_order = True

    def choose(self, waiting: Waiting, options: Options, state: Round) -> int | None:
        if waiting.job.is_rigid:  # one shape, its own
            return 0
        return at_most(options, requested_gpus(waiting.job, state.facts.total_gpus))
