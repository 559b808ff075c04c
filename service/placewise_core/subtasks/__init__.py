"""Node scope: ready subtasks of pipelines on the cores and GPUs of one node."""
