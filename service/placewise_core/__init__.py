"""What is decided: types, policies, formulas. Pure: standard library and numpy, no I/O, no clock of its own."""
