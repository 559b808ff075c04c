"""Gangs of pods: what they ask for, how far they are, what they hold."""
