"""Harmony's actor-critic as the paper prints it: net, simulations, training, export. Serves `harmony-paper`."""
