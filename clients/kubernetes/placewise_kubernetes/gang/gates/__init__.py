"""Pods that our scheduling gate holds."""
