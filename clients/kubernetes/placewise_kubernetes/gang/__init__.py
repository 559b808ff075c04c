"""Gangs of pods: their demands, their stages and their tasks."""
