"""Gangs: what nodes offer, one placement in the making, and the reasons why a gang does not fit."""
