"""How fast a job really runs in the simulator: stages of an iteration, each from measured data, composed and noised."""
