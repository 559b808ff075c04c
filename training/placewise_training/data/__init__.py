"""Measured data that ships with the package, and what is fitted from it."""
