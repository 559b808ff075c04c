"""Sends a trace through a running service by gRPC, as a scheduler would, in the trace's own time."""
