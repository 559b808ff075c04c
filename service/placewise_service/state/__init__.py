"""Cluster state shared by replicas: the store's Protocol, Redis, and the in-memory reference."""
