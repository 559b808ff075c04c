"""Volcano's queues, and the nodes and reasons that it and its users are given."""
