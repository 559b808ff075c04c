"""Q and Z against equations (7) and (8) walked slot by slot, for any number and rhythm of requests."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.fakes.proteus_queue import bundled, cluster_of, gpu_nodes
from tests.fakes.quick.examples import examples

from placewise_core.admit.policies.proteus_paper import ProteusPaper
from placewise_core.admit.policy import AdmitContext
from placewise_core.domain.cluster import QueueSettings, QueueState
from placewise_core.domain.decision import Verdict
from placewise_core.domain.job import Job, JobId
from placewise_core.speed.throughput import ThroughputModel

POLICY = ProteusPaper(ThroughputModel(bundled("throughput.json")))
SETTINGS = QueueSettings(v=1.0, epsilon_s=30.0, tau_s=600.0, slot_s=10.0)


@dataclass
class Walked:
    """The equations as printed, one slot at a time."""

    q: float = 0.0
    z: float = 0.0
    costs: dict[str, float] = field(default_factory=dict)
    served_s: float = 0.0
    arrived_s: float = 0.0

    def leave(self, job: str) -> None:
        self.q = max(self.q - self.costs.pop(job), 0.0)
        self._settle()

    def next_slot(self) -> None:
        z = self.z + (SETTINGS.epsilon_s - self.served_s if self.q > 0 else -self.z / 2)
        self.q = max(self.q - self.served_s, 0.0) + self.arrived_s
        self._settle()
        self.z = max(z, 0.0)
        self.served_s = self.arrived_s = 0.0

    def _settle(self) -> None:
        if not self.costs:
            self.q = 0.0  # what rounding left of an empty queue is no work


step = st.tuples(
    st.integers(0, 4),  # slots that pass without anyone asking
    st.lists(st.floats(1.0, 5000.0), max_size=3),  # work of the jobs that come
    st.integers(1, 3),  # how often it is asked in the slot
    st.booleans(),  # does one job leave unserved?
)


@hypothesis_settings(deadline=None, max_examples=examples(60))
@given(st.lists(step, min_size=1, max_size=12))
def test_queues_move_once_per_slot_as_printed(steps: list[tuple[int, list[float], int, bool]]) -> None:
    view = cluster_of(gpu_nodes(64, 4))  # room for every promise
    rng = np.random.default_rng(0)
    walked, queue, listed, slot, count = Walked(), QueueState("q"), [], 100, 0
    queue = POLICY.admit([], view, queue, AdmitContext(slot * 10.0, slot, SETTINGS, rng)).queue
    for passed, works, asks, leaves in steps:
        for _ in range(passed + 1):
            walked.next_slot()
        slot += passed + 1
        if leaves and listed:
            gone = listed.pop(0)
            walked.leave(gone.id)
        for work in works:
            job = Job(JobId(f"j{count}"), model="ResNet-50", batch_size=256, single_gpu_s=work)
            count += 1
            listed.append(job)
            walked.costs[job.id] = work
            walked.arrived_s += work
        verdicts = []
        for _ in range(asks):
            plan = POLICY.admit(listed, view, queue, AdmitContext(slot * 10.0 + 3.0, slot, SETTINGS, rng))
            queue = plan.queue
            verdicts.append([(a.verdict, a.gpus) for a in plan.admissions])
            assert queue.backlog_s == pytest.approx(walked.q, abs=1e-6)
            assert queue.delay_s == pytest.approx(walked.z, abs=1e-6)
        assert all(v == verdicts[0] for v in verdicts)
        started = [j for j, a in zip(listed, plan.admissions, strict=True) if a.verdict is Verdict.ADMIT]
        assert len(started) <= 1
        for job in started:  # the host starts it at once and lists it no more
            listed.remove(job)
            walked.served_s += walked.costs.pop(job.id)
        waiting = set(queue.waiting) - set(queue.admitted)
        assert waiting == {job.id for job in listed}
