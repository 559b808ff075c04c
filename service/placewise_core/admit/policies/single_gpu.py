"""One GPU each (Proteus' first baseline): jobs in their order, none gets more than it must have."""

from placewise_core.admit.greedy import GreedyAdmission, Round, WaitingJob
from placewise_core.admit.shapes import Options


class SingleGpu(GreedyAdmission):
    """First in, first out on one GPU; a rigid job on its own, an elastic one on the fewest of its range."""

    name = "single-gpu"
    keeps_order = True

    def choose(self, waiting: WaitingJob, options: Options, state: Round) -> int | None:
        whole = state.whole.options(waiting.job)
        return 0 if options.gpus[0] == whole.gpus[0] else None
