"""LdwpEnv: LDWP's decision process on the pipeline simulator, as a Gymnasium environment. Learns nothing itself.

No trainer of this package uses it: LDWP's net learns from recorded episodes (ldwp/data.py).

One step sends the task that just arrived to a node. Observation x_t = (TID, TSize, S_1 … S_M): the application one-hot,
its size, and for each node the six utilisations of placewise_core.inputs.cluster.UTILISATION_COLUMNS. Reward: the
change of cluster throughput, in tasks per minute over the last `window_s`, in work done rather than tasks finished, so
that it moves between completions. Nodes may come and go (`faults`); the observation keeps `most_nodes` places, absent
ones are zero and masked.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from placewise_core.inputs.cluster import UTILISATION_COLUMNS, encode_utilisation
from placewise_training.sim.faults import Fault
from placewise_training.sim.hardware import NodeSpec, ldwp_cluster
from placewise_training.sim.pipelines.applications import APPLICATIONS, PipelineTask, PipelineWorkload
from placewise_training.sim.pipelines.engine import PipelineSimulation
from placewise_training.sim.pipelines.units import IawpUnits, UnitPolicy

Observation = dict[str, NDArray[Any]]
_SIZE_SCALE = 1.0 / 4000.0  # the mean size of the workload


@dataclass(frozen=True, slots=True)
class LdwpConfig:
    """The settings of an episode. `units` makes the unit policy of every node."""

    nodes: Callable[[], Sequence[NodeSpec]] = ldwp_cluster
    workload: PipelineWorkload = PipelineWorkload(tasks=300)
    truth: str = "train"
    units: Callable[[], UnitPolicy] = IawpUnits
    faults: Sequence[Fault] = ()
    most_nodes: int = 16
    window_s: float = 60.0


class LdwpEnv(gymnasium.Env[Observation, np.int64]):
    """Observation: task (applications + 1,), nodes (most_nodes, 6), action_mask (most_nodes,)."""

    metadata = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own declaration

    def __init__(self, config: LdwpConfig | None = None) -> None:
        self.config = config or LdwpConfig()
        most = self.config.most_nodes
        self.action_space: spaces.Discrete = spaces.Discrete(most)
        self.observation_space: spaces.Space[Observation] = spaces.Dict(
            {
                "task": spaces.Box(0.0, 10.0, (len(APPLICATIONS) + 1,), np.float32),
                "nodes": spaces.Box(0.0, 1.0, (most, len(UTILISATION_COLUMNS)), np.float32),
                "action_mask": spaces.MultiBinary(most),
            }
        )  # type: ignore[assignment]
        self.simulation: PipelineSimulation | None = None
        self._task: PipelineTask | None = None
        self._work: deque[tuple[float, float]] = deque()
        self._throughput = 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """`options["workload_seed"]` pins the tasks."""
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(2**31))
        chosen = int((options or {}).get("workload_seed", drawn))
        tasks = self.config.workload.generate(self.config.truth, chosen)
        self.simulation = PipelineSimulation(
            list(self.config.nodes()),
            tasks,
            self.config.truth,
            None,
            self.config.units(),
            faults=self.config.faults,
            seed=chosen,
        )
        self._work.clear()
        self._throughput = 0.0
        self._advance()
        return self._observe(), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        sim, task = self._simulation, self._task
        if task is None:
            raise gymnasium.error.ResetNeeded("the episode is over: call reset()")
        names = list(sim.nodes)
        if int(action) >= len(names):
            return self._observe(), -1.0, False, False, {"is_invalid": True}
        sim.put(task, names[int(action)])
        self._advance()
        before, self._throughput = self._throughput, self._throughput_now()
        info: dict[str, Any] = {"is_invalid": False, "throughput_per_min": self._throughput}
        if self._task is None:
            info["result"] = sim.result()
        return self._observe(), self._throughput - before, self._task is None, False, info

    @property
    def _simulation(self) -> PipelineSimulation:
        if self.simulation is None:
            raise gymnasium.error.ResetNeeded("call reset() first")
        return self.simulation

    def _advance(self) -> None:
        """To the next task without a node; after the last one to the end of all work."""
        sim = self._simulation
        while not sim.unplaced and len(sim.events):
            before = sim.work_done
            sim.step()
            if sim.work_done > before:
                self._work.append((sim.now_s, sim.work_done - before))
        self._task = sim.unplaced.pop(0) if sim.unplaced else None

    def _throughput_now(self) -> float:
        """Tasks' worth of subtasks done per minute over the window."""
        now_s = self._simulation.now_s
        while self._work and self._work[0][0] < now_s - self.config.window_s:
            self._work.popleft()
        span_s = min(self.config.window_s, max(1.0, now_s))
        return 60.0 * sum(share for _, share in self._work) / span_s

    def _observe(self) -> Observation:
        sim = self._simulation
        most, count = self.config.most_nodes, len(sim.nodes)
        if count > most:
            raise ValueError(f"{count} nodes, but room for {most} in the observation")
        sim.report_telemetry()
        task = np.zeros(len(APPLICATIONS) + 1, dtype=np.float32)
        if self._task is not None:
            task[list(APPLICATIONS).index(self._task.application)] = 1.0
            task[-1] = self._task.size * _SIZE_SCALE
        nodes = np.zeros((most, len(UTILISATION_COLUMNS)), dtype=np.float32)
        rows = [sim.view.nodes.index[name] for name in sim.nodes]
        nodes[:count] = encode_utilisation(sim.view)[rows]
        mask = np.zeros(most, dtype=np.int8)
        mask[:count] = self._task is not None
        return {"task": task, "nodes": nodes, "action_mask": mask}
