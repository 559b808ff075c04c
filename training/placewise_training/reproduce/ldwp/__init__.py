"""LDWP: the node of each pipeline task."""
