"""Node scope, beyond the paper's Algorithm 2: cores wait for the subtasks that only they can run, GPUs are shared by
cost.

Algorithm 2 lets an idle core take any subtask, also one that a GPU would do ten times as fast a moment later, and ranks
neighbours by the angle between their metrics, which is small between any two subtasks and says nothing of how much they
want. Here both ends are weighed in time and in shares of the GPU.
"""

import numpy as np

from placewise_core.basics.arrays import FloatArray
from placewise_core.subtasks.metrics import gpu_vector
from placewise_core.subtasks.round import Ready, SubtaskRound
from placewise_core.subtasks.units import wanted

# A subtask more on a GPU must bring at least this much more progress, in subtasks alone on a GPU: switching between
# neighbours is not free, and one that waits may find a better companion.
_LEAST_GAIN = 0.1
# An idle core is otherwise wasted, and the queue that the round sees is rarely all there is: a core takes a subtask
# even if it needs this much longer than the wait in sight. Chosen on a training truth (1 … 4 are within 1 %).
_PATIENCE = 2.0
_TIE = 1e-3  # for every neighbour: of equal gains the emptier GPU


class ContentionRound(SubtaskRound):
    """A core takes subtasks without a GPU version, and another only if it is done sooner there than behind the GPU
    queue. A GPU takes the subtask that adds most progress: with n subtasks that want Σ of its scarcest resource, each
    runs at 1 / max(1, Σ)."""

    def share_out(self) -> None:
        """Cores first serve what only they can do; the queue takes the largest speedups."""
        places = self.settings.queue_length * len(self.units.gpus)
        stay = [r for r in self.ready if not self.wants_gpu(r)]
        movable = [r for r in self.ready if self.wants_gpu(r)]
        while stay and self.units.idle_cores:
            self.to_core(stay.pop(0))
        by_gain = sorted(movable, key=lambda r: -r.speedup)
        self.queue = by_gain[:places]
        self.ready = [*stay, *by_gain[places:]]

    def _relieve(self) -> None:
        """Idle cores take subtasks from the low end of the rest, if they finish them sooner than the GPUs would reach
        them. Times are in those of one core; kinds are taken to cost alike per unit of size, as no profile holds
        times."""
        if not self.units.idle_cores:
            return
        movable = [*self.queue, *(r for r in self.ready if self.wants_gpu(r))]
        order = sorted(movable, key=lambda r: (r.speedup, r.job.submit_time_s))
        gpus = max(1, len(self.units.gpus))
        ahead = sum(_size(r) / r.speedup for r in order)
        for least in order:
            if not self.units.idle_cores or _size(least) * gpus > _PATIENCE * ahead:
                break
            ahead -= _size(least) / least.speedup
            (self.queue if least in self.queue else self.ready).remove(least)
            self.to_core(least)

    def dispatch(self) -> None:
        """The pair of GPU and subtask with the largest gain, again and again; then the cores relieve the queue."""
        self._fill_gpus()
        self._relieve()

    def _fill_gpus(self) -> None:
        limits = self.settings
        gpus = [
            gpu
            for gpu in self.units.gpus
            if gpu.measured[0] < limits.gpu_util_limit and gpu.measured[1] < limits.gpu_memory_limit
        ]
        if not gpus or not self.queue:
            return
        wants = {id(r): gpu_vector(r.subtask, self.metrics) for r in self.queue}
        totals = np.array([gpu.totals() for gpu in gpus])
        shares = np.array([wanted(wants[id(r)]) for r in self.queue])
        while self.queue:
            counts = np.array([len(gpu.running) for gpu in gpus])
            gains = _gains(totals, counts, shares)
            for g, gpu in enumerate(gpus):
                if counts[g] >= self.settings.max_per_gpu:
                    gains[g] = -np.inf
                else:
                    gains[g, [not gpu.admits(r.job.id, wants[id(r)], self.memory_gib(r)) for r in self.queue]] = -np.inf
            g, q = divmod(int(gains.argmax()), len(self.queue))
            if gains[g, q] < _LEAST_GAIN:
                break
            gpu, chosen = gpus[g], self.queue[q]
            totals[g] += shares[q]
            shares = np.delete(shares, q, axis=0)
            gpu.take(chosen.job.id, wants[id(chosen)], self.memory_gib(chosen), 1.0 / self.settings.max_per_gpu)
            self.to_gpu(chosen, gpu)


def _size(ready: Ready) -> float:
    return ready.subtask.size if ready.subtask.size > 0 else 1.0


def _gains(totals: FloatArray, counts: FloatArray, shares: FloatArray) -> FloatArray:
    """(G, Q) progress with one subtask more, less that without; totals (G, 7), counts (G,), shares (Q, 7)."""
    before = counts / np.maximum(1.0, totals.max(axis=1))
    after = (counts[:, None] + 1) / np.maximum(1.0, (totals[:, None, :] + shares[None]).max(axis=2))
    return np.asarray(after - before[:, None] - _TIE * counts[:, None])
