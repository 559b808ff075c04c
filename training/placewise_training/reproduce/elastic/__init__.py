"""Proteus and QoS-aware scheduling: when elastic jobs start, and with how many GPUs."""
