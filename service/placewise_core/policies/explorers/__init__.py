"""Policies that explore: draws whose probability is known, without dead ends. One file each."""
