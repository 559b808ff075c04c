"""Policies that read measured tables: completion times, sharing, skew. One file each."""
