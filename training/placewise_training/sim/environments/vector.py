"""Several PlacementEnvs stepped together in one process. Adds nothing to their behaviour.

No trainer of this package uses it.

Gymnasium's SyncVectorEnv does the same through any environment's own arrays: here every environment writes its
observation into its row of the batch.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, create_empty_array
from numpy.typing import NDArray

from placewise_training.sim.environments.placement import STEP_INFO, EnvConfig, Observation, PlacementEnv

_Steps = tuple[Observation, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


class PlacementVectorEnv(VectorEnv[Observation, NDArray[np.int64], NDArray[Any]]):
    """`count` environments; a finished one restarts at the next step, whose action it ignores.

    Observations are those of PlacementEnv with a first axis more, and are overwritten by the next step.
    """

    def __init__(self, config: EnvConfig, count: int) -> None:
        self.envs = [PlacementEnv(config) for _ in range(count)]
        self.num_envs = count
        self.metadata = {**PlacementEnv.metadata, "autoreset_mode": AutoresetMode.NEXT_STEP}
        self.single_observation_space = self.envs[0].observation_space
        self.observation_space = batch_space(self.single_observation_space, count)
        self.single_action_space = self.envs[0].action_space
        self.action_space = batch_space(self.single_action_space, count)
        self._seen: Observation = create_empty_array(self.single_observation_space, count)  # type: ignore[assignment]
        fits: dict[tuple[object, ...], bool] = {}  # their nodes are the same
        for i, env in enumerate(self.envs):
            env.fits = fits
            env.seen = {name: batch[i] for name, batch in self._seen.items()}
        self._is_over = np.zeros(count, dtype=np.bool_)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """`seed` of the first; each next environment has one more. Or a seed for each."""
        if seed is None or isinstance(seed, int):
            seed = [None if seed is None else seed + i for i in range(self.num_envs)]
        infos = [env.reset_in_place(own, options) for env, own in zip(self.envs, seed, strict=True)]
        self._is_over[:] = False
        return self._seen, self._batched(infos)

    def step(self, actions: NDArray[np.int64]) -> _Steps:
        rewards = np.zeros(self.num_envs)
        terminated, truncated = np.zeros((2, self.num_envs), dtype=np.bool_)
        infos: list[dict[str, Any]] = []
        for i, (env, action) in enumerate(zip(self.envs, actions.tolist(), strict=True)):
            if self._is_over[i]:
                infos.append(env.reset_in_place())
            else:
                rewards[i], terminated[i], truncated[i], info = env.step_in_place(action)
                infos.append(info)
        self._is_over = terminated | truncated
        return self._seen, rewards, terminated, truncated, self._batched(infos)

    def _batched(self, infos: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """One array per name, and under "_" + name which environments have it, as Gymnasium wants it."""
        batched: dict[str, Any] = {}
        for name in STEP_INFO:
            batched[name] = np.array([info[name] for info in infos])
            batched[f"_{name}"] = np.ones(self.num_envs, dtype=np.bool_)
        for i, info in enumerate(infos):
            if len(info) > len(STEP_INFO):  # an episode that ended
                batched = self._add_info(batched, {name: info[name] for name in info.keys() - set(STEP_INFO)}, i)
        return batched
