"""FIFO: jobs start in the order they came, with the GPUs their users asked for.

An elastic job asks for the top of its range and takes the idle GPUs, down to the bottom of it ("as the user asked,
together with what is idle").
"""

from placewise_core.admit.greedy import GreedyAdmission, Round, WaitingJob
from placewise_core.admit.needs import requested_gpus
from placewise_core.admit.shapes import Options, at_most


class FifoStrict(GreedyAdmission):
    """First in, first out, as papers mean it: the first job that does not fit holds up all others."""

    name = "fifo-strict"
    keeps_order = True

    def choose(self, waiting: WaitingJob, options: Options, state: Round) -> int | None:
        if waiting.job.is_rigid:  # one shape, its own
            return 0
        return at_most(options, requested_gpus(waiting.job, state.facts.total_gpus))


class Fifo(FifoStrict):
    """First in, first out with EASY backfill: jobs may pass the first that does not fit if they do not delay it."""

    name = "fifo"
    backfills = True
    waits_with_view = True
    passes_in_order = True
