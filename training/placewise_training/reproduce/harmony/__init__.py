"""Harmony: placement of the tasks of training jobs."""
