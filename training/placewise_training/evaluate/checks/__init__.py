"""How far estimates and their intervals can be trusted: on synthetic logs, and on those of the simulator."""
