"""Slowdowns of models that share a GPU, completed from one or two measured co-runs."""
