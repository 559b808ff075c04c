"""Shadows in the exported log: pairs of answers and shadow decisions, and their comparison."""
