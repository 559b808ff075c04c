"""PlacementEnv: Harmony's decision process on the simulator, as a Gymnasium environment. Learns nothing itself.

No trainer of this package uses it: the policy learns from simulations that host the service's own policy class
(policy/rollouts.py).

One step places one task (actions.py). Time stands still until every waiting job of the interval is placed or does not
fit; then the cluster runs to the next interval with something to decide. Observations come from the one encoder
(placewise_core.inputs.cluster), padded to `most_jobs` tokens.

Reward, given by the step that ends an interval: "progress" is (1) of the Harmony paper, Σ c_n/e_n of the interval;
"jct" is −Σ of the time jobs spent in the system, in intervals, whose undiscounted sum is −Σ JCT. Over several
intervals without a decision rewards are discounted by γ each; `info["intervals"]` says how many passed, for γ^k.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from placewise_core.domain.cluster import Assignment
from placewise_core.domain.job import Job, JobId
from placewise_core.gang.candidates import Candidates
from placewise_core.gang.gang import Gang
from placewise_core.inputs.cluster import JOB_FEATURES, NODE_FEATURES, Encoder
from placewise_core.inputs.cluster import Observation as Tokens
from placewise_training.sim.gangs.engine import SimOptions, Simulation
from placewise_training.sim.hardware import NodeSpec, harmony_cluster
from placewise_training.sim.jobs import SimJob
from placewise_training.sim.runs import Workload
from placewise_training.sim.truths import make_truth
from placewise_training.sim.workloads import HarmonyWorkload

Observation = dict[str, NDArray[Any]]
STEP_INFO = ("intervals", "interval", "is_invalid")  # what `info` always holds; more when an episode ends
_BOUND = 1e4  # features are scaled to the order of 1; the checker wants a bound


def _default_workload() -> Workload:
    return HarmonyWorkload(jobs=60).generate


@dataclass(frozen=True, slots=True)
class EnvConfig:
    """The settings of an episode: "train" is the truth for anything that learns; truncated after `most_intervals`."""

    nodes: Callable[[], Sequence[NodeSpec]] = harmony_cluster
    workload: Workload = field(default_factory=_default_workload)
    truth: str = "train"
    interval_s: float = 1200.0
    reward: Literal["progress", "jct"] = "progress"
    gamma: float = 0.9
    most_jobs: int = 48
    most_batch: int = 16
    most_intervals: int = 2000
    invalid_penalty: float = 1.0


class PlacementEnv(gymnasium.Env[Observation, np.int64]):
    """Observation: nodes (M, F), jobs (J, F), placement (J, M, 2), job_mask (J,), current (J,) one-hot,
    action_mask (2M,). An action the mask forbids changes nothing and costs `invalid_penalty`.

    `seen` holds the present observation, `fits` which gangs could ever fit; a caller that steps several environments
    together may put arrays and a dict of its own there.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own declaration

    def __init__(self, config: EnvConfig | None = None) -> None:
        self.config = config or EnvConfig()
        self._nodes = list(self.config.nodes())
        m, j = len(self._nodes), self.config.most_jobs
        self.action_space: spaces.Discrete = spaces.Discrete(2 * m)
        self.observation_space: spaces.Space[Observation] = spaces.Dict(
            {
                "nodes": spaces.Box(-_BOUND, _BOUND, (m, NODE_FEATURES), np.float32),
                "jobs": spaces.Box(-_BOUND, _BOUND, (j, JOB_FEATURES), np.float32),
                "placement": spaces.Box(0, _BOUND, (j, m, 2), np.float32),
                "job_mask": spaces.MultiBinary(j),
                "current": spaces.MultiBinary(j),
                "action_mask": spaces.MultiBinary(2 * m),
            }
        )  # type: ignore[assignment]
        self.simulation: Simulation | None = None
        self.seen: Observation = {
            name: np.zeros(space.shape, dtype=space.dtype)
            for name, space in self.observation_space.spaces.items()  # type: ignore[attr-defined]
        }
        self._encoder = Encoder(most_jobs=j)
        self.fits: dict[tuple[object, ...], bool] = {}
        self._batch: list[SimJob] = []
        self._next = 0  # index into the batch of the job being placed
        self._stuck: set[tuple[object, ...]] = set()  # demands without an action in this interval: room only shrinks
        self._candidates: Candidates | None = None  # of the job being placed
        self._interval = 0
        self._progress = self._waited_s = 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """`options["workload_seed"]` pins the jobs; otherwise they come from the environment's own generator."""
        info = self.reset_in_place(seed, options)
        return self._copied(), info

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        reward, terminated, truncated, info = self.step_in_place(int(action))
        return self._copied(), reward, terminated, truncated, info

    def reset_in_place(self, seed: int | None = None, options: dict[str, Any] | None = None) -> dict[str, Any]:
        """As `reset`; the observation is in `seen`."""
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(2**31))
        workload_seed = int((options or {}).get("workload_seed", drawn))
        truth = make_truth(self.config.truth, workload_seed)
        jobs = self.config.workload(truth, workload_seed)
        self.simulation = Simulation(
            self._nodes, jobs, truth, None, options=SimOptions(), seed=workload_seed, fits=self.fits
        )
        self._batch, self._next, self._candidates = [], 0, None
        self._stuck.clear()
        self._interval = 0
        self._progress = self._waited_s = 0.0
        _, intervals = self._advance()
        self._observe()
        return self._info(intervals)

    def step_in_place(self, action: int) -> tuple[float, bool, bool, dict[str, Any]]:
        """As `step`; the observation is in `seen`."""
        if self._candidates is None:
            raise gymnasium.error.ResetNeeded("the episode is over: call reset()")
        if not self.seen["action_mask"][action]:
            return -self.config.invalid_penalty, False, False, self._info(0, is_invalid=True)
        gang = self._candidates.gang
        if self._candidates.take(action):
            self._simulation.view.usage.claim(gang.job, gang.tasks[-1])  # what is observed next
        if not gang.remaining:
            self._start_current()
        elif self._candidates.is_stuck():
            self._skip_current()
        else:
            self._observe_again()
            return 0.0, False, False, self._info(0)
        reward, intervals = self._advance()
        terminated = self._simulation.is_over
        truncated = not terminated and not self.has_decision
        self._observe()
        return reward, terminated, truncated, self._info(intervals)

    @property
    def has_decision(self) -> bool:
        """True while a job waits for its next task to be placed; False ends the episode."""
        return self._candidates is not None

    @property
    def _simulation(self) -> Simulation:
        if self.simulation is None:
            raise gymnasium.error.ResetNeeded("call reset() first")
        return self.simulation

    def _start_current(self) -> None:
        assert self._candidates is not None
        self._simulation.start(self._batch[self._next], self._candidates.gang.assignments(), is_claimed=True)
        self._candidates = None
        self._next += 1

    def _skip_current(self) -> None:
        """The gang cannot be completed this way: it waits for the next interval."""
        assert self._candidates is not None
        gang = self._candidates.gang
        for task in reversed(gang.tasks):
            self._simulation.view.usage.unclaim(gang.job, task)
        self._candidates = None
        self._next += 1

    def _advance(self) -> tuple[float, int]:
        """To the next decision, through as many intervals as have none; (discounted reward, intervals passed)."""
        reward, passed, discount = 0.0, 0, 1.0
        while not self._open_next():
            if self._simulation.is_over or self._interval >= self.config.most_intervals:
                break
            reward += discount * self._run_interval()
            discount *= self.config.gamma
            passed += 1
        return reward, passed

    def _open_next(self) -> bool:
        """Opens the next job of the batch that has a possible action. False when the batch is through."""
        sim = self._simulation
        sim.context.now_s = sim.now_s
        while self._next < len(self._batch):
            job = self._batch[self._next]
            if job.signature not in self._stuck:
                candidates = Candidates(Gang(job.job, sim.view, sim.context))
                if not candidates.is_stuck():
                    self._candidates = candidates
                    return True
                self._stuck.add(job.signature)
            self._next += 1
        return False

    def _run_interval(self) -> float:
        """Runs to the next multiple of the interval and collects the batch waiting there; the interval's reward."""
        sim = self._simulation
        sim.refresh()
        self._interval += 1
        waited_before = self._time_in_system()
        sim.run_until(self._interval * self.config.interval_s)
        self._batch = list(sim.waiting.values())[: self.config.most_batch]
        self._next = 0
        self._stuck.clear()
        sim.report_progress()
        if self.config.reward == "jct":
            return -(self._time_in_system() - waited_before) / self.config.interval_s
        before, self._progress = self._progress, sim.progress()
        return self._progress - before

    def _time_in_system(self) -> float:
        """Seconds all jobs so far spent between submission and finish (or now)."""
        sim = self._simulation
        inside = [live.sim.submit_time_s for live in sim.running.values()]
        inside += [job.submit_time_s for job in sim.waiting.values()]
        return sim.metrics.jct.total + sum(sim.now_s - submitted for submitted in inside)

    def batch(self) -> tuple[list[Job], int, dict[JobId, Sequence[Assignment]]]:
        """The undecided jobs, which of them is current, and its tentative placements."""
        jobs = [job.job for job in self._batch[self._next :]]
        placed: dict[JobId, Sequence[Assignment]] = {}
        if self._candidates is not None:
            placed[self._candidates.gang.job.id] = self._candidates.gang.tasks
        return jobs, 0 if self._candidates is not None else -1, placed

    def action_masks(self) -> NDArray[np.bool_]:
        """(2M,) actions that are possible now, by the name that maskable agents ask for."""
        if self._candidates is None:
            return np.zeros(int(self.action_space.n), dtype=np.bool_)
        return self._candidates.mask

    def _observe(self) -> None:
        """Writes the whole observation; `_observe_again` is its equal after one more task of the same job."""
        sim, seen = self._simulation, self.seen
        jobs, current, placed = self.batch()
        tokens = self._encoder.encode(sim.view, jobs, sim.now_s, current=current, placed=placed)
        count = len(tokens.jobs)
        seen["nodes"][:] = tokens.nodes
        for name, values in (("jobs", tokens.jobs), ("placement", tokens.placement), ("job_mask", 1)):
            seen[name][:count] = values
            seen[name][count:] = 0
        seen["current"][:] = 0
        if tokens.current >= 0:
            seen["current"][tokens.current] = 1
        seen["action_mask"][:] = self.action_masks()

    def _observe_again(self) -> None:
        """The current job is always the first token of the batch: only it, the nodes and the mask have changed."""
        assert self._candidates is not None
        view, seen = self._simulation.view, self.seen
        seen["nodes"][:] = self._encoder.encode_nodes(view, self._simulation.now_s)
        seen["action_mask"][:] = self._candidates.mask
        tokens = Tokens(seen["nodes"], seen["jobs"], seen["placement"], 0)
        self._encoder.update_new(tokens, 0, self._candidates.gang.job, self._candidates.gang.tasks, view)

    def _copied(self) -> Observation:
        """A copy: the caller may keep and change it."""
        return {name: array.copy() for name, array in self.seen.items()}

    def _info(self, intervals: int, *, is_invalid: bool = False) -> dict[str, Any]:
        info: dict[str, Any] = {"intervals": intervals, "interval": self._interval, "is_invalid": is_invalid}
        if self._candidates is None:
            sim = self._simulation
            info["avg_jct_s"] = sim.metrics.jct.mean
            info["event_hash"] = sim.hash.hexdigest()
        return info
