"""Harmony's policy net: the node of each task, and the order of waiting jobs."""
