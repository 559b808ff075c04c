"""The gate: may a candidate bundle go on to a canary? From one log: estimates, a paired simulation, safety checks."""
