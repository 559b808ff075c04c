"""LDWP's Q net: the value of each node for an arriving pipeline task."""
