"""IAWP: the core or GPU of each subtask inside one node."""
