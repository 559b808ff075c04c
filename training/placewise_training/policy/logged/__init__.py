"""Harmony's policy from a decision log, and its net from the graphs of a bundle."""
