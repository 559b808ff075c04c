"""Placewise for Kubernetes and Volcano: a scheduler extender and a scheduler of its own name."""
