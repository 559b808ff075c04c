"""The simulator as a truth: somebody else decides, a running service for example. Never asks a policy.

Jobs, nodes, speeds and noise are those of `placewise simulate` with the same trace, seed and truth. Equal placements
therefore give equal completion times and an equal event hash.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from placewise_core.domain.cluster import Assignment, Node
from placewise_core.domain.job import JobId, Shape
from placewise_core.domain.truth import Moment, Progress, TruthSetting
from placewise_training.sim.events import EventKind
from placewise_training.sim.gangs.engine import Simulation
from placewise_training.sim.gangs.live import LiveJob
from placewise_training.sim.hardware import uniform_cluster
from placewise_training.sim.jobs import SimJob, with_shape
from placewise_training.sim.traces import TraceMapping
from placewise_training.sim.truths import make_truth


class HostedSimulation:
    """A Truth (placewise_core.domain.truth). `simulation` is open for observers. Raises ValueError for an unknown
    name."""

    def __init__(self, name: str, setting: TruthSetting) -> None:
        speed = make_truth(name, setting.seed)
        nodes = uniform_cluster(setting.nodes, setting.gpus_per_node, setting.gpu_model)
        mapping = TraceMapping(
            gpu_model=setting.gpu_model,
            gpus_per_node=max(1, setting.gpus_per_node),
            is_elastic=setting.is_elastic,
            has_classes=True,
        )
        jobs = mapping.generate(setting.jobs, speed, setting.seed)
        self.simulation = Simulation(nodes, jobs, speed, None, seed=setting.seed)
        self._nodes = tuple(spec.node for spec in nodes)
        self._queues = tuple(dict.fromkeys(job.queue for job in setting.jobs))
        self._begun: dict[str, LiveJob] = {}
        self._sent: dict[str, int] = {}

    @property
    def nodes(self) -> Sequence[Node]:
        return self._nodes

    @property
    def queues(self) -> Sequence[str]:
        return self._queues

    def advance(self) -> Moment | None:
        event = self.simulation.step()
        if event is None:
            return None
        now_s = self.simulation.now_s
        if event.kind is EventKind.FINISH:
            return Moment(now_s, finished=self._finished(event.payload, now_s))
        job: SimJob = event.payload
        return Moment(now_s, arrived=job.job, is_impossible=job.id not in self.simulation.waiting)

    def pass_time(self, span_s: float) -> float:
        self.simulation.run_until(self.simulation.now_s + span_s)
        return self.simulation.now_s

    def start(self, job_id: JobId, assignments: Sequence[Assignment], shape: Shape | None = None) -> None:
        job = self.simulation.waiting[job_id]
        if shape is not None and job.job.elastic is not None:
            job = replace(job, job=with_shape(job.job, shape))
        self._begun[job_id] = self.simulation.start(job, tuple(assignments))

    def settle(self) -> Sequence[Progress]:
        self.simulation.refresh()
        now_s, sent = self.simulation.now_s, self._sent
        changed = [live for name, live in self.simulation.running.items() if sent.get(name) != live.version]
        sent.update((live.sim.id, live.version) for live in changed)
        return [_progress(live, now_s) for live in changed]

    def digest(self) -> str:
        return self.simulation.hash.hexdigest()

    def _finished(self, job_id: str, now_s: float) -> Progress:
        live = self._begun.pop(job_id)
        self._sent.pop(job_id, None)
        epochs = live.sim.job.total_epochs
        return Progress(JobId(job_id), epochs / max(1e-9, now_s - live.start_s), epochs)


def _progress(live: LiveJob, now_s: float) -> Progress:
    per_epoch = live.sim.samples / max(1e-12, live.sim.job.total_epochs)
    return Progress(live.sim.job.id, live.rate / per_epoch, live.done_at(now_s) / per_epoch)


train = partial(HostedSimulation, "train")
judge = partial(HostedSimulation, "judge")
site = partial(HostedSimulation, "site")
