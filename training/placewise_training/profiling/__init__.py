"""Measures real training loops alone and side by side, and writes rows in the schema of the measured data."""
