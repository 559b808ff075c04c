"""Harmony's reward model as printed (section VI): trace of random placements → net → errors on a tenth held back.

Read top to bottom. The trace is the paper's: jobs that saturate the cluster, placed at random, every running job's
speed at every start. Of a job the net sees x, w, p and d alone; rows are as long as the cluster has servers. Two hidden
encoder layers of 128 with eight heads, batch norm, Adam with the Transformer's warm-up, 32 samples per step. Every draw
comes from `seed`. [!] The paper's speeds are epochs per interval; ours are samples per second over the mean of the
job's model in the training data, which leaves the relative error as it is. The paper does not say how many steps it
takes: ours are ten passes.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from placewise_core.basics.arrays import BoolArray, Float32, FloatArray, IntArray
from placewise_core.domain.cluster import Assignment
from placewise_core.domain.job import Job, Role
from placewise_core.gang.context import PlaceContext
from placewise_core.gang.policy import PlacementPolicy, Proposal
from placewise_core.view.view import ClusterView
from placewise_training.reward.net import relative_error
from placewise_training.sim.arrivals import INTERVAL_S
from placewise_training.sim.discipline import Discipline
from placewise_training.sim.gangs.engine import SimOptions, Simulation
from placewise_training.sim.gangs.what_if import what_if
from placewise_training.sim.hardware import harmony_cluster
from placewise_training.sim.jobs import SimJob
from placewise_training.sim.policies import placement_policy
from placewise_training.sim.speed.composed import ComposedSpeed
from placewise_training.sim.workloads import HARMONY_MODELS, HarmonyWorkload

HELD_BACK = 0.1  # of the trace, after it was shuffled
_SERVERS = 6
_OF_TASKS = 0.25  # as in the policy's rows
_PER_INTERVAL = 5.0  # jobs: more than the cluster can take
_ROLES = (Role.WORKER, Role.PARAMETER_SERVER)


@dataclass(frozen=True, slots=True)
class Budget:
    """By default the paper's: 29,264 samples, each the set of jobs that run after a start."""

    samples: int = 29_264
    steps: int = 8_000
    jobs: int = 200  # per simulation
    batch: int = 32
    warm_up: int = 4000


@dataclass(frozen=True, slots=True)
class Trace:
    """rows (S, J, F), their models (S, J), true speeds (S, J) in samples per second; −1 is the model of padding."""

    rows: Float32
    model: IntArray
    speed: FloatArray

    def __getitem__(self, chosen: IntArray) -> "Trace":
        return Trace(self.rows[chosen], self.model[chosen], self.speed[chosen])


@dataclass(frozen=True, slots=True)
class Predictions:
    """Of each job of the samples: model (an index of HARMONY_MODELS), relative error."""

    model: IntArray
    error: FloatArray


# The trace


class _Watcher(PlacementPolicy):
    """Random placement; keeps (model, tasks by role and server, speed) of all that run after each start."""

    name = "watcher"

    def __init__(self) -> None:
        self.samples: list[list[tuple[int, Float32, float]]] = []
        self.simulation: Simulation | None = None
        self._random = placement_policy("random")

    def propose(self, job: Job, view: ClusterView, context: PlaceContext) -> Proposal | None:
        proposal = self._random.propose(job, view, context)
        if proposal is not None and self.simulation is not None:
            self._keep(self.simulation, self.simulation.waiting[job.id], proposal.assignments)
        return proposal

    def _keep(self, simulation: Simulation, new: SimJob, at: tuple[Assignment, ...]) -> None:
        changed = what_if(simulation, new, at)
        running = [(live.sim, live.assignments, live.rate) for live in simulation.running.values()]
        sample = []
        for sim, assignments, rate in [(new, at, 0.0), *running]:
            speed = changed[sim.id][1] if sim.id in changed else rate
            sample.append((HARMONY_MODELS.index(sim.job.model), _tasks(assignments, simulation), speed))
        self.samples.append(sample)


def _tasks(assignments: tuple[Assignment, ...], simulation: Simulation) -> Float32:
    """(2M,) tasks: per server workers, then parameter servers."""
    counts = np.zeros((_SERVERS, 2), dtype=np.float32)
    for assignment in assignments:
        counts[list(simulation.nodes).index(assignment.node), _ROLES.index(assignment.role)] += 1.0
    return counts.ravel()


def trace_of(truth: ComposedSpeed, seed: int, budget: Budget) -> Trace:
    """So many samples as the budget asks for, in order of time."""
    samples: list[list[tuple[int, Float32, float]]] = []
    run = 0
    while len(samples) < budget.samples:
        watcher = _Watcher()
        workload = HarmonyWorkload(jobs=budget.jobs, per_interval=_PER_INTERVAL)
        simulation = Simulation(
            harmony_cluster(_SERVERS),
            workload.generate(truth, 1000 * seed + run),
            truth,
            watcher,
            options=SimOptions(discipline=Discipline(every_s=INTERVAL_S)),
            seed=seed,
        )
        watcher.simulation = simulation
        simulation.run()
        samples += watcher.samples
        run += 1
    return _packed(samples[: budget.samples])


def _packed(samples: list[list[tuple[int, Float32, float]]]) -> Trace:
    most = max(len(sample) for sample in samples)
    rows = np.zeros((len(samples), most, len(HARMONY_MODELS) + 2 + 2 * _SERVERS), dtype=np.float32)
    model = np.full((len(samples), most), -1)
    speed = np.ones((len(samples), most))
    for i, sample in enumerate(samples):
        for j, (kind, tasks, per_s) in enumerate(sample):
            workers, servers = tasks[::2].sum(), tasks[1::2].sum()
            counts = np.concatenate([[workers, servers], tasks]) * _OF_TASKS
            rows[i, j, kind], rows[i, j, len(HARMONY_MODELS) :] = 1.0, counts
            model[i, j], speed[i, j] = kind, per_s
    return Trace(rows, model, speed)


# The net


class _Norm(nn.Module):
    """Batch norm over the jobs of a batch; padding has no part in its statistics."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: Tensor, is_job: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        out[is_job] = self.norm(x[is_job])
        return out


class _Layer(nn.Module):
    """An encoder layer with batch norm after attention and after the dense layers, as [22] has layer norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.dense = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.after_attention, self.after_dense = _Norm(width), _Norm(width)

    def forward(self, x: Tensor, is_job: Tensor) -> Tensor:
        attended, _ = self.attention(x, x, x, key_padding_mask=~is_job, need_weights=False)
        x = self.after_attention(x + attended, is_job)
        out: Tensor = self.after_dense(x + self.dense(x), is_job)
        return out


class PrintedReward(nn.Module):
    """rows (B, J, F), is_job (B, J) → (B, J) speed of each job over the mean of its model."""

    def __init__(self, features: int, width: int = 128, heads: int = 8, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(features, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.layers = nn.ModuleList([_Layer(width, heads) for _ in range(layers)])
        self.out = nn.Linear(width, 1)

    def forward(self, rows: Tensor, is_job: Tensor) -> Tensor:
        x = self.embed(rows)
        for layer in self.layers:
            x = layer(x, is_job)
        speed: Tensor = 1.0 + self.out(x).squeeze(2)
        return speed


# Training and judging


def judged_as_printed(truth: ComposedSpeed, seed: int, budget: Budget) -> dict[str, Predictions]:
    """By the paper's protocol, errors on a tenth of the shuffled trace; and on the last tenth in order of time, by a
    net that learned from the nine before: states of one simulation resemble each other, which a shuffled trace hides.
    """
    trace = trace_of(truth, seed, budget)
    size = len(trace.rows)
    tested = max(1, round(HELD_BACK * size))
    found = {}
    for name, order in (("shuffled", np.random.default_rng((seed, 31)).permutation(size)), ("later", np.arange(size))):
        learnt, judged = trace[order[:-tested]], trace[order[-tested:]]
        unit = _mean_speeds(learnt)
        found[name] = _errors(_trained(learnt, unit, seed, budget), judged, unit)
    return found


def _mean_speeds(trace: Trace) -> FloatArray:
    """(models,) mean speed; 1 for a model that the trace has not."""
    kinds = range(len(HARMONY_MODELS))
    return np.array([trace.speed[trace.model == k].mean() if (trace.model == k).any() else 1.0 for k in kinds])


def _trained(trace: Trace, unit: FloatArray, seed: int, budget: Budget) -> PrintedReward:
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    rng = np.random.default_rng((seed, 32))
    net = PrintedReward(trace.rows.shape[2])
    optimiser = torch.optim.Adam(net.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
    width = net.out.in_features

    def rate(step: int) -> float:
        at = step + 1
        return float(width**-0.5 * min(at**-0.5, at * budget.warm_up**-1.5))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, rate)
    for chosen in _batches(len(trace.rows), budget, rng):
        rows, is_job, true = _tensors(trace[chosen], unit)
        loss = relative_error(net(rows, is_job), true, is_job.to(true.dtype))
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
    return net


def _batches(size: int, budget: Budget, rng: np.random.Generator) -> Iterator[IntArray]:
    """Passes over the shuffled trace until the steps are done."""
    left = budget.steps
    while left > 0:
        order = rng.permutation(size)
        for i in range(0, max(1, size - budget.batch + 1), budget.batch):
            if left > 0:
                yield order[i : i + budget.batch]
            left -= 1


def _tensors(trace: Trace, unit: FloatArray) -> tuple[Tensor, Tensor, Tensor]:
    is_job: BoolArray = trace.model >= 0
    most = int(is_job.sum(axis=1).max())  # no more padding than the batch needs
    true = np.where(is_job, trace.speed / unit[trace.model], 1.0)[:, :most].astype(np.float32)
    return (
        torch.from_numpy(np.ascontiguousarray(trace.rows[:, :most])),
        torch.from_numpy(np.ascontiguousarray(is_job[:, :most])),
        torch.from_numpy(true),
    )


@torch.no_grad()
def _errors(net: PrintedReward, trace: Trace, unit: FloatArray) -> Predictions:
    net.eval()
    rows, is_job, true = _tensors(trace, unit)
    error = ((net(rows, is_job) - true).abs() / true).numpy()
    mask = is_job.numpy()
    return Predictions(trace.model[:, : mask.shape[1]][mask], error[mask].astype(np.float64))
