"""Measured data that ships with the package, and the fits of it."""
