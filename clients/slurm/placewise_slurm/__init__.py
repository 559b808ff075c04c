"""Placewise for Slurm: a bridge daemon beside slurmctld, hooks that hold jobs and report what happened."""
