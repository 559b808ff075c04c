"""Streaming applications on hybrid nodes: a queue per node, subtasks on cores and GPUs."""
