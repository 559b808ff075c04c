"""Figures about estimators that a service learns while it runs."""
