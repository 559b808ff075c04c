"""Harmony: where the tasks of training jobs go."""
