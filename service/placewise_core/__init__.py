"""Types, policies and formulas of every decision. Pure: standard library and numpy, no I/O, no clock of its own."""
