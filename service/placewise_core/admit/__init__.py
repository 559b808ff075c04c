"""Admission policies: which jobs start now, with how many GPUs, in which order. One file per policy."""
