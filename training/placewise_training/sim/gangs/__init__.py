"""Jobs of several tasks, each placed whole: the simulator proper, its metrics, and the oracle."""
