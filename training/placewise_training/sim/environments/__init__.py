"""The simulators as Gymnasium environments. No trainer of this package uses them.

`gymnasium.make("placewise_training.sim.environments:placewise/Placement-v0", config=EnvConfig(…))` makes one.
"""

import gymnasium

gymnasium.register(
    id="placewise/Placement-v0", entry_point="placewise_training.sim.environments.placement:PlacementEnv"
)
